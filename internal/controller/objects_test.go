// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
)

// saying are conditions "Type=Status/Reason".
func saying(texts ...string) (all []metav1.Condition) {
	for _, text := range texts {
		kind, value, _ := strings.Cut(text, "=")
		status, reason, _ := strings.Cut(value, "/")
		all = append(all, metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason})
	}
	return all
}

func TestObjectsAreCountedByState(t *testing.T) {
	var (
		objects []client.Object
		name    = func() string { return string(rune('a' + len(objects))) }
		backend = func(texts ...string) {
			b := &v1alpha1.CacheBackend{ObjectMeta: object("a", name())}
			b.Status.Conditions = saying(texts...)
			objects = append(objects, b)
		}
		policy = func(texts ...string) {
			p := &v1alpha1.CachePolicy{ObjectMeta: object("a", name())}
			p.Status.Conditions = saying(texts...)
			objects = append(objects, p)
		}
	)
	backend()
	backend("Ready=True/KVEventsObserved", "Progressing=False/Synced", "Degraded=False/NotDegraded", "InjectionHealthy=False/PodsSkipped")
	backend("Ready=False/AwaitingFirstKVEvent", "Progressing=True/AwaitingFirstKVEvent")
	backend("Ready=False/ProbeIngestFailed")
	backend("Degraded=True/NoKVEventsObserved")
	policy("Accepted=True/Accepted", "Programmed=True/Programmed")
	policy("Accepted=True/Accepted", "Programmed=False/PushFailed")
	policy("Accepted=True/Accepted", "Programmed=Unknown/NoServers")
	policy("Programmed=False/NotEffective", "Accepted=False/Shadowed")
	tenant := &v1alpha1.CacheTenant{ObjectMeta: object("a", "t")}
	tenant.Status.Conditions = saying("Ready=False/DuplicateTenantID", "Programmed=False/NotEffective")
	template := &v1alpha1.PromptTemplate{ObjectMeta: object("a", "t")}
	template.Status.Conditions = saying("Accepted=False/BadPlaceholder")
	topology := &v1alpha1.PDTopology{ObjectMeta: object("a", "t")}
	topology.Status.Conditions = saying("Resolved=False/PoolEmpty")
	index := &v1alpha1.CacheIndex{ObjectMeta: metav1.ObjectMeta{Name: "cluster-default"}}
	index.Status.Servers = []v1alpha1.CacheIndexServer{{Name: "one", Reachable: true}, {Name: "two"}}
	objects = append(objects, tenant, template, topology, index)

	registry := prometheus.NewRegistry()
	census := controller.NewCensus(newCluster(t, objects...), controller.NewMetrics(registry), nil)
	run(t, census.Start)
	want := `
# HELP inferencecache_objects Resources by what their conditions say.
# TYPE inferencecache_objects gauge
inferencecache_objects{kind="CacheBackend",state="degraded"} 2
inferencecache_objects{kind="CacheBackend",state="ok"} 3
inferencecache_objects{kind="CacheBackend",state="shadowed"} 0
inferencecache_objects{kind="CacheIndex",state="degraded"} 1
inferencecache_objects{kind="CacheIndex",state="ok"} 0
inferencecache_objects{kind="CacheIndex",state="shadowed"} 0
inferencecache_objects{kind="CachePolicy",state="degraded"} 1
inferencecache_objects{kind="CachePolicy",state="ok"} 2
inferencecache_objects{kind="CachePolicy",state="shadowed"} 1
inferencecache_objects{kind="CacheTenant",state="degraded"} 0
inferencecache_objects{kind="CacheTenant",state="ok"} 0
inferencecache_objects{kind="CacheTenant",state="shadowed"} 1
inferencecache_objects{kind="PDTopology",state="degraded"} 1
inferencecache_objects{kind="PDTopology",state="ok"} 0
inferencecache_objects{kind="PDTopology",state="shadowed"} 0
inferencecache_objects{kind="PromptTemplate",state="degraded"} 1
inferencecache_objects{kind="PromptTemplate",state="ok"} 0
inferencecache_objects{kind="PromptTemplate",state="shadowed"} 0
`

	eventually(t, "the census", func() bool {
		return testutil.GatherAndCompare(registry, strings.NewReader(want), "inferencecache_objects") == nil
	})
}
