// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/index"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func poller(cluster client.Client, max int, all ...controller.Server) *controller.Poller {
	discovery := new(servers)
	discovery.set(all...)
	return controller.NewPoller(controller.PollerOptions{
		Client: cluster, Discovery: discovery, MaxReplicas: max, Now: func() time.Time { return noon },
	})
}

// reports is a row with stats.
func reports(tenant, replica string, prefixes int64, rate float32, at time.Time) index.ReplicaRow {
	return index.ReplicaRow{
		Tenant: tenant, Replica: replica, Memberships: prefixes, LastSeenMillis: at.UnixMilli(), HasStats: true,
		Stats: index.Stats{HitRate: rate, Pressure: .25, CacheMemoryBytes: 1000, LivenessMillis: at.UnixMilli()},
	}
}

func get[T any, P interface {
	*T
	client.Object
}](t *testing.T, cluster client.Client, key types.NamespacedName) *T {
	t.Helper()
	object := P(new(T))
	if err := cluster.Get(t.Context(), key, object); err != nil {
		t.Fatal(err)
	}
	return (*T)(object)
}

var indexKey = types.NamespacedName{Name: v1alpha1.CacheIndexName}

func TestPollMergesServersIntoTheCacheIndex(t *testing.T) {
	one, two := startServer(t, "1"), startServer(t, "2")
	one.holdings.replicas = []index.ReplicaRow{reports("a", "r0", 5, .5, noon.Add(-time.Minute)), reports("a", "r1", 9, .5, noon)}
	one.holdings.tenants = []index.TenantRow{{Tenant: "a", Keys: 12}}
	two.holdings.replicas = []index.ReplicaRow{reports("a", "r0", 3, .75, noon), {Tenant: "b", Replica: "silent", Memberships: 1}}
	two.holdings.tenants = []index.TenantRow{{Tenant: "a", Keys: 10}, {Tenant: "b", Keys: 1}}
	cluster := newCluster(t)
	if err := poller(cluster, 0, one.named(t, "one"), two.named(t, "two")).Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := get[v1alpha1.CacheIndex](t, cluster, indexKey).Status
	want := v1alpha1.CacheIndexStatus{
		Replicas: []v1alpha1.CacheIndexReplica{
			{ID: "r0", Tenant: "a", CacheMemoryBytes: 1000, HitRate: ptr("0.75"), Pressure: "0.25"},
			{ID: "r1", Tenant: "a", CacheMemoryBytes: 1000, HitRate: ptr("0.5"), Pressure: "0.25"},
		},
		Tenants: []v1alpha1.CacheIndexTenant{
			{ID: "a", IndexEntries: ptr(int64(12)), HitRate: ptr("0.5")}, {ID: "b", IndexEntries: ptr(int64(1))},
		},
		Prefixes:       v1alpha1.CacheIndexPrefixes{Summary: v1alpha1.CacheIndexPrefixSummary{Total: 13}},
		ObservedServer: "one,two",
		Servers: []v1alpha1.CacheIndexServer{
			{Name: "one", Reachable: true, Epoch: "1", Prefixes: 12}, {Name: "two", Reachable: true, Epoch: "2", Prefixes: 11},
		},
		ReplicasTotal: 2,
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreTypes(metav1.Time{}, &metav1.Time{})); diff != "" {
		t.Error(diff)
	}
	if got.LastUpdated == nil || !got.LastUpdated.Time.Equal(noon) || !got.Replicas[0].LastUpdate.Time.Equal(noon) {
		t.Errorf("times %v and %v, want %v", got.LastUpdated, got.Replicas[0].LastUpdate, noon)
	}
}

func TestSteadyLoadDoesNotRewriteTheCacheIndex(t *testing.T) {
	server := startServer(t, "1")
	server.holdings.replicas = []index.ReplicaRow{reports("a", "r", 5, .5, noon)}
	cluster := newCluster(t)
	p := poller(cluster, 0, server.named(t, "one"))
	version := func() string {
		t.Helper()
		if err := p.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
		return get[v1alpha1.CacheIndex](t, cluster, indexKey).ResourceVersion
	}
	first := version()
	server.holdings.replicas[0] = reports("a", "r", 5, .505, noon.Add(time.Minute))
	server.holdings.replicas[0].Stats.CacheMemoryBytes = 1005
	if second := version(); second != first {
		t.Error("a rate within 0.01 and a size within 1 % rewrote the status")
	}
	server.holdings.replicas[0] = reports("a", "r", 5, .52, noon.Add(time.Minute))
	if third := version(); third == first {
		t.Error("a rate 0.02 higher did not rewrite the status")
	}
}

func TestRatesOfTheCacheIndexAreDecimals(t *testing.T) {
	server := startServer(t, "1")
	cluster := newCluster(t)
	p := poller(cluster, 0, server.named(t, "one"))
	for _, step := range []struct {
		rate float32
		want string
	}{{.00001, "0.00001"}, {.28, "0.28"}, {.29, "0.29"}, {.293, "0.29"}} {
		server.holdings.replicas = []index.ReplicaRow{reports("a", "r", 5, step.rate, noon)}
		if err := p.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := *get[v1alpha1.CacheIndex](t, cluster, indexKey).Status.Replicas[0].HitRate; got != step.want {
			t.Errorf("rate %v shows as %s, want %s", step.rate, got, step.want)
		}
	}
}

func TestCacheIndexIsBounded(t *testing.T) {
	server := startServer(t, "1")
	for _, name := range []string{"r0", "r1", "r2"} {
		server.holdings.replicas = append(server.holdings.replicas, reports("a", name, 1, 0, noon))
	}
	cluster := newCluster(t)
	if err := poller(cluster, 2, server.named(t, "one")).Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := get[v1alpha1.CacheIndex](t, cluster, indexKey).Status
	if len(got.Replicas) != 2 || got.ReplicasTotal != 3 || !got.Truncated {
		t.Errorf("%d of %d rows, truncated %v, want 2 of 3", len(got.Replicas), got.ReplicasTotal, got.Truncated)
	}
}

// Pods of one name in several namespaces share a row, and are counted.
func TestCacheIndexCountsEqualNames(t *testing.T) {
	server := startServer(t, "1")
	server.holdings.replicas = []index.ReplicaRow{reports("b", "r", 1, .25, noon), reports("a", "r", 1, .5, noon), reports("a", "s", 1, .5, noon)}
	cluster := newCluster(t)
	if err := poller(cluster, 0, server.named(t, "one")).Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := get[v1alpha1.CacheIndex](t, cluster, indexKey).Status
	if len(got.Replicas) != 2 || got.Replicas[0].Tenant != "b" || *got.Replicas[0].HitRate != "0.25" || got.ReplicasTotal != 3 || !got.Truncated {
		t.Errorf("%+v of %d, truncated %v, want r of b and s of 3", got.Replicas, got.ReplicasTotal, got.Truncated)
	}
}

func TestUnreachableServers(t *testing.T) {
	one, two := startServer(t, "1"), startServer(t, "2")
	down := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "down", http.StatusServiceUnavailable) }
	one.holdings.tenants = []index.TenantRow{{Tenant: "a", Keys: 4}}
	tenant := &v1alpha1.CacheTenant{ObjectMeta: object("a", "t"), Spec: v1alpha1.CacheTenantSpec{TenantID: "a"}}
	cluster := newCluster(t, tenant)
	p := poller(cluster, 0, one.named(t, "one"), two.named(t, "two"))
	two.serve(down)
	if err := p.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	status := get[v1alpha1.CacheIndex](t, cluster, indexKey).Status
	if !status.Servers[0].Reachable || status.Servers[1].Reachable || status.Servers[1].Message == "" || status.ObservedServer != "one" {
		t.Errorf("servers %+v, observed %q", status.Servers, status.ObservedServer)
	}
	one.serve(down)
	if err := p.Poll(t.Context()); err == nil || !strings.Contains(err.Error(), "none of 2 servers answers") {
		t.Errorf("error %v", err)
	}
	if got := get[v1alpha1.CacheTenant](t, cluster, key("a", "t")).Status; got.IndexEntries == nil || *got.IndexEntries != 4 {
		t.Errorf("the status changed while no server answered: %+v", got)
	}
}

func TestCacheTenantStatus(t *testing.T) {
	server := startServer(t, "1")
	server.holdings.tenants = []index.TenantRow{{Tenant: "full", Keys: 9}, {Tenant: "shared", Keys: 3}}
	tenant := func(namespace, name, id string, budget *int64) client.Object {
		return &v1alpha1.CacheTenant{ObjectMeta: object(namespace, name), Spec: v1alpha1.CacheTenantSpec{
			TenantID: id, Quota: v1alpha1.CacheTenantQuota{MaxIndexEntries: budget},
		}}
	}
	cluster := newCluster(t,
		tenant("a", "full", "full", ptr(int64(8))), tenant("a", "unseen", "unseen", ptr(int64(8))), tenant("a", "free", "full", nil),
		tenant("a", "shared", "shared", ptr(int64(3))), tenant("b", "shared", "shared", ptr(int64(1))))
	if err := poller(cluster, 0, server.named(t, "one")).Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[types.NamespacedName]struct {
		entries      int64
		ready, quota string
	}{
		key("a", "full"):   {9, "True/Observed: ", "True/OverEntryBudget: 9 entries, 8 allowed"},
		key("a", "unseen"): {0, "True/Observed: ", "False/WithinBudget: "},
		key("a", "free"):   {9, "True/Observed: ", "False/NoQuota: "},
		key("a", "shared"): {3, "True/Observed: ", "False/WithinBudget: "},
		key("b", "shared"): {3, "False/DuplicateTenantID: the quota of CacheTenant a/shared is in force", "False/NotEffective: the quota of CacheTenant a/shared is in force"},
	} {
		got := get[v1alpha1.CacheTenant](t, cluster, name).Status
		ready, quota := conditionOf(got.Conditions, "Ready"), conditionOf(got.Conditions, "QuotaExceeded")
		if *got.IndexEntries != want.entries || ready != want.ready || quota != want.quota {
			t.Errorf("%s: %d entries, Ready %q, QuotaExceeded %q, want %+v", name, *got.IndexEntries, ready, quota, want)
		}
	}
}

func backend(name, domain string, external ...string) *v1alpha1.CacheBackend {
	b := &v1alpha1.CacheBackend{ObjectMeta: object("a", name), Spec: v1alpha1.CacheBackendSpec{Runtime: v1alpha1.RuntimeVLLM}}
	b.UID = types.UID("uid-" + name)
	if domain != "" {
		b.Spec.EngineSelector = &v1alpha1.EngineSelector{MatchLabels: map[string]string{v1alpha1.LabelCacheDomain: domain}}
	}
	if external != nil {
		b.Spec.Observation = new(v1alpha1.BackendObservation)
		for _, id := range external {
			b.Spec.Observation.ExternalReplicas = append(b.Spec.Observation.ExternalReplicas, v1alpha1.ExternalReplica{ReplicaID: id})
		}
	}
	return b
}

func enginePod(name, domain string, annotations ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: object("a", name)}
	pod.Labels = map[string]string{v1alpha1.LabelCacheDomain: domain}
	if len(annotations) == 2 {
		pod.Annotations = map[string]string{v1alpha1.AnnotationInjectedBy: annotations[0], v1alpha1.AnnotationInjectedByUID: annotations[1]}
	}
	return pod
}

func TestParticipationBelongsToTheRightBackend(t *testing.T) {
	server := startServer(t, "1")
	server.holdings.replicas = []index.ReplicaRow{
		reports("a", "attached", 2, .5, noon), reports("a", "ext#1", 3, .5, noon), reports("a", "forged", 4, .5, noon),
		reports("a", "gone", 5, .5, noon), reports("a", "pod", 8, .25, noon), reports("a", "pod#1", 8, .75, noon),
		reports("a", "unlabelled", 6, .5, noon), reports("b", "pod", 100, .5, noon),
	}
	unlabelled := enginePod("unlabelled", "")
	unlabelled.Labels = nil
	cluster := newCluster(t, backend("by-label", "one"), backend("external", "", "ext", "unlabelled"), backend("injected", "two"), backend("quiet", "three"),
		unlabelled, enginePod("attached", "one"), enginePod("pod", "two", "a/injected", "uid-injected"), enginePod("forged", "one", "a/injected", "another"))
	if err := poller(cluster, 0, server.named(t, "one")).Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]v1alpha1.IndexParticipation{
		"by-label": {PrefixCount: 2, HitRate: ptr("0.5"), ReportingReplicas: ptr(int32(1)), ExpectedReplicas: ptr(int32(2))},
		"external": {PrefixCount: 9, HitRate: ptr("0.5"), ReportingReplicas: ptr(int32(2)), ExpectedReplicas: ptr(int32(2))},
		"injected": {PrefixCount: 16, HitRate: ptr("0.5"), ReportingReplicas: ptr(int32(2)), ExpectedReplicas: ptr(int32(2))},
		"quiet":    {ReportingReplicas: ptr(int32(0)), ExpectedReplicas: ptr(int32(0))},
	} {
		got := get[v1alpha1.CacheBackend](t, cluster, key("a", name)).Status.IndexParticipation
		if got == nil {
			t.Errorf("%s: no participation", name)
			continue
		}
		if (got.PrefixCount > 0) != (got.LastEventAt != nil) {
			t.Errorf("%s: %d prefixes, last event %v", name, got.PrefixCount, got.LastEventAt)
		}
		if diff := cmp.Diff(want, *got, cmpopts.IgnoreTypes(&metav1.Time{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestPodThatCannotBeReadKeepsItsNamespaceAsItIs(t *testing.T) {
	server := startServer(t, "1")
	server.holdings.replicas = []index.ReplicaRow{reports("a", "attached", 2, .5, noon), reports("a", "broken", 2, .5, noon)}
	failing := false
	cluster := interceptor.NewClient(newCluster(t, backend("x", "one"), enginePod("attached", "one")), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if failing && key.Name == "broken" {
				return errors.New("the API server is away")
			}
			return c.Get(ctx, key, object, options...)
		},
	})
	p := poller(cluster, 0, server.named(t, "one"))
	if err := p.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	failing = true
	server.holdings.replicas[0].Memberships = 7
	if err := p.Poll(t.Context()); err == nil {
		t.Error("no error")
	}
	if got := get[v1alpha1.CacheBackend](t, cluster, key("a", "x")).Status.IndexParticipation.PrefixCount; got != 2 {
		t.Errorf("%d prefixes, want the 2 of before", got)
	}
}

func TestPollTellsWhatPolicyAServerHas(t *testing.T) {
	server := startServer(t, "1")
	cluster := newCluster(t, somePolicy("a", "p", 7))
	p := startPusher(t, cluster, server.named(t, "one"))
	p.awaitPolicy(t, "a", "p", "True")
	polls := controller.NewPoller(controller.PollerOptions{Client: cluster, Discovery: p.servers, Observed: p.Observed})
	server.restart("2")
	if err := polls.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the restarted server has the policy", func() bool { return server.effective("a").MinimumPrefixTokens == 7 })
}
