// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/internal/kubetest"
	"github.com/inferencecache/inference-cache/internal/testcluster/node"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const (
	// patience is how long a change in the cluster may take to show.
	patience  = 2 * time.Minute
	pollEvery = 250 * time.Millisecond
	// restricted makes a namespace take pods that follow the Pod Security
	// standard of that name only.
	restricted = "pod-security.kubernetes.io/enforce=restricted"
)

// env is what one test works with: a namespace of the shared cluster.
type env struct {
	t    *testing.T
	node *node.Node
	// namespace is the test's own. Methods work in it unless they say
	// otherwise.
	namespace string
}

// newEnv makes a namespace with labels, such as restricted. It is removed when
// the test ends; if the test fails, what there was is kept (see keep).
func newEnv(t *testing.T, labels ...string) *env {
	t.Helper()
	e := &env{t: t, node: need(t), namespace: "test-" + strings.ToLower(rand.Text()[:8])}
	e.makeNamespace(e.namespace, labels...)
	return e
}

// sub is the same environment in a subtest.
func (e *env) sub(t *testing.T) *env { return &env{t: t, node: e.node, namespace: e.namespace} }

// makeNamespace makes another namespace, for the time of the test.
func (e *env) makeNamespace(name string, labels ...string) {
	e.t.Helper()
	e.t.Cleanup(func() {
		if e.t.Failed() {
			e.keep(name)
		}
		e.afterwards("delete", "namespace", name, "--wait=false", "--ignore-not-found")
	})
	e.createNamespace(name, labels...)
}

func (e *env) createNamespace(name string, labels ...string) {
	e.t.Helper()
	e.kubectl("create", "namespace", name)
	for _, label := range labels {
		e.kubectl("label", "namespace", name, label)
	}
	e.eventually("default account of "+name, func() error {
		_, err := e.try("", "-n", name, "get", "serviceaccount", "default")
		return err
	})
}

// later is for what is done when the test's context has ended.
func (e *env) later() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(e.t.Context()), patience)
}

// afterwards runs kubectl when the test's context has ended.
func (e *env) afterwards(args ...string) string {
	ctx, cancel := e.later()
	defer cancel()
	output, err := e.node.Kubectl(ctx, "", args...)
	if err != nil {
		e.t.Log(err)
	}
	return output
}

// try runs kubectl with input in the test's namespace; other namespaces are
// named in args. The error holds what kubectl complains of.
func (e *env) try(input string, args ...string) (string, error) {
	return e.node.Kubectl(e.t.Context(), input, append([]string{"-n", e.namespace}, args...)...)
}

// kubectl is try that must succeed.
func (e *env) kubectl(args ...string) string {
	e.t.Helper()
	output, err := e.try("", args...)
	if err != nil {
		e.t.Fatal(err)
	}
	return output
}

// apply creates or changes the objects of a YAML text, in the test's namespace
// where they name none.
func (e *env) apply(objects string) {
	e.t.Helper()
	if _, err := e.try(objects, "apply", "-f", "-"); err != nil {
		e.t.Fatal(err)
	}
}

// eventually repeats a check that the cluster makes pass.
func (e *env) eventually(what string, check func() error) {
	e.t.Helper()
	e.within(patience, what, check)
}

// within is eventually with another bound.
func (e *env) within(bound time.Duration, what string, check func() error) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), bound)
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			e.t.Fatalf("%s: not within %s: %v", what, bound, err)
		case <-ticker.C:
		}
	}
}

// waitFor waits for a condition, such as Ready or Available, of a resource such
// as pod/x.
func (e *env) waitFor(resource, condition string) {
	e.t.Helper()
	e.eventually(resource+" "+condition, func() error {
		value, err := e.try("", "get", resource, "-o", fmt.Sprintf(`jsonpath={.status.conditions[?(@.type=="%s")].status}`, condition))
		if err == nil && value != "True" {
			err = fmt.Errorf("condition %s is %q", condition, value)
		}
		return err
	})
}

// logs returns what a container has printed; the pod's only one if container
// is empty.
func (e *env) logs(pod, container string) string {
	e.t.Helper()
	args := []string{"logs", pod}
	if container != "" {
		args = append(args, "-c", container)
	}
	return e.kubectl(args...)
}

// exec runs a command in a container of a pod, the first if container is empty.
func (e *env) exec(pod, container string, command ...string) (string, error) {
	args := []string{"exec", pod}
	if container != "" {
		args = append(args, "-c", container)
	}
	return e.try("", append(append(args, "--"), command...)...)
}

// tool runs the test tool in a pod's container of that name, such as
// tool("client", "get", URL).
func (e *env) tool(pod string, args ...string) (string, error) {
	return e.exec(pod, "tool", append([]string{"/app"}, args...)...)
}

// toolPod is a pod, fit for restricted namespaces, whose tool serves HTTP on
// port 8000. It holds a token for callers of servers at lookupToken, and the
// servers' authority at lookupCA where the namespace has it in a config map
// inference-cache-server-ca.
const toolPod = `
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: NAME}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: tool
    image: ` + node.ToolImage + `
    imagePullPolicy: Never
    args: [serve, ":8000"]
    readinessProbe: {httpGet: {path: /, port: 8000}, periodSeconds: 1}
    securityContext:
      runAsNonRoot: true
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
      seccompProfile: {type: RuntimeDefault}
    volumeMounts: [{name: lookup, mountPath: /var/run/lookup, readOnly: true}]
  volumes:
  - name: lookup
    projected:
      sources:
      - serviceAccountToken: {path: token, audience: inferencecache.io/lookup, expirationSeconds: 3600}
      - configMap: {name: inference-cache-server-ca, optional: true}
`

// Files of a toolPod.
const (
	lookupToken = "/var/run/lookup/token"
	lookupCA    = "/var/run/lookup/ca.crt"
)

// startTool starts a toolPod and waits until it serves.
func (e *env) startTool(name string) {
	e.t.Helper()
	e.apply(strings.ReplaceAll(toolPod, "NAME", name))
	e.waitFor("pod/"+name, "Ready")
}

// lookup asks the installed servers from a toolPod, with its token. Flags are
// those of the tool, such as --tenant, --model and --bytes.
func (e *env) lookup(pod string, flags ...string) (*pb.LookupRouteResponse, error) {
	return e.lookupWith(pod, append(flags, "--server="+serverName+":9090")...)
}

// lookupAt asks one server by its address, from the tool pod client.
func (e *env) lookupAt(address string, flags ...string) (*pb.LookupRouteResponse, error) {
	return e.lookupWith("client", append(flags, "--server="+address+":9090", "--server-name="+serverName)...)
}

func (e *env) lookupWith(pod string, flags ...string) (*pb.LookupRouteResponse, error) {
	output, err := e.tool(pod, append([]string{"lookup", "--ca-file=" + lookupCA, "--token-file=" + lookupToken}, flags...)...)
	if err != nil {
		return nil, err
	}
	answer := &pb.LookupRouteResponse{}
	return answer, protojson.Unmarshal([]byte(output), answer)
}

// get reads an object into one of its type; it is created by new(T).
func (e *env) get(resource string, into any) error {
	text, err := e.try("", "get", resource, "-o", "json")
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), into)
}

// client returns a client with all rights that knows our resources.
func (e *env) client() client.Client {
	e.t.Helper()
	text, err := os.ReadFile(e.node.Kubeconfig)
	config, configErr := clientcmd.RESTConfigFromKubeConfig(text)
	if err := errors.Join(err, configErr); err != nil {
		e.t.Fatal(err)
	}
	config.QPS = -1
	c, err := client.New(config, client.Options{Scheme: kubetest.NewScheme(e.t)})
	if err != nil {
		e.t.Fatal(err)
	}
	return c
}
