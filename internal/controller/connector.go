// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
)

// Reasons that say whether engines reach the servers they offload to.
const (
	reasonConnectorReady      = "ConnectorReady"
	reasonConnectorUnverified = "ConnectorInjectionUnverified"
	reasonMPServersNotReady   = "MPServersNotReady"
	reasonHostOnlyActive      = "HostOnlyActive"
	reasonServerPoolPending   = "NodeLocalServerPoolPending"
)

const (
	// podServer is the LMCache server beside an engine.
	podServer = "lmcache-mp-server"
	// maxCoverage is how many engine pods a status lists.
	maxCoverage = 64
)

// connector is what the engines of an offloading backend have of their
// servers.
type connector struct {
	// ready is ConnectorReady.
	ready condition
	// base is Ready before all gates.
	base condition
	// status is nil where there are no servers.
	status *v1alpha1.ConnectorStatus
}

// NodeServers keeps one server on each node that hosts engines of a backend.
type NodeServers interface {
	// Keep brings the servers of a backend about. For a backend without such
	// servers it removes those that no engine uses and returns nil.
	Keep(ctx context.Context, b *v1alpha1.CacheBackend, binding *adapter.Binding) (*NodeReport, error)
	// Forget drops what is remembered of a backend that is gone.
	Forget(backend types.NamespacedName)
}

// NodeReport is what became of the servers on nodes.
type NodeReport struct {
	// Status of ConnectorReady, with Reason and Message unless it is True.
	Status          metav1.ConditionStatus
	Reason, Message string
	// Desired and Ready count servers.
	Desired, Ready int32
	// Coverage is that of each live engine.
	Coverage []v1alpha1.EnginePodCoverage
	// Next is when to look again though nothing happens; 0 is never.
	Next time.Duration
}

// connect says what the engines of a backend have of their servers; nil for a
// backend that only watches.
func connect(b *v1alpha1.CacheBackend, f *podFacts, nodes *NodeReport) *connector {
	if adapter.WatchesOnly(b) {
		return nil
	}
	switch {
	case adapter.Type(b) == v1alpha1.BackendSGLangHiCache:
		return hierarchical(b, f)
	case b.Spec.LMCache != nil && b.Spec.LMCache.Topology == v1alpha1.TopologyNodeLocal:
		return onNodes(b, f, nodes)
	}
	return inPods(b, f)
}

// verified engine pods were wired by the backend. Those that it wired as it was
// declared earlier keep serving and count.
func (f *podFacts) verified(pod *corev1.Pod) bool { return slices.Contains(f.injected, pod.Name) }

// engines says of engines without servers of their own why they are not all
// wired and ready.
func (f *podFacts) engines(notReady string) condition {
	c := condition{kind: v1alpha1.ConditionConnectorReady, status: metav1.ConditionFalse}
	var unverified, unready []string
	for _, pod := range f.live {
		switch _, ready := readySince(pod); {
		case !f.verified(pod):
			unverified = append(unverified, pod.Name)
		case !ready:
			unready = append(unready, pod.Name)
		}
	}
	switch {
	case len(f.live) == 0:
		c.reason, c.message = reasonNoEnginePods, "no engine pod is there to be wired"
	case unverified != nil:
		c.status, c.reason = metav1.ConditionUnknown, reasonConnectorUnverified
		c.message = fmt.Sprintf("%d of %d engine pods were not wired by this backend: %s; InjectionHealthy says why", len(unverified), len(f.live), some(unverified, examplePods))
	case unready != nil:
		c.reason = notReady
		c.message = fmt.Sprintf("%d of %d engine pods are not Ready: %s", len(unready), len(f.live), some(unready, examplePods))
	default:
		c.status, c.reason = metav1.ConditionTrue, reasonConnectorReady
		c.message = fmt.Sprintf("all %d engine pods are wired and Ready", len(f.live))
	}
	return c
}

// hierarchical engines offload to memory of their own. There is no server that
// could be missing.
func hierarchical(_ *v1alpha1.CacheBackend, f *podFacts) *connector {
	c := &connector{ready: f.engines(reasonRolloutInProgress)}
	c.base = c.ready
	if c.ready.status == metav1.ConditionTrue {
		c.base.reason, c.base.message = reasonHostOnlyActive, c.ready.message+" and offload to the memory of their host"
	}
	return c
}

// inPods looks at the server in each engine pod.
func inPods(b *v1alpha1.CacheBackend, f *podFacts) *connector {
	c := &connector{ready: f.engines(reasonMPServersNotReady), status: connectorStatus(b, f)}
	var lacking []string
	for _, pod := range f.live {
		cover := v1alpha1.EnginePodCoverage{Name: pod.Name, NodeName: pod.Spec.NodeName}
		_, cover.Ready = readySince(pod)
		served := serverReady(pod)
		if served {
			c.status.ReadyServers++
		}
		switch {
		case !f.verified(pod):
			cover.Reason = reasonConnectorUnverified
		case !served:
			cover.Reason = reasonMPServersNotReady
			lacking = append(lacking, pod.Name)
		default:
			cover.Covered = true
		}
		c.status.EnginePodCoverage = append(c.status.EnginePodCoverage, cover)
	}
	c.status.DesiredServers = int32(len(f.live))
	bound(c.status)
	if lacking != nil && c.ready.status != metav1.ConditionUnknown {
		c.ready.status, c.ready.reason = metav1.ConditionFalse, reasonMPServersNotReady
		c.ready.message = fmt.Sprintf("the container %s of %d of %d engine pods is not ready or not there: %s", podServer, len(lacking), len(f.live), some(lacking, examplePods))
	}
	c.base = c.ready
	return c
}

// onNodes takes over what is said of servers on nodes.
func onNodes(b *v1alpha1.CacheBackend, f *podFacts, nodes *NodeReport) *connector {
	c := &connector{ready: f.engines(reasonMPServersNotReady), status: connectorStatus(b, f)}
	switch {
	case len(f.live) == 0:
	case nodes == nil:
		c.ready.status, c.ready.reason, c.ready.message = metav1.ConditionFalse, reasonServerPoolPending, "no server has been scheduled yet"
	default:
		c.status.DesiredServers, c.status.ReadyServers, c.status.EnginePodCoverage = nodes.Desired, nodes.Ready, nodes.Coverage
		if nodes.Status != metav1.ConditionTrue {
			c.ready.status, c.ready.reason, c.ready.message = nodes.Status, nodes.Reason, nodes.Message
		}
	}
	bound(c.status)
	c.base = c.ready
	return c
}

func connectorStatus(b *v1alpha1.CacheBackend, f *podFacts) *v1alpha1.ConnectorStatus {
	s := &v1alpha1.ConnectorStatus{Mode: v1alpha1.ConnectorMultiprocess, Topology: v1alpha1.TopologyPodLocal}
	if b.Spec.LMCache != nil {
		s.Topology = b.Spec.LMCache.Topology
	}
	if f.matched != nil {
		s.MatchedEnginePods = *f.matched
	}
	for _, pod := range f.live {
		if _, ready := readySince(pod); ready {
			s.ReadyEnginePods++
		}
	}
	return s
}

// bound counts the coverage and keeps the first entries, uncovered engines
// before others.
func bound(s *v1alpha1.ConnectorStatus) {
	for _, c := range s.EnginePodCoverage {
		if c.Covered {
			s.CoveredEnginePods++
		} else {
			s.UncoveredEnginePods++
		}
	}
	rank := func(c v1alpha1.EnginePodCoverage) int {
		if c.Covered {
			return 1
		}
		return 0
	}
	slices.SortFunc(s.EnginePodCoverage, func(a, b v1alpha1.EnginePodCoverage) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.Name, b.Name))
	})
	if len(s.EnginePodCoverage) > maxCoverage {
		s.EnginePodCoverage = s.EnginePodCoverage[:maxCoverage]
	}
}

// serverReady says whether the server in an engine pod runs and is ready.
func serverReady(pod *corev1.Pod) bool {
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if status.Name == podServer {
			return status.State.Running != nil && status.Ready
		}
	}
	return false
}

// judgeConnector writes what the engines have of their servers into the
// status.
func judgeConnector(b *v1alpha1.CacheBackend, s *sighting) {
	if s.connector == nil {
		b.Status.Connector = nil
		meta.RemoveStatusCondition(&b.Status.Conditions, v1alpha1.ConditionConnectorReady)
		return
	}
	b.Status.Connector = s.connector.status
	put(b, s.now, s.connector.ready)
}

// baseOf is Ready before all gates: that of the connector, and in backends
// whose engines do not serve without their storage also that of the storage.
func (s *sighting) baseOf(b *v1alpha1.CacheBackend) condition {
	base := condition{kind: v1alpha1.ConditionReady, status: metav1.ConditionTrue, reason: reasonEventsOnlyActive}
	if s.connector == nil {
		base.message = "the engines are watched"
		return base
	}
	base = s.connector.base
	if s.remote != nil && !adapter.FailsOpen(b) && (base.status == metav1.ConditionTrue || s.remote.verdict.status != metav1.ConditionTrue) {
		base = s.remote.verdict
	}
	base.kind = v1alpha1.ConditionReady
	return base
}
