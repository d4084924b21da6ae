// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/testcluster"
)

// Options of a Node. The zero value works.
type Options struct {
	// Dir keeps the state. Default Dir().
	Dir string
	// Cache holds the programs. Default testcluster.CacheDir().
	Cache string
	// Name of the node. Default node1.
	Name string
	// WithoutProxy leaves services without addresses that work, WithoutDNS
	// leaves them without names; without the proxy there is no DNS either.
	WithoutProxy, WithoutDNS bool
	// APIServerFlags are added to those of the API server. Default none.
	APIServerFlags []string
	// Timeout bounds the start. Default 3m.
	Timeout time.Duration
	// Keep marks a cluster that tests use and leave running. Default no.
	Keep bool
	// Output says how far the start is. Default nowhere.
	Output io.Writer
}

// Errors of Start and Open.
var (
	ErrRunning    = errors.New("the cluster runs already")
	ErrNotRunning = errors.New("no cluster runs")
)

// Node is a running cluster.
type Node struct {
	// Dir keeps its state, Kubeconfig an administrator's access.
	Dir, Kubeconfig string
	// Name is the node's, Address that of the machine.
	Name    string
	Address net.IP
	// Kept says that it was started with Options.Keep.
	Kept bool
	// Programs are those it was started with.
	Programs testcluster.NodeBinaries

	host *host
	pki  *testcluster.PKI
}

func (n *Node) folder() folder { return folder(n.Dir) }

func (o Options) withDefaults() (Options, error) {
	if o.Cache == "" {
		var err error
		if o.Cache, err = testcluster.CacheDir(); err != nil {
			return o, err
		}
	}
	if o.Name == "" {
		o.Name = "node1"
	}
	if o.Timeout <= 0 {
		o.Timeout = 3 * time.Minute
	}
	if o.Output == nil {
		o.Output = io.Discard
	}
	d, err := newFolder(o.Dir)
	o.Dir = string(d)
	return o, err
}

// provided returns what the node is made of: ErrUnavailable or
// testcluster.ErrNodeNotBuilt says what is missing.
func (o Options) provided() (*Node, error) {
	h, err := findHost()
	if err != nil {
		return nil, err
	}
	programs, err := testcluster.FindNode(o.Cache)
	if err != nil {
		return nil, err
	}
	return &Node{Dir: o.Dir, Kubeconfig: folder(o.Dir).path("admin.conf"), Name: o.Name, Kept: o.Keep, Programs: programs, host: h}, nil
}

// Check returns nil if this machine can run a node, else ErrUnavailable or
// testcluster.ErrNodeNotBuilt.
func Check(options Options) error {
	options, err := options.withDefaults()
	if err != nil {
		return err
	}
	_, err = options.provided()
	return err
}

// Start runs a cluster, which outlives this process, until Stop. What a killed
// one left behind is removed first. The error is ErrRunning if there is one,
// ErrUnavailable or testcluster.ErrNodeNotBuilt where none can run.
func Start(ctx context.Context, options Options) (*Node, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	n, err := options.provided()
	if err != nil {
		return nil, err
	}
	tool, err := BuildTool(ctx)
	if err != nil {
		return nil, err
	}
	release, err := n.folder().lock(ctx, lockName, options.Output)
	if err != nil {
		return nil, err
	}
	defer release()
	if n.folder().running() {
		return nil, fmt.Errorf("%w in %s", ErrRunning, n.Dir)
	}
	if err := n.cleanUp(ctx); err != nil {
		return nil, fmt.Errorf("remove what an earlier cluster left: %w", err)
	}
	starting, cancel := context.WithTimeout(ctx, options.Timeout)
	defer cancel()
	if err := n.start(starting, options, tool); err != nil {
		// A cancelled start is cleaned up all the same.
		return nil, errors.Join(fmt.Errorf("start the cluster: %w", err), n.cleanUp(context.WithoutCancel(ctx)))
	}
	return n, nil
}

// Open returns the running cluster of options' folder, or ErrNotRunning.
func Open(options Options) (*Node, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	n, err := options.provided()
	if err != nil {
		return nil, err
	}
	if !n.folder().running() {
		return nil, fmt.Errorf("%w in %s", ErrNotRunning, n.Dir)
	}
	text, err := os.ReadFile(n.folder().path("run", readyName))
	if err != nil {
		return nil, err
	}
	var r readiness
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("read the cluster's state: %w", err)
	}
	n.Name, n.Address, n.Kept = r.Name, r.Address, r.Keep
	return n, nil
}

// Stop ends the cluster of options' folder and undoes what it changed on the
// machine. It is no error that none runs; what a killed one left is removed.
func Stop(ctx context.Context, options Options) error {
	options, err := options.withDefaults()
	if err != nil {
		return err
	}
	n, err := options.provided()
	if err != nil {
		return err
	}
	return n.stop(ctx, options.Output)
}

// Stop ends the cluster and undoes what it changed on the machine.
func (n *Node) Stop(ctx context.Context) error { return n.stop(ctx, io.Discard) }

func (n *Node) stop(ctx context.Context, output io.Writer) error {
	release, err := n.folder().lock(ctx, lockName, output)
	if err != nil {
		return err
	}
	defer release()
	var drained error
	if n.folder().running() {
		fmt.Fprintln(output, "removing workloads")
		drained = n.drain(ctx)
	}
	fmt.Fprintln(output, "stopping")
	if err := errors.Join(n.cleanUp(ctx), n.folder().clear()); err != nil {
		return errors.Join(drained, err)
	}
	return nil // whatever did not end by itself was ended
}

// readyName is a file that is there once the cluster has started.
const readyName = "ready.json"

// readiness is what later processes must know of a running cluster.
type readiness struct {
	Name    string `json:"name"`
	Address net.IP `json:"address"`
	Keep    bool   `json:"keep"`
}

// running says that a cluster started in full and that all of it runs.
func (d folder) running() bool {
	if _, err := os.Stat(d.path("run", readyName)); err != nil {
		return false
	}
	for _, name := range daemons {
		if _, started := d.recorded(name); started && !d.alive(name) {
			return false
		}
	}
	return d.alive("kube-apiserver")
}

// Kubectl runs kubectl with an administrator's rights and input, if any, and
// returns what it prints. An error holds what it complains of.
func (n *Node) Kubectl(ctx context.Context, input string, args ...string) (string, error) {
	return n.tool(ctx, n.Programs.Kubectl, input, args...)
}

// Helm runs helm with an administrator's rights.
func (n *Node) Helm(ctx context.Context, args ...string) (string, error) {
	return n.tool(ctx, n.Programs.Helm, "", args...)
}

func (n *Node) tool(ctx context.Context, program, input string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, program, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+n.Kubeconfig)
	command.Stdin = strings.NewReader(input)
	var output, complaints bytes.Buffer
	command.Stdout, command.Stderr = &output, &complaints
	if err := command.Run(); err != nil {
		return output.String(), fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err, strings.TrimSpace(complaints.String()))
	}
	return output.String(), nil
}

// Logs are the last lines of each part of the cluster.
func (n *Node) Logs() string {
	var text strings.Builder
	for _, name := range daemons {
		fmt.Fprintf(&text, "%s:\n%s\n", name, n.folder().lastLines(name))
	}
	return text.String()
}

// LogFiles are the paths of the logs of each part.
func (n *Node) LogFiles() []string {
	var files []string
	for _, name := range daemons {
		files = append(files, n.folder().logFile(name))
	}
	return files
}

// AuditLog is the file with the requests of accounts of AuditedNamespace: a
// line of JSON for each, of what audit.k8s.io/v1 calls an event, without bodies.
func (n *Node) AuditLog() string { return n.folder().path("log", "audit.log") }

// Signal sends a signal such as SIGKILL to the processes of a container. The id
// is that of a pod's status.
func (n *Node) Signal(ctx context.Context, container, signal string) error {
	command := exec.CommandContext(ctx, n.host.programs["ctr"], "-a", n.folder().path("containerd.sock"), "-n", "k8s.io",
		"tasks", "kill", "-a", "-s", signal, strings.TrimPrefix(container, "containerd://"))
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("send %s to container %s: %w: %s", signal, container, err, output)
	}
	return nil
}
