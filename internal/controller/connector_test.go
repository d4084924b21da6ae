// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/controller"
)

func TestBackendConnector(t *testing.T) {
	const hash = "host-only"
	for name, tc := range map[string]struct {
		kind func(*v1alpha1.CacheBackend)
		pods []client.Object
		want []string
	}{
		"no engine":                     {offload, nil, []string{"ConnectorReady=False/NoEnginePods", "Ready=False/NoEnginePods", "Progressing=False/NoEnginePods", "Degraded=False/NotDegraded"}},
		"an engine that was not wired":  {offload, []client.Object{served(injectedPod("p", hash), true), served(somePod("q"), true)}, []string{"ConnectorReady=Unknown/ConnectorInjectionUnverified: 1 of 2 engine pods were not wired by this backend: q", "Ready=Unknown/ConnectorInjectionUnverified"}},
		"a pod without a server":        {offload, []client.Object{injectedPod("p", hash)}, []string{"ConnectorReady=False/MPServersNotReady: the container lmcache-mp-server of 1 of 1", "Ready=False/MPServersNotReady"}},
		"a server that is not ready":    {offload, []client.Object{served(injectedPod("p", hash), false)}, []string{"ConnectorReady=False/MPServersNotReady: the container lmcache-mp-server of 1 of 1"}},
		"an engine that is not ready":   {offload, []client.Object{notReady(served(injectedPod("p", hash), true))}, []string{"ConnectorReady=False/MPServersNotReady: 1 of 1 engine pods are not Ready: p"}},
		"all served":                    {offload, []client.Object{served(injectedPod("p", hash), true)}, []string{"ConnectorReady=True/ConnectorReady", "Ready=False/AwaitingFirstKVEvent", "Progressing=True/AwaitingFirstKVEvent", "T2Degraded=False/T2Serving"}},
		"served, as declared earlier":   {offload, []client.Object{served(injectedPod("p", "old"), true)}, []string{"ConnectorReady=True/ConnectorReady", "InjectionHealthy=False/StaleInjection"}},
		"HiCache without engines":       {hiCache, nil, []string{"ConnectorReady=False/NoEnginePods", "Ready=False/NoEnginePods"}},
		"HiCache, not wired":            {hiCache, []client.Object{somePod("p")}, []string{"ConnectorReady=Unknown/ConnectorInjectionUnverified", "Ready=Unknown/ConnectorInjectionUnverified"}},
		"HiCache, starting":             {hiCache, []client.Object{notReady(injectedPod("p", hash))}, []string{"ConnectorReady=False/RolloutInProgress", "Ready=False/RolloutInProgress", "Progressing=True/RolloutInProgress", "Degraded=False/NotDegraded"}},
		"HiCache, ready":                {hiCache, []client.Object{injectedPod("p", hash)}, []string{"ConnectorReady=True/ConnectorReady", "Ready=False/AwaitingFirstKVEvent"}},
		"engines that are only watched": {func(*v1alpha1.CacheBackend) {}, []client.Object{injectedPod("p", hash)}, []string{"ConnectorReady=", "T2Degraded=", "EngineCompatibility=", "RemoteStorageReady=", "Ready=False/AwaitingFirstKVEvent"}},
		"servers on nodes, none yet":    {onNodes, []client.Object{injectedPod("p", hash)}, []string{"ConnectorReady=False/NodeLocalServerPoolPending", "Ready=False/NodeLocalServerPoolPending"}},
		"a wired engine keeps ending":   {offload, []client.Object{crashing(injectedPod("p", hash), waitsToRestart, 1)}, []string{"EngineCompatibility=False/InjectedEngineCrashLooping: 1 wired engines keep ending: p"}},
		"something beside it does":      {offload, []client.Object{besideEngine(crashing(injectedPod("p", hash), waitsToRestart, 9))}, []string{"EngineCompatibility="}},
		"it runs once more":             {offload, []client.Object{crashing(injectedPod("p", hash), runsAgain, 3)}, []string{"EngineCompatibility=False/InjectedEngineCrashLooping"}},
		"it was restarted once":         {offload, []client.Object{crashing(injectedPod("p", hash), runsAgain, 1)}, []string{"EngineCompatibility="}},
		"an engine of others does":      {offload, []client.Object{crashing(somePod("p"), waitsToRestart, 9)}, []string{"EngineCompatibility="}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOffloadBench(t, newBench(t, append(tc.pods, someBackend(tc.kind))...))
			b.pass()
			b.want(tc.want...)
		})
	}
}

func TestBackendConnectorStatus(t *testing.T) {
	b := newOffloadBench(t, newBench(t, someBackend(offload),
		served(injectedPod("a", "host-only"), true), served(injectedPod("b", "host-only"), false), served(somePod("c"), true)))
	b.pass()
	want := &v1alpha1.ConnectorStatus{
		Mode: "Multiprocess", Topology: v1alpha1.TopologyPodLocal, MatchedEnginePods: 3, ReadyEnginePods: 3, DesiredServers: 3, ReadyServers: 2,
		CoveredEnginePods: 1, UncoveredEnginePods: 2, EnginePodCoverage: []v1alpha1.EnginePodCoverage{
			{Name: "b", Ready: true, Reason: "MPServersNotReady"}, {Name: "c", Ready: true, Reason: "ConnectorInjectionUnverified"},
			{Name: "a", Ready: true, Covered: true},
		},
	}
	if diff := cmp.Diff(want, b.status().Connector); diff != "" {
		t.Error(diff)
	}
	b.change(func(c *v1alpha1.CacheBackend) { c.Spec.Type, c.Spec.LMCache = v1alpha1.BackendMemory, nil })
	b.pass()
	if got := b.status().Connector; got != nil {
		t.Errorf("a backend that only watches keeps %+v", got)
	}
}

func TestBackendConnectorStatusIsBounded(t *testing.T) {
	objects := []client.Object{someBackend(offload), served(injectedPod("z", "host-only"), false)}
	for i := range 70 {
		objects = append(objects, served(injectedPod(fmt.Sprintf("p%02d", i), "host-only"), true))
	}
	b := newOffloadBench(t, newBench(t, objects...))
	b.pass()
	c := b.status().Connector
	if len(c.EnginePodCoverage) != 64 || c.EnginePodCoverage[0].Name != "z" || c.CoveredEnginePods != 70 || c.UncoveredEnginePods != 1 {
		t.Errorf("%d listed, first %+v, covered %d, uncovered %d", len(c.EnginePodCoverage), c.EnginePodCoverage[0], c.CoveredEnginePods, c.UncoveredEnginePods)
	}
}

// nodeServers report what they are told to.
type nodeServers struct {
	report *controller.NodeReport
	err    error
}

func (n *nodeServers) Keep(context.Context, *v1alpha1.CacheBackend, *adapter.Binding) (*controller.NodeReport, error) {
	return n.report, n.err
}

func (n *nodeServers) Forget(types.NamespacedName) {}

func TestBackendNodeServers(t *testing.T) {
	servers := &nodeServers{report: &controller.NodeReport{
		Status: metav1.ConditionFalse, Reason: "NodeLocalHostPortConflict", Message: "port 5555 is taken", Desired: 1,
		Coverage: []v1alpha1.EnginePodCoverage{{Name: "p", NodeName: "n", Reason: "NodeLocalHostPortConflict"}},
	}}
	b := newOffloadBench(t, newBench(t, someBackend(onNodes), injectedPod("p", "host-only")))
	b.with(func(o *controller.BackendOptions) { o.NodeServers = servers })
	b.pass()
	b.want("ConnectorReady=False/NodeLocalHostPortConflict: port 5555 is taken", "Ready=False/NodeLocalHostPortConflict")
	if c := b.status().Connector; c.UncoveredEnginePods != 1 || c.DesiredServers != 1 {
		t.Errorf("%+v", c)
	}
	servers.report = &controller.NodeReport{
		Status: metav1.ConditionTrue, Desired: 1, Ready: 1, Coverage: []v1alpha1.EnginePodCoverage{{Name: "p", NodeName: "n", Ready: true, Covered: true}},
	}
	b.pass()
	b.want("ConnectorReady=True/ConnectorReady", "Ready=False/AwaitingFirstKVEvent")
	servers.report, servers.err = nil, errors.New("refused")
	if _, err := b.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key("a", "cb")}); !errors.Is(err, servers.err) {
		t.Errorf("error %v", err)
	}
	b.want("ConnectorReady=False/NodeLocalServerPoolPending")
}

func TestBackendTier2(t *testing.T) {
	b := newOffloadBench(t, newBench(t, someBackend(offload), served(injectedPod("p", "host-only"), true)))
	for _, step := range []struct {
		rate *string
		want string
	}{
		{nil, "False/T2Serving: no query"}, {ptr("0"), "True/T2ZeroHitRate"}, {ptr("0.25"), "False/T2Serving: the tier"},
	} {
		object := get[v1alpha1.CacheBackend](t, b.cluster, key("a", "cb"))
		object.Status.IndexParticipation = &v1alpha1.IndexParticipation{T2HitRate: step.rate}
		if err := b.cluster.Status().Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		b.pass()
		b.want("T2Degraded=" + step.want)
	}
}

// The wait for the first event starts with the first sound base, survives
// flaps, and starts anew when there are no servers any more.
func TestBackendAnchorsTheWaitForTheFirstEvent(t *testing.T) {
	pod := served(injectedPod("p", "host-only"), false)
	b := newOffloadBench(t, newBench(t, someBackend(offload), pod))
	anchor := func(want time.Time) {
		t.Helper()
		switch at := b.status().FirstAvailableAt; {
		case want.IsZero() && at != nil, !want.IsZero() && (at == nil || !at.Time.Equal(want)):
			t.Errorf("the wait started at %v, want %v", at, want)
		}
	}
	server := func(ready bool) {
		t.Helper()
		pod.Status.InitContainerStatuses[0].Ready = ready
		if err := b.cluster.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		b.pass()
	}
	b.pass()
	anchor(time.Time{})
	b.advance(time.Hour)
	server(true)
	first := b.clock()
	anchor(first)
	b.want("Ready=False/AwaitingFirstKVEvent")
	b.advance(time.Hour)
	server(false)
	b.want("Ready=False/MPServersNotReady")
	server(true)
	anchor(first)
	b.want("Ready=False/NoKVEventsObserved", "Degraded=True/NoKVEventsObserved")
	b.change(func(c *v1alpha1.CacheBackend) { c.Spec.Type, c.Spec.LMCache = v1alpha1.BackendMemory, nil })
	b.pass()
	anchor(b.clock())
	b.want("Ready=False/AwaitingFirstKVEvent", "Degraded=False/NotDegraded")
}

func TestBackendConnectorEvents(t *testing.T) {
	pod := served(injectedPod("p", "host-only"), false)
	b := newOffloadBench(t, newBench(t, someBackend(offload), pod))
	b.pass()
	b.wantEvents("Warning MPServersNotReady")
	b.pass()
	b.wantEvents("")
	pod.Status.InitContainerStatuses[0].Ready = true
	if err := b.cluster.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	b.pass()
	b.wantEvents("Normal AwaitingFirstKVEvent, Normal ConnectorReady")
	crashed := crashing(pod, waitsToRestart, 2)
	if err := b.cluster.Status().Update(t.Context(), crashed); err != nil {
		t.Fatal(err)
	}
	b.pass()
	b.wantEvents("Warning MPServersNotReady, Warning InjectedEngineCrashLooping")
}
