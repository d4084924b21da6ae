// SPDX-License-Identifier: Apache-2.0

package testcluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Options of a Cluster. The zero value works.
type Options struct {
	// Cache holds the programs. Default CacheDir.
	Cache string
	// Dir keeps state and logs and must exist. Default a temporary directory
	// that Stop removes.
	Dir string
	// APIServerFlags are added to those of the API server. Default none.
	APIServerFlags []string
	// StartTimeout bounds the wait for the API server. Default 90s.
	StartTimeout time.Duration
}

const (
	stopTimeout   = 15 * time.Second
	probeInterval = 100 * time.Millisecond
)

// Cluster is a running API server with its etcd, both on loopback.
type Cluster struct {
	// URL is the API server's base, CAFile verifies it.
	URL, CAFile string
	// AdminCertFile and AdminKeyFile identify Admin.
	AdminCertFile, AdminKeyFile string
	// Admin is a client with all rights.
	Admin *Client

	dir       string
	ownDir    bool
	processes []*process // in the order they started
}

// Start runs a cluster until Stop. The error is ErrNotBuilt without the
// programs.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if options.Cache == "" {
		var err error
		if options.Cache, err = CacheDir(); err != nil {
			return nil, err
		}
	}
	if options.StartTimeout <= 0 {
		options.StartTimeout = 90 * time.Second
	}
	programs, err := Find(options.Cache)
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: options.Dir}
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "testcluster-"); err != nil {
			return nil, err
		}
		c.ownDir = true
	}
	ctx, cancel := context.WithTimeout(ctx, options.StartTimeout)
	defer cancel()
	if err := c.start(ctx, programs, options.APIServerFlags); err != nil {
		return nil, errors.Join(fmt.Errorf("start cluster: %w", err), c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, programs Binaries, flags []string) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	pki, err := NewPKI(c.path("pki"))
	if err != nil {
		return err
	}
	etcd, peers := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	if err := c.run("etcd", programs.Etcd,
		"--data-dir="+c.path("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers,
	); err != nil {
		return err
	}
	c.URL, c.CAFile = "https://127.0.0.1:"+ports[2], pki.CA
	c.AdminCertFile, c.AdminKeyFile = pki.AdminCert, pki.AdminKey
	if c.Admin, err = newAdmin(c.URL, pki); err != nil {
		return err
	}
	if err := c.run("kube-apiserver", programs.APIServer, append([]string{
		"--etcd-servers=" + etcd,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + ports[2],
		"--tls-cert-file=" + pki.ServerCert, "--tls-private-key-file=" + pki.ServerKey, "--client-ca-file=" + pki.CA,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + pki.AccountPublic, "--service-account-signing-key-file=" + pki.AccountKey,
		"--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
		"--disable-admission-plugins=ServiceAccount", "--cert-dir=" + c.path("certs"),
	}, flags...)...); err != nil {
		return err
	}
	return c.await(ctx, "API server", func() error { return c.Admin.Ready(ctx) })
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// freePorts returns ports nobody listens on now.
func freePorts(n int) (ports []string, err error) {
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close() // after all were chosen, so that they differ
		_, port, err := net.SplitHostPort(listener.Addr().String())
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// await repeats a check until it passes, a process ends or ctx does.
func (c *Cluster) await(ctx context.Context, what string, check func() error) error {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		for _, p := range c.processes {
			if p.exited() {
				return fmt.Errorf("%s ended: %s", p.name, p.lastLines())
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the %s: %w", what, err)
		case <-ticker.C:
		}
	}
}

// Logs are the last lines of each process.
func (c *Cluster) Logs() string {
	var text strings.Builder
	for _, p := range c.processes {
		fmt.Fprintf(&text, "%s:\n%s\n", p.name, p.lastLines())
	}
	return text.String()
}

// StopAPIServer ends the API server and leaves the rest running.
func (c *Cluster) StopAPIServer() error {
	last := c.processes[len(c.processes)-1]
	c.processes = c.processes[:len(c.processes)-1]
	return last.stop()
}

// Stop ends all processes, the API server before etcd.
func (c *Cluster) Stop() error {
	var errs []error
	for i := len(c.processes) - 1; i >= 0; i-- {
		errs = append(errs, c.processes[i].stop())
	}
	c.processes = nil
	if c.Admin != nil {
		c.Admin.http.CloseIdleConnections()
	}
	if c.ownDir {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}

// process is a program that runs.
type process struct {
	name    string
	command *exec.Cmd
	logFile string
	ended   chan struct{}
}

func (c *Cluster) run(name, program string, args ...string) error {
	log, err := os.Create(c.path(name + ".log"))
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	command := exec.Command(program, args...)
	command.Stdout, command.Stderr, command.Dir = log, log, c.dir
	if err := command.Start(); err != nil {
		return err
	}
	p := &process{name: name, command: command, logFile: log.Name(), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = command.Wait() // how it ended is in its log
	}()
	c.processes = append(c.processes, p)
	return nil
}

func (p *process) exited() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// stop asks the process to end and kills it when it does not.
func (p *process) stop() error {
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	patience := time.NewTimer(stopTimeout)
	defer patience.Stop()
	select {
	case <-p.ended:
		return nil
	case <-patience.C:
	}
	err := p.command.Process.Kill()
	<-p.ended
	return err
}

// lastLines are the end of the process's log.
func (p *process) lastLines() string {
	text, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(len(lines)-5, 0):], "\n")
}
