// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

// nodeBackend asks for servers on nodes.
func nodeBackend(edits ...func(*v1alpha1.CacheBackend)) *v1alpha1.CacheBackend {
	return someBackend(append([]func(*v1alpha1.CacheBackend){func(b *v1alpha1.CacheBackend) {
		memory := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("5Gi")}
		b.Spec.Type = v1alpha1.BackendLMCache
		b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.TopologyNodeLocal, NodeLocal: &v1alpha1.NodeLocalLMCache{Server: v1alpha1.NodeLocalServer{
			Image: "ic.test/lmcache@sha256:" + strings.Repeat("a", 64), Port: 6555, HTTPPort: 6556, L1Capacity: resource.MustParse("4Gi"),
			MaxGPUWorkers: 2, MaxCPUWorkers: 2, Resources: corev1.ResourceRequirements{Requests: memory, Limits: memory},
		}}}
	}}, edits...)...)
}

// serverHash is the configuration of nodeBackend's servers.
func serverHash(t *testing.T, b *v1alpha1.CacheBackend) string {
	t.Helper()
	hash, err := nodelocal.ConfigHash(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

// nodeEngine is an engine of nodeBackend on a node.
func nodeEngine(t *testing.T, name, node string) *corev1.Pod {
	t.Helper()
	pod := injectedPod(name, "host-only")
	pod.Annotations[v1alpha1.AnnotationInjectedServerHash] = serverHash(t, nodeBackend())
	pod.Spec.NodeName = node
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
	return pod
}

// newNodeBench keeps the servers of backend a/cb. create may fail a creation.
func newNodeBench(t *testing.T, create func(client.Object) error, objects ...client.Object) *bench {
	t.Helper()
	b := newOffloadBench(t, newBench(t, objects...))
	b.cluster = interceptor.NewClient(b.cluster.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if create != nil {
				if err := create(o); err != nil {
					return err
				}
			}
			o.SetUID(types.UID("uid-" + o.GetName()))
			o.SetCreationTimestamp(metav1.NewTime(b.clock()))
			return c.Create(ctx, o, options...)
		},
	})
	return b.with(func(o *controller.BackendOptions) {
		o.Client = b.cluster
		o.NodeServers = controller.NewNodeKeeper(controller.NodeKeeperOptions{Client: b.cluster, Events: b.events, Now: b.clock})
	})
}

// servers are the pods of servers, by name.
func (b *bench) servers() []corev1.Pod {
	b.t.Helper()
	var list corev1.PodList
	if err := b.cluster.List(b.t.Context(), &list, client.HasLabels{v1alpha1.LabelLMCacheNodeServer}); err != nil {
		b.t.Fatal(err)
	}
	return list.Items
}

// only returns the one server there is.
func (b *bench) only() *corev1.Pod {
	b.t.Helper()
	all := b.servers()
	if len(all) != 1 {
		b.t.Fatalf("%d servers, want 1", len(all))
	}
	return &all[0]
}

// setServer changes the status of a server.
func (b *bench) setServer(pod *corev1.Pod, phase corev1.PodPhase, conditions ...corev1.PodCondition) {
	b.t.Helper()
	pod.Status.Phase, pod.Status.Conditions = phase, conditions
	if err := b.cluster.Status().Update(b.t.Context(), pod); err != nil {
		b.t.Fatal(err)
	}
}

// serve has a server run.
func (b *bench) serve(pod *corev1.Pod) {
	b.t.Helper()
	b.setServer(pod, corev1.PodRunning, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(b.clock())})
}

func (b *bench) remove(o client.Object) {
	b.t.Helper()
	if err := b.cluster.Delete(b.t.Context(), o); err != nil {
		b.t.Fatal(err)
	}
}

func TestNodeServersFollowTheEngines(t *testing.T) {
	engine := nodeEngine(t, "e1", "gpu-1")
	b := newNodeBench(t, nil, nodeBackend(), engine, nodeEngine(t, "e2", "gpu-2"), nodeEngine(t, "e3", ""))
	b.pass()
	var nodes []string
	for _, pod := range b.servers() {
		nodes = append(nodes, pod.Annotations[v1alpha1.AnnotationNodeLocalTargetNode])
		if pod.Name != nodelocal.ServerName("cb", nodes[len(nodes)-1]) || len(pod.Spec.Tolerations) != 1 || pod.Spec.Tolerations[0].Key != "gpu" {
			t.Errorf("server %s tolerates %+v", pod.Name, pod.Spec.Tolerations)
		}
	}
	slices.Sort(nodes)
	if !slices.Equal(nodes, []string{"gpu-1", "gpu-2"}) {
		t.Fatalf("servers on %v", nodes)
	}
	b.want("ConnectorReady=False/NodeLocalServerPoolPending", "Ready=False/NodeLocalServerPoolPending")
	b.pass()
	b.want("ConnectorReady=False/MPServersNotReady: 2 engine pods have a server that is not ready: e1, e2")
	for _, pod := range b.servers() {
		b.serve(&pod)
	}
	b.pass()
	b.want("ConnectorReady=False/EngineSchedulingPending")
	b.remove(nodeEngine(t, "e3", ""))
	b.pass()
	b.want("ConnectorReady=True/ConnectorReady", "Ready=False/AwaitingFirstKVEvent")
	c := b.status().Connector
	if c.Topology != v1alpha1.TopologyNodeLocal || c.DesiredServers != 2 || c.ReadyServers != 2 || c.CoveredEnginePods != 2 || len(c.EnginePodCoverage) != 2 ||
		c.EnginePodCoverage[0] != (v1alpha1.EnginePodCoverage{Name: "e1", NodeName: "gpu-1", Ready: true, Covered: true}) {
		t.Errorf("connector %+v", c)
	}
	patches := b.patches
	b.pass()
	if len(b.servers()) != 2 || b.patches != patches {
		t.Errorf("a pass without news left %d servers and wrote %d times", len(b.servers()), b.patches-patches)
	}

	b.remove(engine)
	b.pass()
	idle := get[corev1.Pod](t, b.cluster, key("a", nodelocal.ServerName("cb", "gpu-1")))
	if since := idle.Annotations[v1alpha1.AnnotationNodeLocalIdleSince]; since != birth.Format(time.RFC3339) {
		t.Errorf("idle since %q", since)
	}
	engine.ResourceVersion = ""
	if err := b.cluster.Create(t.Context(), engine); err != nil {
		t.Fatal(err)
	}
	b.pass()
	used := get[corev1.Pod](t, b.cluster, key("a", nodelocal.ServerName("cb", "gpu-1")))
	if _, marked := used.Annotations[v1alpha1.AnnotationNodeLocalIdleSince]; marked {
		t.Error("a server in use is marked")
	}
	b.remove(engine)
	b.pass()
	b.advance(5 * time.Minute)
	b.pass()
	if left := b.only(); left.Annotations[v1alpha1.AnnotationNodeLocalTargetNode] != "gpu-2" {
		t.Errorf("%s is left", left.Name)
	}
}

func TestNodeServersThatEndComeBackLater(t *testing.T) {
	b := newNodeBench(t, nil, nodeBackend(), nodeEngine(t, "e1", "gpu-1"))
	b.pass()
	b.events.take()
	for failures, backoff := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		pod := b.only()
		if got := pod.Annotations[v1alpha1.AnnotationNodeLocalFailures]; failures > 0 && got != fmt.Sprint(failures) {
			t.Errorf("%s failures, want %d", got, failures)
		}
		pod.Status.Reason = "Evicted"
		b.setServer(pod, corev1.PodFailed)
		if wait := b.pass(); wait != backoff && wait != 30*time.Second {
			t.Errorf("next look in %s, want %s", wait, backoff)
		}
		if b.only().Status.Phase != corev1.PodFailed {
			t.Errorf("the successor does not wait for %s", backoff)
		}
		b.want("ConnectorReady=False/MPServersNotReady")
		b.advance(backoff)
		b.events.take()
		b.pass()
		if b.only().Status.Phase == corev1.PodFailed {
			t.Errorf("no successor after %s", backoff)
		}
		b.wantEvents("Warning NodeLocalServerEnded")
	}
}

func TestNodeServersOfAnotherConfigurationWaitForTheirEngines(t *testing.T) {
	old := nodeEngine(t, "e1", "gpu-1")
	b := newNodeBench(t, nil, nodeBackend(), old)
	b.pass()
	b.serve(b.only())
	was := b.only().UID
	b.change(func(c *v1alpha1.CacheBackend) { c.Spec.LMCache.NodeLocal.Server.L1Capacity = resource.MustParse("3Gi") })
	changed := get[v1alpha1.CacheBackend](t, b.cluster, key("a", "cb"))
	newer := nodeEngine(t, "e2", "gpu-1")
	newer.Annotations[v1alpha1.AnnotationInjectedServerHash] = serverHash(t, changed)
	if err := b.cluster.Create(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	b.pass()
	if b.only().UID != was {
		t.Fatal("the server was replaced under an engine")
	}
	b.want("ConnectorReady=False/NodeLocalServerOutdated: 1 engine pods wait until engines of another configuration have left their node: e2")
	b.remove(old)
	b.events.take()
	b.pass()
	b.pass()
	if hash := b.only().Annotations[v1alpha1.AnnotationNodeLocalConfigHash]; hash != serverHash(t, changed) {
		t.Errorf("server of %s", hash)
	}
	if got := b.events.take(); !strings.Contains(got, "Normal NodeLocalServerReplaced") {
		t.Errorf("events %q", got)
	}
}

func TestNodeServersAreReplacedOnDemand(t *testing.T) {
	b := newNodeBench(t, nil, nodeBackend(), nodeEngine(t, "e1", "gpu-1"))
	b.pass()
	pod := b.only()
	pod.Annotations[v1alpha1.AnnotationNodeLocalReplace] = "now"
	if err := b.cluster.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	b.pass()
	b.pass()
	if _, asked := b.only().Annotations[v1alpha1.AnnotationNodeLocalReplace]; asked {
		t.Error("the server was not replaced")
	}
	b.change(func(c *v1alpha1.CacheBackend) {
		c.Spec.LMCache.NodeLocal.Server.MaxCPUWorkers = 7
		c.Annotations = map[string]string{v1alpha1.AnnotationNodeLocalReplace: "now"}
	})
	b.pass()
	b.pass()
	if got := b.only().Spec.Containers[0].Args; got[len(got)-1] != "7" {
		t.Errorf("the server runs with %v", got)
	}
}

func TestNodeServersNameWhatIsInTheirWay(t *testing.T) {
	name := nodelocal.ServerName("cb", "gpu-1")
	foreign := &corev1.Pod{ObjectMeta: object("a", name)}
	b := newNodeBench(t, nil, nodeBackend(), nodeEngine(t, "e1", "gpu-1"), foreign)
	if wait := b.pass(); wait != 10*time.Second {
		t.Errorf("next try in %s", wait)
	}
	b.want("ConnectorReady=False/NodeLocalNameConflict: 1 engine pods have no server, as another object has its name: e1: pod " + name + " belongs to something else")
	b.remove(foreign)
	b.pass()
	if n := len(b.servers()); n != 0 {
		t.Errorf("%d servers before the next try is due", n)
	}
	b.advance(10 * time.Second)
	b.pass()
	b.only()
	b.pass()
	b.want("ConnectorReady=False/MPServersNotReady")
}

func TestNodeServersNameWhoRefusesThem(t *testing.T) {
	denied := true
	b := newNodeBench(t, func(o client.Object) error {
		if denied {
			return apierrors.NewForbidden(corev1.Resource("pods"), o.GetName(), fmt.Errorf("violates PodSecurity %q", "restricted:latest"))
		}
		return nil
	}, nodeBackend(), nodeEngine(t, "e1", "gpu-1"))
	for _, backoff := range []time.Duration{10 * time.Second, 20 * time.Second} {
		if wait := b.pass(); wait != backoff {
			t.Errorf("next try in %s, want %s", wait, backoff)
		}
		b.want("ConnectorReady=False/NodeLocalServerRejected: 1 engine pods have no server, as the API server refused it: e1: pods")
		b.advance(backoff)
	}
	denied = false
	b.pass()
	b.only()
}

// Another leader, or an earlier pass, may have created what the cache does not
// show yet.
func TestNodeServersThatExistAlreadyAreTakenAsTheyAre(t *testing.T) {
	backend := nodeBackend()
	made := nodelocal.Pod(nodelocal.Order{Backend: backend, Node: "gpu-1", Hash: serverHash(t, backend)})
	hidden := made.DeepCopy()
	hidden.Labels = nil // out of the cache's sight
	b := newNodeBench(t, nil, backend, nodeEngine(t, "e1", "gpu-1"), hidden)
	b.pass()
	b.want("ConnectorReady=False/NodeLocalServerPoolPending")
	hidden.Labels = made.Labels
	if err := b.cluster.Update(t.Context(), hidden); err != nil {
		t.Fatal(err)
	}
	b.pass()
	b.want("ConnectorReady=False/MPServersNotReady")
	b.only()
}

func TestNodeServersReportPortsCrowdsAndCopies(t *testing.T) {
	b := newNodeBench(t, nil, nodeBackend(), nodeEngine(t, "e1", "gpu-1"))
	b.pass()
	b.setServer(b.only(), corev1.PodPending, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(birth),
		Message: "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
	})
	b.pass()
	b.want("ConnectorReady=False/NodeLocalHostPortConflict: 1 engine pods have a server that finds its ports taken on the node: e1: 0/1 nodes")
	b.serve(b.only())
	for _, name := range []string{"e2", "e3"} {
		if err := b.cluster.Create(t.Context(), nodeEngine(t, name, "gpu-1")); err != nil {
			t.Fatal(err)
		}
	}
	b.pass()
	b.want("ConnectorReady=False/NodeLocalWorkerCapacityExceeded")
	b.remove(nodeEngine(t, "e3", ""))
	twin := b.only().DeepCopy()
	twin.Name, twin.ResourceVersion = "copy", ""
	if err := b.cluster.Create(t.Context(), twin); err != nil {
		t.Fatal(err)
	}
	b.pass()
	b.want("ConnectorReady=False/AmbiguousNodeLocalServers")
	if left := b.only(); left.Name == "copy" {
		t.Error("the copy stays")
	}
	b.pass()
	b.want("ConnectorReady=True/ConnectorReady")
	if err := b.cluster.Create(t.Context(), somePod("stranger")); err != nil {
		t.Fatal(err)
	}
	b.pass()
	b.want("ConnectorReady=Unknown/ConnectorInjectionUnverified")
}

func TestNodeServersGoWithTheBackendsWish(t *testing.T) {
	engine := nodeEngine(t, "e1", "gpu-1")
	b := newNodeBench(t, nil, nodeBackend(), engine)
	b.pass()
	b.change(func(c *v1alpha1.CacheBackend) { c.Spec.Type, c.Spec.LMCache = v1alpha1.BackendMemory, nil })
	b.pass()
	b.only()
	b.want("ConnectorReady=")
	b.remove(engine)
	b.pass()
	if n := len(b.servers()); n != 0 {
		t.Errorf("%d servers without a backend that wants them", n)
	}
}

func TestNodeGateTimeoutsAreToldOnce(t *testing.T) {
	engine := nodeEngine(t, "e1", "gpu-1")
	gaveUp := func(at time.Time) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 1, FinishedAt: metav1.NewTime(at), Message: "no usable LMCache server at http://10.0.0.1:6556 within 600 s: URLError",
		}}
	}
	engine.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: nodelocal.GateContainer, State: gaveUp(birth)}}
	b := newNodeBench(t, nil, nodeBackend(), engine)
	b.pass()
	if got := b.events.take(); !strings.Contains(got, "Warning NodeLocalGateTimeout") {
		t.Errorf("events %q", got)
	}
	b.pass()
	b.events.take()
	b.pass()
	b.wantEvents("")
	again := get[corev1.Pod](t, b.cluster, key("a", "e1"))
	again.Status.InitContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	again.Status.InitContainerStatuses[0].LastTerminationState = gaveUp(birth.Add(time.Hour))
	if err := b.cluster.Status().Update(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	b.pass()
	b.wantEvents("Warning NodeLocalGateTimeout")
}
