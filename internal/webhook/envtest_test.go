// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/kubetest"
	"github.com/inferencecache/inference-cache/internal/storage"
	"github.com/inferencecache/inference-cache/internal/webhook"
)

const (
	crds       = "../../deploy/crds"
	scopeLabel = "tenant-scope"
)

// stored is a case whose first objects are in the cluster.
type stored struct {
	admissionCase
	namespace string
}

// storeAll writes what existed before the rules.
func storeAll(t *testing.T, cluster *kubetest.Cluster, cases map[string]admissionCase) map[string]stored {
	t.Helper()
	all := map[string]stored{}
	for i, name := range slices.Sorted(maps.Keys(cases)) {
		s := stored{cases[name], fmt.Sprintf("case-%d", i)}
		cluster.Namespace(t, s.namespace, map[string]string{scopeLabel: string(s.scope)})
		existing, old, _ := copies(s.admissionCase, s.namespace)
		if old != nil {
			if s.deleting {
				old.SetFinalizers([]string{"inferencecache.io/test"})
			}
			existing = append(existing, old)
		}
		for _, object := range existing {
			if err := cluster.Client.Create(t.Context(), object); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if s.deleting {
			if err := cluster.Client.Delete(t.Context(), old); err != nil {
				t.Fatal(err)
			}
		}
		all[name] = s
	}
	return all
}

// register makes the API server ask the webhooks, and in namespaces labelled
// so also those of the narrow tenant scope.
func register(t *testing.T, cluster *kubetest.Cluster, registry *adapter.Registry) {
	t.Helper()
	for scope, suffix := range map[webhook.TenantScope]string{"": "", webhook.TenantScopeNamespace: "-narrow"} {
		handlers, err := webhook.Handlers(cluster.Scheme, webhook.Options{Reader: cluster.Client, TenantScope: scope, Registry: registry})
		if err != nil {
			t.Fatal(err)
		}
		url, authority := kubetest.Serve(t, handlers)
		registered := webhook.Registration(webhook.RegistrationOptions{Namespace: "ic", URL: url, CABundle: authority})
		registered.Mutating.Name += suffix
		registered.Validating.Name += suffix
		if scope != "" {
			for i := range registered.Validating.Webhooks {
				registered.Validating.Webhooks[i].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{scopeLabel: string(scope)}}
			}
		}
		for _, object := range []client.Object{registered.Mutating, registered.Validating} {
			if err := cluster.Client.Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
	}
	cluster.Namespace(t, "probe", map[string]string{scopeLabel: string(webhook.TenantScopeNamespace)})
	probe := func(object client.Object, part string) {
		place(object, "probe")
		kubetest.Eventually(t, "webhooks registered", func() error {
			return kubetest.Refused(cluster.Client.Create(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll), part)
		})
	}
	probe(newTenant("ct", "inferencecache.io/probe"), "is reserved")
	probe(newTenant("ct", "t"), "limited to namespaces")
}

// written is an object as a user writes its spec, which our types need not be
// able to hold; "" is none.
func written(kind, spec string) client.Object {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	o.SetName("written")
	if spec == "" {
		return o
	}
	var value any
	if err := json.Unmarshal([]byte(spec), &value); err != nil {
		panic(err)
	}
	o.Object["spec"] = value
	return o
}

// writtenCases are refused with the name of the field, webhooks or not.
var writtenCases = map[string]admissionCase{
	"a policy without a spec": {object: written("CachePolicy", ""), refusals: []string{"spec: Required value"}},
	"a lifetime in days":      {object: written("CachePolicy", `{"evictionTTL":"1d"}`), refusals: []string{"spec.evictionTTL", "must be above 0"}},
	"a number for a name":     {object: written("CachePolicy", `{"eviction":5}`), refusals: []string{"spec.eviction", "must be of type string"}},
	"a text for a switch":     {object: written("CachePolicy", `{"strategy":{"requireChain":"true"}}`), refusals: []string{"spec.strategy.requireChain", "must be of type boolean"}},
	"a tenant without an id":  {object: written("CacheTenant", `{}`), refusals: []string{"spec.tenantID: Required value"}},
	"a backend of no runtime": {object: written("CacheBackend", `{"type":"Memory"}`), refusals: []string{"spec.runtime: Required value"}},
	"a timeout in words":      {object: written("CacheBackend", `{"runtime":"VLLM","type":"Memory","observation":{"firstEventTimeout":"5 minutes"}}`), refusals: []string{"spec.observation.firstEventTimeout", "a duration such as 5m"}},
	"a quantity in no unit":   {object: written("CacheBackend", `{"runtime":"VLLM","type":"Memory","observation":{"resources":{"requests":{"memory":"1Gx"}}}}`), refusals: []string{"spec.observation.resources.requests.memory"}},
	"an adapter without its id": {
		object: written("CacheBackend", `{"runtime":"VLLM","type":"Memory","observation":{"kvEvents":{"loraAdapterNames":[{"name":"a"}]}}}`), refusals: []string{"loraAdapterNames[0].id: Required value"},
	},
	"more tokens than can be read": {
		object:   written("CachePolicy", `{"minimumPrefixTokens":2147483648,"minimumMatchedTokens":2147483648,"lookupTimeoutMs":3000000000}`),
		refusals: []string{"spec.minimumPrefixTokens: Invalid value", "spec.minimumMatchedTokens: Invalid value", "spec.lookupTimeoutMs: Invalid value"},
	},
	"more replicas than can be read": {
		object:   written("PDTopology", `{"prefillPools":[{"name":"p","replicas":2147483648}],"decodePools":[{"name":"d","replicas":2147483648}]}`),
		refusals: []string{"spec.prefillPools[0].replicas: Invalid value", "spec.decodePools[0].replicas: Invalid value"},
	},
	"more of a tier than can be read": {
		object: written("CacheBackend", `{"runtime":"VLLM","hiCache":{"sizeGB":2147483648},
			"lmCache":{"topology":"PodLocal","chunkSizeTokens":2147483648,"podLocal":{"server":{"maxWorkers":2147483648}},
				"nodeLocal":{"server":{"maxGPUWorkers":2147483648,"maxCPUWorkers":2147483648}}},
			"remoteStorage":{"provider":"Redis","ownership":"Managed","redis":{"database":2147483648}}}`),
		refusals: []string{
			"hiCache.sizeGB: Invalid value", "chunkSizeTokens: Invalid value", "podLocal.server.maxWorkers: Invalid value",
			"nodeLocal.server.maxGPUWorkers: Invalid value", "nodeLocal.server.maxCPUWorkers: Invalid value", "redis.database: Invalid value",
		},
	},
	"a server of which nothing is said": {
		object:   written("CacheBackend", `{"runtime":"VLLM","lmCache":{"topology":"PodLocal","podLocal":{"server":{}}}}`),
		refusals: []string{"server.image: Required value", "server.port: Required value", "server.l1Capacity: Required value", "server.maxWorkers: Required value", "server.resources: Required value"},
	},
}

func TestEnvtestAdmission(t *testing.T) {
	cases := map[string]admissionCase{}
	for _, group := range []map[string]admissionCase{backendCases, resourceCases, updateCases, policyCases, templateCases, writtenCases} {
		maps.Copy(cases, group)
	}
	admitAll(t, adapter.Core(), cases)
}

func TestEnvtestTierAdmission(t *testing.T) { admitAll(t, adapter.All(), tierCases) }

// admitAll puts cases to an API server whose webhooks know some adapters.
func admitAll(t *testing.T, registry *adapter.Registry, cases map[string]admissionCase) {
	t.Helper()
	cluster := kubetest.Start(t, crds)
	all := storeAll(t, cluster, cases)
	register(t, cluster, registry)
	for name, tc := range all {
		t.Run(name, func(t *testing.T) {
			_, old, object := copies(tc.admissionCase, tc.namespace)
			cluster.Warnings()
			var err error
			if old == nil {
				err = cluster.Client.Create(t.Context(), object)
			} else {
				if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(old), old); err != nil {
					t.Fatal(err)
				}
				object.SetResourceVersion(old.GetResourceVersion())
				if tc.deleting {
					object.SetFinalizers(old.GetFinalizers())
				}
				err = cluster.Client.Update(t.Context(), object)
			}
			checkRefusals(t, kubetest.Message(err), tc.refusals)
			checkWarnings(t, tc.admissionCase, cluster.Warnings())
		})
	}
}

// schemaCases are what the resource definitions alone refuse.
var schemaCases = map[string]admissionCase{
	"a runtime nobody knows":      {object: newBackend("b", func(b *v1alpha1.CacheBackend) { b.Spec.Runtime = "Other" }), refusals: []string{"spec.runtime", "Unsupported value"}},
	"no runtime":                  {object: newBackend("b", func(b *v1alpha1.CacheBackend) { b.Spec.Runtime = "" }), refusals: []string{"spec.runtime"}},
	"a type nobody knows":         {object: newBackend("b", func(b *v1alpha1.CacheBackend) { b.Spec.Type = "Other" }), refusals: []string{"spec.type"}},
	"a mode nobody knows":         {object: newBackend("b", integration(func(i *v1alpha1.BackendIntegration) { i.Mode = "Other" })), refusals: []string{"spec.integration.mode"}},
	"a role nobody knows":         {object: newBackend("b", role("Other")), refusals: []string{"spec.integration.role"}},
	"too many ranks":              {object: newBackend("b", kvEvents(v1alpha1.KVEventsSpec{DataParallelRanks: ptr(int32(1025)), ReplayPort: ptr(int32(0))})), refusals: []string{"dataParallelRanks"}},
	"no ranks":                    {object: newBackend("b", kvEvents(v1alpha1.KVEventsSpec{DataParallelRanks: ptr(int32(0))})), refusals: []string{"dataParallelRanks"}},
	"a port that is none":         {object: newBackend("b", kvEvents(v1alpha1.KVEventsSpec{Port: ptr(int32(0))})), refusals: []string{"kvEvents.port"}},
	"a transport nobody knows":    {object: newBackend("b", kvEvents(v1alpha1.KVEventsSpec{Transport: "Other"})), refusals: []string{"kvEvents.transport"}},
	"an adapter id twice":         {object: newBackend("b", kvEvents(v1alpha1.KVEventsSpec{LoRAAdapterNames: []v1alpha1.LoRAAdapterName{{ID: 1, Name: "a"}, {ID: 1, Name: "b"}}})), refusals: []string{"loraAdapterNames[1]", "Duplicate value"}},
	"an external replica twice":   {object: newBackend("b", external("e", "e")), refusals: []string{"externalReplicas[1]", "Duplicate value"}},
	"an external replica unnamed": {object: newBackend("b", external("")), refusals: []string{"externalReplicas[0].replicaID"}},
	"an eviction nobody knows":    {object: newPolicy("p", func(s *v1alpha1.CachePolicySpec) { s.Eviction = "FIFO" }), refusals: []string{"spec.eviction"}},
	"a lifetime of nothing":       {object: newPolicy("p", func(s *v1alpha1.CachePolicySpec) { s.EvictionTTL = &metav1.Duration{} }), refusals: []string{"evictionTTL must be above 0"}},
	"a negative number of tokens": {object: newPolicy("p", func(s *v1alpha1.CachePolicySpec) { s.MinimumPrefixTokens = ptr(int32(-1)) }), refusals: []string{"minimumPrefixTokens"}},
	"a floor that is no decimal":  {object: newPolicy("p", func(s *v1alpha1.CachePolicySpec) { s.RoutingFloorScore = ptr("1e3") }), refusals: []string{"routingFloorScore"}},
	"a chain required and off": {object: newPolicy("p", func(s *v1alpha1.CachePolicySpec) {
		s.Strategy = &v1alpha1.CachePolicyStrategy{EnableChainMatching: ptr(false), RequireChain: ptr(true)}
	}), refusals: []string{"requireChain needs enableChainMatching"}},
	"a pressure above 1": {object: newPolicy("p", func(s *v1alpha1.CachePolicySpec) {
		s.Routing = &v1alpha1.CachePolicyRouting{AffinityMaxPressure: ptr("1.5")}
	}), refusals: []string{"affinityMaxPressure"}},
	"an affinity nobody knows": {object: newPolicy("p", func(s *v1alpha1.CachePolicySpec) { s.AffinityRouting = "Maybe" }), refusals: []string{"affinityRouting"}},
	"a tenant without an id":   {object: newTenant("ct", ""), refusals: []string{"spec.tenantID"}},
	"a negative quota":         {object: newTenant("ct", "t", func(s *v1alpha1.CacheTenantSpec) { s.Quota.MaxIndexEntries = ptr(int64(-1)) }), refusals: []string{"maxIndexEntries"}},
	"a tenant with crypto":     {object: newTenant("ct", "t", func(s *v1alpha1.CacheTenantSpec) { s.Crypto = map[string]string{"a": "b"} }), refusals: []string{"spec.crypto"}},
	"another isolation":        {object: newTenant("ct", "t", func(s *v1alpha1.CacheTenantSpec) { s.IsolationMode = "Strict" }), refusals: []string{"isolationMode"}},
	"a template without text":  {object: newTemplate(""), refusals: []string{"spec.body"}},
	"a slot twice":             {object: newTemplate("x", v1alpha1.PromptTemplateSlot{Name: "a"}, v1alpha1.PromptTemplateSlot{Name: "a"}), refusals: []string{"slots[1]", "Duplicate value"}},
	"a slot of no type":        {object: newTemplate("x", v1alpha1.PromptTemplateSlot{Name: "a", Type: "Other"}), refusals: []string{"slots[0].type"}},
	"a pool twice":             {object: newTopology(func(s *v1alpha1.PDTopologySpec) { s.DecodePools = append(s.DecodePools, s.DecodePools[0]) }), refusals: []string{"decodePools[1]", "Duplicate value"}},
	"more pools than are compared": {object: newTopology(func(s *v1alpha1.PDTopologySpec) {
		s.PrefillPools, s.DecodePools = manyPools(65, "prefill"), manyPools(65, "decode")
	}), refusals: []string{"spec.prefillPools: Too many: 65: must have at most 64 items", "spec.decodePools: Too many: 65"}},
	"a transport of blocks nobody knows": {object: newTopology(func(s *v1alpha1.PDTopologySpec) { s.Transport = "Pigeon" }), refusals: []string{"spec.transport"}},
}

func TestEnvtestSchemas(t *testing.T) {
	cluster := kubetest.Start(t, crds)
	cluster.Namespace(t, "team", nil)
	cases := maps.Clone(schemaCases)
	maps.Copy(cases, tierSchemaCases)
	maps.Copy(cases, writtenCases)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, _, object := copies(tc, "team")
			checkRefusals(t, kubetest.Message(cluster.Client.Create(t.Context(), object)), tc.refusals)
		})
	}
	t.Run("only cluster-default is a CacheIndex", func(t *testing.T) {
		index := &v1alpha1.CacheIndex{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
		checkRefusals(t, kubetest.Message(cluster.Client.Create(t.Context(), index)), []string{"the only CacheIndex is cluster-default"})
		index = &v1alpha1.CacheIndex{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.CacheIndexName}}
		checkRefusals(t, kubetest.Message(cluster.Client.Create(t.Context(), index)), nil)
	})
	t.Run("defaults of a policy", func(t *testing.T) {
		p := newPolicy("defaults", func(s *v1alpha1.CachePolicySpec) { s.Strategy = &v1alpha1.CachePolicyStrategy{} })
		place(p, "team")
		if err := cluster.Client.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		s := p.Spec
		if s.Eviction != v1alpha1.EvictionLRU || *s.MinimumMatchedTokens != 64 || *s.RoutingFloorScore != "0.1" || s.AffinityRouting != v1alpha1.AffinityEnabled ||
			!*s.Strategy.EnableChainMatching || *s.Strategy.RequireChain || !*s.Strategy.EnableTenantHot {
			t.Errorf("defaults are %+v", s)
		}
	})
}

func TestEnvtestDefaulting(t *testing.T) {
	cluster := kubetest.Start(t, crds)
	register(t, cluster, adapter.All())
	cluster.Namespace(t, "team", nil)
	b := &v1alpha1.CacheBackend{
		ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "team"},
		Spec:       v1alpha1.CacheBackendSpec{Runtime: v1alpha1.RuntimeVLLM, Type: v1alpha1.BackendMemory},
	}
	if err := cluster.Client.Create(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	i, o := b.Spec.Integration, b.Spec.Observation
	if i == nil || i.Mode != v1alpha1.ModeOffload || i.Role != v1alpha1.RoleReadWrite || !*i.FailOpen || o == nil || o.FirstEventTimeout.Minutes() != 5 {
		t.Errorf("integration %+v, observation %+v, want the defaults", i, o)
	}
	stored := podLocal(managed(), spec(func(s *v1alpha1.CacheBackendSpec) { s.RemoteStorage.Redis = nil }))
	place(stored, "team")
	stored.Name = "stored"
	if err := cluster.Client.Create(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	if redis := stored.Spec.RemoteStorage.Redis; redis == nil || redis.Image != storage.DefaultRedisImage {
		t.Errorf("redis %+v, want the default image", redis)
	}
}

// Without an answer from the webhooks a write of ours is refused, and a pod is
// created.
func TestEnvtestWebhooksThatAreAway(t *testing.T) {
	cluster := kubetest.Start(t, crds)
	url, authority := kubetest.Serve(t, map[string]http.Handler{})
	registered := webhook.Registration(webhook.RegistrationOptions{Namespace: "ic", URL: url, CABundle: authority})
	for _, object := range []client.Object{registered.Mutating, registered.Validating} {
		if err := cluster.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Namespace(t, "team", nil)
	kubetest.Eventually(t, "webhooks registered", func() error {
		policy := newPolicy("p")
		place(policy, "team")
		return kubetest.Refused(cluster.Client.Create(t.Context(), policy, client.DryRunAll), "inferencecache.io")
	})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "engine", Namespace: "team", Labels: map[string]string{v1alpha1.LabelCacheDomain: "d"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "vllm", Image: "engine"}}},
	}
	if err := cluster.Client.Create(t.Context(), pod); err != nil {
		t.Errorf("an engine pod was refused: %v", err)
	}
}
