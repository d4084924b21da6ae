// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/propagate"
)

// rolePod is an engine pod with a label role, Ready or not, on a node.
func rolePod(name, role, node string, ready bool) *corev1.Pod {
	pod := somePod(name)
	pod.Labels["role"] = role
	pod.Spec.NodeName = node
	if !ready {
		pod.Status.Conditions = nil
	}
	return pod
}

func pool(name, role string) v1alpha1.PDPool {
	return v1alpha1.PDPool{Name: name, MatchLabels: map[string]string{"role": role}}
}

func someTopology(edits ...func(*v1alpha1.PDTopologySpec)) *v1alpha1.PDTopology {
	t := &v1alpha1.PDTopology{ObjectMeta: object("a", "t")}
	t.Spec.Model, t.Spec.Transport = "m", "NIXL"
	t.Spec.PrefillPools = []v1alpha1.PDPool{pool("p", "prefill")}
	t.Spec.DecodePools = []v1alpha1.PDPool{pool("d", "decode")}
	for _, edit := range edits {
		edit(&t.Spec)
	}
	return t
}

// topologyPass reconciles once and returns what is resolved.
func topologyPass(t *testing.T, cluster client.Client, rows *controller.Rows) (v1alpha1.PDTopologyStatus, []propagate.Topology) {
	t.Helper()
	reconciler := controller.NewTopologyReconciler(controller.TopologyOptions{
		Client: cluster, Rows: rows, Topologies: controller.NewTopologies(func() {}, slog.New(slog.DiscardHandler)),
	})
	if _, err := reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key("a", "t")}); err != nil {
		t.Fatal(err)
	}
	all, err := reconciler.All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return get[v1alpha1.PDTopology](t, cluster, key("a", "t")).Status, all
}

func TestTopologyConditions(t *testing.T) {
	pods := func() []client.Object {
		return []client.Object{rolePod("p1", "prefill", "n1", true), rolePod("d1", "decode", "n1", true), rolePod("d2", "decode", "n2", false)}
	}
	both := rolePod("b", "prefill", "n1", true)
	both.Labels["tier"] = "decode"
	for name, tc := range map[string]struct {
		edit     func(*v1alpha1.PDTopologySpec)
		extra    client.Object
		accepted string
		resolved string
	}{
		"all ready": {accepted: "True/Accepted", resolved: "True/AllPoolsReady"},
		"one name for both roles": {
			edit:     func(s *v1alpha1.PDTopologySpec) { s.DecodePools[0].Name = "p" },
			accepted: "False/DuplicatePool",
		},
		"an accelerator nobody declared": {
			edit:     func(s *v1alpha1.PDTopologySpec) { s.DecodePools[0].AcceleratorType = "x" },
			accepted: "False/UnknownAcceleratorType",
		},
		"a pool that selects everything": {
			edit:     func(s *v1alpha1.PDTopologySpec) { s.DecodePools[0].MatchLabels = nil },
			accepted: "False/EmptySelector",
		},
		"pools that say the same": {
			edit:     func(s *v1alpha1.PDTopologySpec) { s.DecodePools[0].MatchLabels = s.PrefillPools[0].MatchLabels },
			accepted: "False/OverlappingPools",
		},
		"a pod in both roles": {
			edit:     func(s *v1alpha1.PDTopologySpec) { s.DecodePools[0].MatchLabels = map[string]string{"tier": "decode"} },
			extra:    both,
			accepted: `False/OverlappingPools: pod b is in prefill pool "p" and in decode pool "d"`,
		},
		"a pool without pods": {
			edit:     func(s *v1alpha1.PDTopologySpec) { s.PrefillPools = append(s.PrefillPools, pool("q", "none")) },
			accepted: "True/Accepted", resolved: `False/PoolEmpty: prefill pool "q" has no ready pod of 0`,
		},
		"a role without pools": {
			edit:     func(s *v1alpha1.PDTopologySpec) { s.PrefillPools = nil },
			accepted: "True/Accepted", resolved: "False/PoolEmpty: there is no prefill pool",
		},
		"a pool that wants none": {
			edit: func(s *v1alpha1.PDTopologySpec) {
				none := pool("q", "none")
				none.Replicas = ptr(int32(0))
				s.PrefillPools = append(s.PrefillPools, none)
			},
			accepted: "True/Accepted", resolved: "True/AllPoolsReady",
		},
		"fewer than wanted": {
			edit:     func(s *v1alpha1.PDTopologySpec) { s.DecodePools[0].Replicas = ptr(int32(2)) },
			accepted: "True/Accepted", resolved: `False/BelowReplicas: decode pool "d" has 1 ready pods, 2 wanted`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.edit == nil {
				tc.edit = func(*v1alpha1.PDTopologySpec) {}
			}
			objects := append(pods(), someTopology(tc.edit))
			if tc.extra != nil {
				objects = append(objects, tc.extra)
			}
			status, all := topologyPass(t, newCluster(t, objects...), nil)
			if got := conditionOf(status.Conditions, "Accepted"); !strings.HasPrefix(got, tc.accepted) {
				t.Errorf("Accepted is %q, want %q", got, tc.accepted)
			}
			if got := conditionOf(status.Conditions, "Resolved"); tc.resolved == "" && got != "" || !strings.HasPrefix(got, tc.resolved) {
				t.Errorf("Resolved is %q, want %q", got, tc.resolved)
			}
			programmed := conditionOf(status.Conditions, "Programmed")
			if refused := tc.resolved == ""; refused != strings.HasPrefix(programmed, "False/NotEffective") || refused != (len(all) == 0) {
				t.Errorf("Programmed is %q with %d topologies to push", programmed, len(all))
			}
		})
	}
}

func TestTopologyReplicaIDs(t *testing.T) {
	node := func(name, gpu string) client.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"gpu": gpu}}}
	}
	ranked := someBackend(func(c *v1alpha1.CacheBackend) {
		c.Spec.Observation = &v1alpha1.BackendObservation{KVEvents: &v1alpha1.KVEventsSpec{DataParallelRanks: ptr(int32(2))}}
	})
	leaving := rolePod("d9", "decode", "n1", true)
	leaving.Status.Phase = corev1.PodFailed
	plain := rolePod("d0", "decode", "n1", true)
	delete(plain.Labels, v1alpha1.LabelCacheDomain)
	base := []client.Object{
		rolePod("p2", "prefill", "n1", true), rolePod("p1", "prefill", "n2", true),
		rolePod("d1", "decode", "n1", true), rolePod("d2", "decode", "n1", false), leaving, plain, node("n1", "h100"), node("n2", "l4"),
	}
	onH100 := func(s *v1alpha1.PDTopologySpec) {
		s.AcceleratorTypes = []v1alpha1.PDAcceleratorType{{Name: "big", MatchLabels: map[string]string{"gpu": "h100"}}}
		s.PrefillPools[0].AcceleratorType = "big"
	}
	for name, tc := range map[string]struct {
		objects []client.Object
		edit    func(*v1alpha1.PDTopologySpec)
		rows    *controller.Rows
		want    propagate.Topology
	}{
		"ready engine pods, sorted":  {want: propagate.Topology{Prefill: []string{"p1", "p2"}, Decode: []string{"d1"}}},
		"on nodes with a label only": {edit: onH100, want: propagate.Topology{Prefill: []string{"p2"}, Decode: []string{"d1"}}},
		"all ranks declared": {
			objects: []client.Object{ranked},
			want:    propagate.Topology{Prefill: []string{"p1#0", "p1#1", "p2#0", "p2#1"}, Decode: []string{"d1#0", "d1#1"}},
		},
		"all ranks that engines are started with": {
			objects: []client.Object{
				onRanks(rolePod("p3", "prefill", "n1", true), engineArgs("-dp", "2")),
				onRanks(rolePod("p4", "prefill", "n1", true), withPublisher("--data-parallel-ranks=2")),
			},
			want: propagate.Topology{Prefill: []string{"p1", "p2", "p3#0", "p3#1", "p4#0", "p4#1"}, Decode: []string{"d1"}},
		},
		"ranks declared after a publisher was injected": {
			objects: []client.Object{ranked, onRanks(rolePod("p3", "prefill", "n1", true), withPublisher("--data-parallel-ranks=3"))},
			want: propagate.Topology{
				Prefill: []string{"p1#0", "p1#1", "p2#0", "p2#1", "p3#0", "p3#1", "p3#2"}, Decode: []string{"d1#0", "d1#1"},
			},
		},
		"all ranks in the index": {
			rows: func() *controller.Rows { r := new(controller.Rows); r.Set(snapshotOf("d1#1", "d1#0", "p1")); return r }(),
			want: propagate.Topology{Prefill: []string{"p1", "p2"}, Decode: []string{"d1#0", "d1#1"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.edit == nil {
				tc.edit = func(*v1alpha1.PDTopologySpec) {}
			}
			objects := []client.Object{someTopology(tc.edit)}
			objects = append(append(objects, base...), tc.objects...)
			_, all := topologyPass(t, newCluster(t, objects...), tc.rows)
			tc.want.Name, tc.want.Generation, tc.want.Model, tc.want.Transport = key("a", "t"), 1, "m", "NIXL"
			if diff := cmp.Diff([]propagate.Topology{tc.want}, all); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// onRanks gives an engine pod its containers.
func onRanks(pod *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
	pod.Spec.Containers = []corev1.Container{{Name: "vllm", Image: "vllm"}}
	change(pod)
	return pod
}

func TestTopologyPoolCounts(t *testing.T) {
	status, _ := topologyPass(t, newCluster(t, someTopology(),
		rolePod("p1", "prefill", "n", true), rolePod("d1", "decode", "n", true), rolePod("d2", "decode", "n", false)), nil)
	want := []v1alpha1.PDPoolStatus{
		{Name: "p", Role: "Prefill", MatchedPods: 1, ReadyPods: 1}, {Name: "d", Role: "Decode", MatchedPods: 2, ReadyPods: 1},
	}
	if diff := cmp.Diff(want, status.Pools); diff != "" {
		t.Error(diff)
	}
	if status.ObservedGeneration != 1 {
		t.Errorf("observed generation %d", status.ObservedGeneration)
	}
}

// Changes that follow one another go together, two seconds after the last.
func TestTopologiesWaitForQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := 0
		topologies := controller.NewTopologies(func() { changes++ }, slog.New(slog.DiscardHandler))
		cluster := newCluster(t, someTopology(), rolePod("p1", "prefill", "n", true), rolePod("d1", "decode", "n", true))
		reconciler := controller.NewTopologyReconciler(controller.TopologyOptions{Client: cluster, Topologies: topologies})
		pass := func() {
			t.Helper()
			if _, err := reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key("a", "t")}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		run(t, topologies.Start)
		pass()
		time.Sleep(time.Second)
		if err := cluster.Create(t.Context(), rolePod("p2", "prefill", "n", true)); err != nil {
			t.Fatal(err)
		}
		pass()
		time.Sleep(1900 * time.Millisecond)
		synctest.Wait()
		if changes != 0 || len(topologies.All()) != 0 {
			t.Errorf("%d changes told before it was quiet", changes)
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if all := topologies.All(); changes != 1 || len(all) != 1 || len(all[0].Prefill) != 2 {
			t.Errorf("%d changes told, topologies %v", changes, all)
		}
		pass() // the same again
		time.Sleep(time.Minute)
		synctest.Wait()
		if changes != 1 {
			t.Errorf("%d changes told though nothing changed", changes)
		}
		again := get[v1alpha1.PDTopology](t, cluster, key("a", "t"))
		again.Generation, again.Spec.PrefillPools[0].Replicas = 2, ptr(int32(2))
		if err := cluster.Update(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		pass()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if all := topologies.All(); changes != 2 || all[0].Generation != 2 {
			t.Errorf("%d changes told after one that moves no pod, topologies %v", changes, all)
		}
		if err := cluster.Delete(t.Context(), someTopology()); err != nil {
			t.Fatal(err)
		}
		pass()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if changes != 3 || len(topologies.All()) != 0 {
			t.Errorf("%d changes told after the end, topologies %v", changes, topologies.All())
		}
	})
}

// A controller that starts pushes what there is, not that there is nothing.
func TestTopologiesAreLoadedBeforeTheFirstPush(t *testing.T) {
	cluster := newCluster(t, someTopology(), rolePod("p1", "prefill", "n", true), rolePod("d1", "decode", "n", true))
	topologies := controller.NewTopologies(func() {}, slog.New(slog.DiscardHandler))
	topologies.LoadWith(controller.NewTopologyReconciler(controller.TopologyOptions{Client: cluster, Topologies: topologies}).All)
	if all := topologies.All(); len(all) != 1 || all[0].Name != key("a", "t") {
		t.Errorf("first push with %v", all)
	}
	topologies = controller.NewTopologies(func() {}, slog.New(slog.DiscardHandler))
	topologies.LoadWith(func(context.Context) ([]propagate.Topology, error) { return nil, errors.New("the API server is down") })
	if all := topologies.All(); len(all) != 0 {
		t.Errorf("pushes %v", all)
	}
}
