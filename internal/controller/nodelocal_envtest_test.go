// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package controller_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/kubetest"
	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

// nodeCluster is an API server with one NodeLocal backend.
type nodeCluster struct {
	*kubetest.Cluster
	t         *testing.T
	namespace string
	backend   *v1alpha1.CacheBackend
}

func newNodeCluster(t *testing.T, cluster *kubetest.Cluster, namespace string, labels map[string]string) *nodeCluster {
	t.Helper()
	cluster.Namespace(t, namespace, labels)
	n := &nodeCluster{Cluster: cluster, t: t, namespace: namespace, backend: nodeBackend()}
	n.backend.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: "cb"}
	n.backend.Spec.LMCache.NodeLocal.IdleRetentionSeconds = ptr(int32(0))
	n.create(n.backend)
	return n
}

func (n *nodeCluster) create(o client.Object) {
	n.t.Helper()
	if err := n.Client.Create(n.t.Context(), o); err != nil {
		n.t.Fatal(err)
	}
}

// engine creates a Ready engine that the backend has wired, on a node.
func (n *nodeCluster) engine(name, node string) *corev1.Pod {
	n.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: name, Labels: map[string]string{v1alpha1.LabelCacheDomain: "d"}}}
	pod.Annotations = map[string]string{
		v1alpha1.AnnotationInjectedBy: n.namespace + "/cb", v1alpha1.AnnotationInjectedByUID: string(n.backend.UID),
		v1alpha1.AnnotationInjectedServerHash: serverHash(n.t, n.backend),
	}
	pod.Spec.NodeName = node
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
	seccomp := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr(true), SeccompProfile: seccomp}
	pod.Spec.Containers = []corev1.Container{{Name: "vllm", Image: "vllm", SecurityContext: &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}}}
	n.create(pod)
	n.status(pod, func(s *corev1.PodStatus) { *s = runs() })
	return pod
}

// runs is the status of a pod that serves.
func runs() corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
	}}
}

// status changes what the kubelet or the scheduler would.
func (n *nodeCluster) status(pod *corev1.Pod, change func(*corev1.PodStatus)) {
	n.t.Helper()
	eventually(n.t, "the status of "+pod.Name+" is written", func() bool {
		fresh := get[corev1.Pod](n.t, n.Client, client.ObjectKeyFromObject(pod))
		change(&fresh.Status)
		return n.Client.Status().Update(n.t.Context(), fresh) == nil
	})
}

// remove deletes a pod as the kubelet would, without grace.
func (n *nodeCluster) remove(pod *corev1.Pod) {
	n.t.Helper()
	if err := n.Client.Delete(n.t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *nodeCluster) servers() []corev1.Pod {
	n.t.Helper()
	var list corev1.PodList
	if err := n.Client.List(n.t.Context(), &list, client.InNamespace(n.namespace), client.HasLabels{v1alpha1.LabelLMCacheNodeServer}); err != nil {
		n.t.Fatal(err)
	}
	return list.Items
}

// wants waits for ConnectorReady to begin with a text.
func (n *nodeCluster) wants(want string) {
	n.t.Helper()
	got := ""
	defer func() {
		if n.t.Failed() {
			n.t.Logf("ConnectorReady is %s", got)
		}
	}()
	eventually(n.t, "ConnectorReady is "+want, func() bool {
		got = conditionOf(get[v1alpha1.CacheBackend](n.t, n.Client, key(n.namespace, "cb")).Status.Conditions, "ConnectorReady")
		return strings.HasPrefix(got, want)
	})
}

func startNodeController(t *testing.T, cluster *kubetest.Cluster, elect bool) (stop func()) {
	t.Helper()
	return startController(t, cluster, startServer(t, "1"), elect, func(o *controller.Options) {
		o.Adapters, o.NodeServers = everyAdapter(t), true
	})
}

func TestEnvtestNodeServers(t *testing.T) {
	cluster := kubetest.Start(t, "../../deploy/crds")
	n := newNodeCluster(t, cluster, "team-a", nil)
	startNodeController(t, cluster, false)
	n.wants("False/NoEnginePods")

	pending := n.engine("e0", "")
	n.wants("False/NodeLocalServerPoolPending")
	n.remove(pending)

	first := n.engine("e1", "gpu-1")
	n.wants("False/MPServersNotReady")
	server := &n.servers()[0]
	if server.Spec.NodeName != "" || !server.Spec.HostNetwork || server.Spec.Tolerations[0].Key != "gpu" || len(server.OwnerReferences) != 1 {
		t.Errorf("server %+v", server.Spec)
	}
	n.status(server, func(s *corev1.PodStatus) {
		s.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.Now(),
			Message: "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports",
		}}
	})
	n.wants("False/NodeLocalHostPortConflict")
	n.status(server, func(s *corev1.PodStatus) { *s = runs() })
	n.wants("True/ConnectorReady")

	second, third := n.engine("e2", "gpu-1"), n.engine("e3", "gpu-1")
	n.wants("False/NodeLocalWorkerCapacityExceeded")
	n.remove(second)
	n.remove(third)
	waiting := n.engine("e4", "")
	n.wants("False/EngineSchedulingPending")
	n.remove(waiting)
	stranger := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "stranger", Labels: map[string]string{v1alpha1.LabelCacheDomain: "d"}}}
	stranger.Spec.Containers = []corev1.Container{{Name: "vllm", Image: "vllm"}}
	n.create(stranger)
	n.wants("Unknown/ConnectorInjectionUnverified")
	n.remove(stranger)

	twin := server.DeepCopy()
	twin.ObjectMeta = metav1.ObjectMeta{
		Namespace: "team-a", Name: "copy", Labels: server.Labels, Annotations: server.Annotations, OwnerReferences: server.OwnerReferences,
		Finalizers: []string{"test.io/stay"},
	}
	twin.Status = corev1.PodStatus{}
	n.create(twin)
	eventually(t, "the copy is deleted", func() bool {
		return get[corev1.Pod](t, cluster.Client, key("team-a", "copy")).DeletionTimestamp != nil
	})
	n.wants("True/ConnectorReady")

	n.status(first, func(s *corev1.PodStatus) {
		s.InitContainerStatuses = []corev1.ContainerStatus{{Name: nodelocal.GateContainer, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 1, FinishedAt: metav1.Now(), Message: "no usable LMCache server at http://10.0.0.1:6556 within 600 s: URLError",
		}}}}
	})
	eventually(t, "the gate's end is told", func() bool {
		var events eventsv1.EventList
		if err := cluster.Client.List(t.Context(), &events, client.InNamespace("team-a")); err != nil {
			t.Fatal(err)
		}
		for _, e := range events.Items {
			if e.Reason == "NodeLocalGateTimeout" && e.Regarding.Name == "e1" && strings.Contains(e.Note, "within 600 s") {
				return true
			}
		}
		return false
	})
	n.remove(first)
	eventually(t, "the last engine takes its server along", func() bool {
		return !slices.ContainsFunc(n.servers(), func(pod corev1.Pod) bool { return pod.DeletionTimestamp == nil })
	})
}

func TestEnvtestNodeServersThatCannotBe(t *testing.T) {
	cluster := kubetest.Start(t, "../../deploy/crds")
	restricted := newNodeCluster(t, cluster, "team-a", map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	taken := newNodeCluster(t, cluster, "team-b", nil)
	foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: nodelocal.ServerName("cb", "gpu-1")}}
	foreign.Spec.Containers = []corev1.Container{{Name: "other", Image: "other"}}
	taken.create(foreign)
	startNodeController(t, cluster, false)
	restricted.engine("e1", "gpu-1")
	taken.engine("e1", "gpu-1")
	restricted.wants("False/NodeLocalServerRejected")
	taken.wants("False/NodeLocalNameConflict")
	taken.remove(foreign)
	taken.wants("False/MPServersNotReady") // after the back-off
}

// Whoever leads, a node has one server.
func TestEnvtestNodeServersSurviveTheLeader(t *testing.T) {
	cluster := kubetest.Start(t, "../../deploy/crds")
	cluster.Namespace(t, "inference-cache-system", nil)
	n := newNodeCluster(t, cluster, "team-a", nil)
	n.engine("e1", "gpu-1")
	stop := startNodeController(t, cluster, true)
	n.wants("False/MPServersNotReady")
	first := n.servers()
	startNodeController(t, cluster, true)
	stop()
	n.engine("e2", "gpu-2")
	eventually(t, "the other leader serves the new node", func() bool { return len(n.servers()) == 2 })
	n.wants("False/MPServersNotReady: 2 engine pods")
	if servers := n.servers(); len(servers) != 2 {
		t.Errorf("%d servers on two nodes", len(servers))
	}
	if again := get[corev1.Pod](t, cluster.Client, client.ObjectKeyFromObject(&first[0])); again.UID != first[0].UID {
		t.Error("the first node's server was replaced")
	}
}
