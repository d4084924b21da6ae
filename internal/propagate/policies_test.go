// SPDX-License-Identifier: Apache-2.0

package propagate_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/propagate"
)

func ptr[T any](v T) *T { return &v }

func cachePolicy(namespace, name string, change func(*v1alpha1.CachePolicySpec)) v1alpha1.CachePolicy {
	p := v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 1}}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func cacheTenant(namespace, name, id string, entries *int64) v1alpha1.CacheTenant {
	return v1alpha1.CacheTenant{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.CacheTenantSpec{TenantID: id, Quota: v1alpha1.CacheTenantQuota{MaxIndexEntries: entries}, IsolationMode: "Fairness"},
	}
}

func TestPolicyBody(t *testing.T) {
	full := func(s *v1alpha1.CachePolicySpec) {
		*s = v1alpha1.CachePolicySpec{
			Eviction:             v1alpha1.EvictionLFU,
			EvictionTTL:          &metav1.Duration{Duration: 15 * time.Minute},
			MinimumPrefixTokens:  ptr(int32(32)),
			MinimumMatchedTokens: ptr(int32(128)),
			RoutingFloorScore:    ptr("5"),
			LookupTimeoutMs:      ptr(int32(25)),
			Strategy:             &v1alpha1.CachePolicyStrategy{EnableChainMatching: ptr(true), RequireChain: ptr(false), EnableTenantHot: ptr(true)},
			AffinityRouting:      v1alpha1.AffinityEnabled,
		}
	}
	for name, tc := range map[string]struct {
		change  func(*v1alpha1.CachePolicySpec)
		version int
		want    string
		dropped []string
	}{
		"every field": {full, 7, `{"namespace":"team-a","evictionTTL":900000000000,"minimumPrefixTokens":32,"minimumMatchedTokens":128,` +
			`"routingFloorScore":5,"lookupTimeoutMs":25,"eviction":"lfu",` +
			`"strategy":{"enableChainMatching":true,"requireChain":false,"enableTenantHot":true},"affinityRouting":true}`, nil},
		"no field": {nil, 7, `{"namespace":"team-a","minimumMatchedTokens":64,"eviction":"lru"}`, nil},
		"explicit zeros stay opt-outs": {func(s *v1alpha1.CachePolicySpec) {
			s.MinimumMatchedTokens, s.RoutingFloorScore, s.AffinityRouting = ptr(int32(0)), ptr("0"), v1alpha1.AffinityDisabled
		}, 7, `{"namespace":"team-a","minimumMatchedTokens":0,"routingFloorScore":0,"eviction":"lru","affinityRouting":false}`, nil},
		"an older version leaves newer fields out and names them": {func(s *v1alpha1.CachePolicySpec) {
			full(s)
			s.AffinityRouting = v1alpha1.AffinityDisabled
		}, 4, `{"namespace":"team-a","evictionTTL":900000000000,"minimumPrefixTokens":32,"minimumMatchedTokens":128,"lookupTimeoutMs":25,"eviction":"lfu"}`,
			[]string{"routingFloorScore", "affinityRouting"}},
		"an older version misses nothing at the defaults": {func(s *v1alpha1.CachePolicySpec) {
			s.MinimumMatchedTokens, s.RoutingFloorScore, s.AffinityRouting = ptr(int32(64)), ptr("0.1"), v1alpha1.AffinityEnabled
		}, 3, `{"namespace":"team-a","eviction":"lru"}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			snapshot, err := propagate.Policies([]v1alpha1.CachePolicy{cachePolicy("team-a", "p", tc.change)}, nil, tc.version)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.TrimSuffix(strings.SplitN(string(snapshot.Body), `"policies":[`, 2)[1], "]}")
			if got != tc.want {
				t.Errorf("body %s\nwant %s", got, tc.want)
			}
			if diff := cmp.Diff(tc.dropped, snapshot.Policies[0].Dropped); diff != "" {
				t.Errorf("dropped: %s", diff)
			}
			if _, err := policy.DecodeSnapshot(snapshot.Body); err != nil {
				t.Errorf("a server refuses the body: %v", err)
			}
		})
	}
}

func TestPolicyBodyOfNothing(t *testing.T) {
	snapshot, err := propagate.Policies(nil, nil, 7)
	if err != nil {
		t.Fatal(err)
	}
	const body, revision = `{"version":7,"policies":[]}`, "b1af69a7f08d9696baf715ebccc03bcb89b15103bef1adac3fa22fdbb2b94642"
	if string(snapshot.Body) != body || snapshot.Revision != revision {
		t.Errorf("body %s revision %s, want %s %s", snapshot.Body, snapshot.Revision, body, revision)
	}
}

func TestPolicyBodyRefusesOtherVersions(t *testing.T) {
	for _, version := range []int{0, 2, 8} {
		if _, err := propagate.Policies(nil, nil, version); err == nil {
			t.Errorf("version %d was built", version)
		}
	}
}

func TestRoutingFloorThatIsNone(t *testing.T) {
	for _, text := range []string{"NaN", "Inf", "-1", "five", "1e99"} {
		snapshot, err := propagate.Policies([]v1alpha1.CachePolicy{cachePolicy("a", "p", func(s *v1alpha1.CachePolicySpec) {
			s.RoutingFloorScore = &text
		})}, nil, 7)
		if err != nil {
			t.Fatal(err)
		}
		verdict := snapshot.Policies[0]
		if verdict.Accepted || verdict.Reason != propagate.ReasonInvalidRoutingFloor || !verdict.Effective {
			t.Errorf("%s: verdict %+v", text, verdict)
		}
		decoded, err := policy.DecodeSnapshot(snapshot.Body)
		if err != nil || *decoded.Policies[0].RoutingFloorScore != policy.DefaultRoutingFloorScore {
			t.Errorf("%s: decoded %+v, %v", text, decoded, err)
		}
	}
}

func TestTheFirstPolicyByNameIsInForce(t *testing.T) {
	policies := []v1alpha1.CachePolicy{
		cachePolicy("b", "z", nil), cachePolicy("a", "y", func(s *v1alpha1.CachePolicySpec) { s.MinimumPrefixTokens = ptr(int32(9)) }),
		cachePolicy("a", "x", nil),
	}
	snapshot, err := propagate.Policies(policies, nil, 7)
	if err != nil {
		t.Fatal(err)
	}
	want := []propagate.PolicyVerdict{
		{Name: types.NamespacedName{Namespace: "a", Name: "x"}, Generation: 1, Effective: true, Accepted: true, Reason: "Accepted"},
		{Name: types.NamespacedName{Namespace: "a", Name: "y"}, Generation: 1, Reason: "Shadowed", Message: "CachePolicy x of this namespace is in force"},
		{Name: types.NamespacedName{Namespace: "b", Name: "z"}, Generation: 1, Effective: true, Accepted: true, Reason: "Accepted"},
	}
	if diff := cmp.Diff(want, snapshot.Policies); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(string(snapshot.Body), "minimumPrefixTokens") {
		t.Errorf("the shadowed policy is in the body: %s", snapshot.Body)
	}
}

func TestTheFirstTenantWithABudgetIsInForce(t *testing.T) {
	tenants := []v1alpha1.CacheTenant{
		cacheTenant("b", "t", "shared", ptr(int64(7))), cacheTenant("a", "z", "shared", ptr(int64(0))),
		cacheTenant("a", "a", "shared", nil), cacheTenant("c", "t", "own", ptr(int64(5))),
	}
	snapshot, err := propagate.Policies(nil, tenants, 7)
	if err != nil {
		t.Fatal(err)
	}
	// By namespace and name of the resources.
	const want = `"tenants":[{"tenantID":"shared","maxIndexEntries":0,"isolationMode":"Fairness"},` +
		`{"tenantID":"own","maxIndexEntries":5,"isolationMode":"Fairness"}]}`
	if !strings.HasSuffix(string(snapshot.Body), want) {
		t.Errorf("body %s, want the end %s", snapshot.Body, want)
	}
	winner := types.NamespacedName{Namespace: "a", Name: "z"}
	if got := snapshot.Tenants[2]; got.Name.Namespace != "b" || got.Effective || got.Winner != winner {
		t.Errorf("the later tenant got %+v, want it shadowed by %s", got, winner)
	}
	if got := snapshot.Tenants[0]; got.Effective || got.Winner != (types.NamespacedName{}) {
		t.Errorf("the tenant without a budget got %+v", got)
	}
}

func TestEqualResourcesGiveEqualBytes(t *testing.T) {
	policies := []v1alpha1.CachePolicy{cachePolicy("a", "x", nil), cachePolicy("b", "y", nil), cachePolicy("c", "z", nil)}
	tenants := []v1alpha1.CacheTenant{cacheTenant("a", "t", "1", ptr(int64(1))), cacheTenant("b", "t", "2", ptr(int64(2)))}
	first, err := propagate.Policies(policies, tenants, 7)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 10 {
		random.Shuffle(len(policies), func(i, j int) { policies[i], policies[j] = policies[j], policies[i] })
		random.Shuffle(len(tenants), func(i, j int) { tenants[i], tenants[j] = tenants[j], tenants[i] })
		if again, err := propagate.Policies(policies, tenants, 7); err != nil || again.Revision != first.Revision {
			t.Fatalf("revision %s, %v, want %s", again.Revision, err, first.Revision)
		}
	}
}
