// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/webhook"
)

// admissionCase is one write and what becomes of it. The same cases run
// against the handlers alone and through a real API server.
type admissionCase struct {
	// existing and old are stored before any rule is in force; object then
	// replaces old, or is created where old is nil.
	existing []client.Object
	old      client.Object
	object   client.Object
	// deleting means that old is on its way out.
	deleting bool
	scope    webhook.TenantScope
	// refusals are parts of the answer, all of them; none: admitted.
	refusals []string
	// warning is a part of one.
	warning string
}

// ownNamespace as a tenant id or in an endpoint stands for the namespace of the
// case.
const ownNamespace = "$namespace"

func ptr[T any](v T) *T { return &v }

type backendOption func(*v1alpha1.CacheBackend)

// newBackend is a backend that every rule admits, changed.
func newBackend(name string, options ...backendOption) *v1alpha1.CacheBackend {
	b := &v1alpha1.CacheBackend{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.CacheBackendSpec{
			Runtime: v1alpha1.RuntimeVLLM, Type: v1alpha1.BackendLMCache,
			Integration:    &v1alpha1.BackendIntegration{Mode: v1alpha1.ModeEventsOnly, Role: v1alpha1.RoleReadWrite},
			EngineSelector: &v1alpha1.EngineSelector{MatchLabels: map[string]string{v1alpha1.LabelCacheDomain: name}},
			Observation:    &v1alpha1.BackendObservation{ModelID: "model"},
		},
	}
	for _, option := range options {
		option(b)
	}
	return b
}

func domain(labels map[string]string) backendOption {
	return func(b *v1alpha1.CacheBackend) { b.Spec.EngineSelector.MatchLabels = labels }
}

func inDomain(value string) backendOption {
	return domain(map[string]string{v1alpha1.LabelCacheDomain: value})
}

func integration(change func(*v1alpha1.BackendIntegration)) backendOption {
	return func(b *v1alpha1.CacheBackend) { change(b.Spec.Integration) }
}

func role(r v1alpha1.IntegrationRole) backendOption {
	return integration(func(i *v1alpha1.BackendIntegration) { i.Role = r })
}

func overrides(o v1alpha1.EngineOverrides) backendOption {
	return integration(func(i *v1alpha1.BackendIntegration) { i.EngineOverrides = &o })
}

func observation(change func(*v1alpha1.BackendObservation)) backendOption {
	return func(b *v1alpha1.CacheBackend) { change(b.Spec.Observation) }
}

func model(id string) backendOption {
	return observation(func(o *v1alpha1.BackendObservation) { o.ModelID = id })
}

func kvEvents(e v1alpha1.KVEventsSpec) backendOption {
	return observation(func(o *v1alpha1.BackendObservation) { o.KVEvents = &e })
}

func external(ids ...string) backendOption {
	return observation(func(o *v1alpha1.BackendObservation) {
		for _, id := range ids {
			o.ExternalReplicas = append(o.ExternalReplicas, v1alpha1.ExternalReplica{ReplicaID: id})
		}
	})
}

// resources sets one resource; an empty quantity leaves it out.
func resources(name corev1.ResourceName, request, limit string) backendOption {
	return observation(func(o *v1alpha1.BackendObservation) {
		o.Resources = &corev1.ResourceRequirements{Requests: quantities(name, request), Limits: quantities(name, limit)}
	})
}

func quantities(name corev1.ResourceName, text string) corev1.ResourceList {
	if text == "" {
		return nil
	}
	return corev1.ResourceList{name: resource.MustParse(text)}
}

func annotation(key, value string) backendOption {
	return func(b *v1alpha1.CacheBackend) { b.Annotations = map[string]string{key: value} }
}

// backendCases are the rules of a CacheBackend by itself.
var backendCases = map[string]admissionCase{
	"a backend that watches": {object: newBackend("b")},
	"mode Offload is not supported": {
		object:   newBackend("b", integration(func(i *v1alpha1.BackendIntegration) { i.Mode = v1alpha1.ModeOffload })),
		refusals: []string{"spec.type", "VLLM/LMCache with mode Offload is not supported", "SGLang/External, SGLang/LMCache with mode EventsOnly, SGLang/Memory, VLLM/External"},
	},
	"type Memory needs no mode": {
		object: newBackend("b", func(b *v1alpha1.CacheBackend) { b.Spec.Type, b.Spec.Integration = v1alpha1.BackendMemory, nil }),
	},
	"type External needs no selector": {
		object: newBackend("b", external("engine-1"), func(b *v1alpha1.CacheBackend) {
			b.Spec.Type, b.Spec.Integration, b.Spec.EngineSelector = v1alpha1.BackendExternal, nil, nil
		}),
	},
	"type External without replicas": {
		object:  newBackend("b", func(b *v1alpha1.CacheBackend) { b.Spec.Type = v1alpha1.BackendExternal }),
		warning: "externalReplicas is empty",
	},
	"EventsOnly does not go with HiCache": {
		object: newBackend("b", func(b *v1alpha1.CacheBackend) {
			b.Spec.Runtime, b.Spec.Type = v1alpha1.RuntimeSGLang, v1alpha1.BackendSGLangHiCache
		}),
		refusals: []string{"SGLang/SGLangHiCache with mode EventsOnly is not supported"},
	},
	"HiCache always fails open": {
		object: newBackend("b", integration(func(i *v1alpha1.BackendIntegration) { i.FailOpen = ptr(false) }), func(b *v1alpha1.CacheBackend) {
			b.Spec.Runtime, b.Spec.Type = v1alpha1.RuntimeSGLang, v1alpha1.BackendSGLangHiCache
		}),
		refusals: []string{"spec.integration.failOpen", "always fails open"},
	},
	"role ReadOnly":  {object: newBackend("b", role(v1alpha1.RoleReadOnly)), refusals: []string{"spec.integration.role", "ReadOnly"}},
	"role WriteOnly": {object: newBackend("b", role(v1alpha1.RoleWriteOnly)), refusals: []string{"spec.integration.role", "WriteOnly"}},
	"all violations are told together": {
		object:   newBackend("b", role(v1alpha1.RoleReadOnly), inDomain("a b"), annotation(v1alpha1.AnnotationRequireKVEvents, "no")),
		refusals: []string{"spec.integration.role", "spec.engineSelector.matchLabels", "metadata.annotations"},
	},
	"no selector":                   {object: newBackend("b", func(b *v1alpha1.CacheBackend) { b.Spec.EngineSelector = nil }), warning: "engineSelector is empty"},
	"an empty selector":             {object: newBackend("b", domain(map[string]string{})), warning: "engineSelector is empty"},
	"replicas without a selector":   {object: newBackend("b", external("engine-1"), domain(nil))},
	"a selector by another label":   {object: newBackend("b", domain(map[string]string{"app": "x"})), refusals: []string{"exactly the label inferencecache.io/cache-domain"}},
	"a selector by two labels":      {object: newBackend("b", domain(map[string]string{"app": "x", v1alpha1.LabelCacheDomain: "d"})), refusals: []string{"exactly the label"}},
	"a domain without a name":       {object: newBackend("b", inDomain("")), refusals: []string{"a cache domain has a name"}},
	"a domain that is no label":     {object: newBackend("b", inDomain("a/b")), refusals: []string{"spec.engineSelector.matchLabels[inferencecache.io/cache-domain]"}},
	"a domain that another has":     {existing: []client.Object{newBackend("first", inDomain("d"))}, object: newBackend("b", inDomain("d")), refusals: []string{"Duplicate value", "of CacheBackend first"}},
	"a domain beside another":       {existing: []client.Object{newBackend("first", inDomain("d"))}, object: newBackend("b", inDomain("e"))},
	"no model":                      {object: newBackend("b", model("")), warning: "no publisher is injected"},
	"annotations with known values": {object: newBackend("b", annotation(v1alpha1.AnnotationRequireKVEvents, "false"))},
	"an annotation with another value": {
		object: newBackend("b", annotation(v1alpha1.AnnotationSkipFunctionalProbe, "yes")), refusals: []string{v1alpha1.AnnotationSkipFunctionalProbe, `"yes"`},
	},
	"overrides of a backend that watches": {object: newBackend("b", overrides(v1alpha1.EngineOverrides{Args: []string{"--x"}})), warning: "has no effect"},
	"an override whose name is none": {
		object:   newBackend("b", overrides(v1alpha1.EngineOverrides{Env: []corev1.EnvVar{{Name: "A B", Value: "v"}}})),
		refusals: []string{"spec.integration.engineOverrides.env[0].name"},
	},
	"an override with a value and a source": {
		object: newBackend("b", overrides(v1alpha1.EngineOverrides{Env: []corev1.EnvVar{{Name: "A", Value: "v", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
		}}}})),
		refusals: []string{"env[0].valueFrom", "together with value"},
	},
	"an override with an empty source": {
		object:   newBackend("b", overrides(v1alpha1.EngineOverrides{Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{}}}})),
		refusals: []string{"exactly one source"},
	},
	"an override with two sources": {
		object: newBackend("b", overrides(v1alpha1.EngineOverrides{Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{
			FieldRef:     &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
			SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "k"},
		}}}})),
		refusals: []string{"exactly one source"},
	},
	"ports apart by the ranks":     {object: newBackend("b", kvEvents(v1alpha1.KVEventsSpec{DataParallelRanks: ptr(int32(43))}))},
	"ports too near for the ranks": {object: newBackend("b", kvEvents(v1alpha1.KVEventsSpec{DataParallelRanks: ptr(int32(44))})), refusals: []string{"replayPort", "at least 44 from port 5557"}},
	"no replay needs no distance":  {object: newBackend("b", kvEvents(v1alpha1.KVEventsSpec{DataParallelRanks: ptr(int32(44)), ReplayPort: ptr(int32(0))}))},
	"ports that end beyond the last": {
		object: newBackend("b", kvEvents(v1alpha1.KVEventsSpec{Port: ptr(int32(65535)), DataParallelRanks: ptr(int32(2))})), refusals: []string{"kvEvents.port", "above 65535"},
	},
	"a metrics path without a slash": {
		object:   newBackend("b", observation(func(o *v1alpha1.BackendObservation) { o.EngineMetrics = &v1alpha1.EngineMetricsSpec{Path: "metrics"} })),
		refusals: []string{"spec.observation.engineMetrics.path"},
	},
	"a metrics path with white space": {
		object:   newBackend("b", observation(func(o *v1alpha1.BackendObservation) { o.EngineMetrics = &v1alpha1.EngineMetricsSpec{Path: "/a b"} })),
		refusals: []string{"spec.observation.engineMetrics.path"},
	},
	"an external replica that another has": {
		existing: []client.Object{newBackend("first", external("e1"))}, object: newBackend("b", external("e0", "e1")), refusals: []string{"externalReplicas[1].replicaID", "of CacheBackend first"},
	},
	"external replicas beside another's": {existing: []client.Object{newBackend("first", external("e1"))}, object: newBackend("b", external("e2"))},
}

// resourceCases are the rules of every ResourceRequirements.
var resourceCases = map[string]admissionCase{
	"known resources":                     {object: newBackend("b", resources("memory", "1Gi", "2Gi"))},
	"a request without a limit":           {object: newBackend("b", resources("cpu", "100m", ""))},
	"a request above the limit":           {object: newBackend("b", resources("cpu", "2", "1")), refusals: []string{"requests[cpu]", "must not be above the limit 1"}},
	"a negative quantity":                 {object: newBackend("b", resources("ephemeral-storage", "-1", "")), refusals: []string{"must not be negative"}},
	"a resource nobody knows":             {object: newBackend("b", resources("disk", "1", "1")), refusals: []string{"vendor's prefix"}},
	"a resource of Kubernetes itself":     {object: newBackend("b", resources("kubernetes.io/batch", "1", "1")), refusals: []string{"vendor's prefix"}},
	"a resource of no vendor":             {object: newBackend("b", resources("my.kubernetes.io/nic", "1", "1")), refusals: []string{"vendor's prefix"}},
	"a resource as quotas name it":        {object: newBackend("b", resources("requests.vendor.example/nic", "1", "1")), refusals: []string{"vendor's prefix"}},
	"a vendor's resource":                 {object: newBackend("b", resources("vendor.example/nic", "1", "1"))},
	"a part of a vendor's resource":       {object: newBackend("b", resources("vendor.example/nic", "500m", "500m")), refusals: []string{"must be an integer"}},
	"a vendor's resource without request": {object: newBackend("b", resources("vendor.example/nic", "", "1")), refusals: []string{"must both be set and equal"}},
	"huge pages":                          {object: newBackend("b", resources("hugepages-2Mi", "4Mi", "4Mi"))},
	"a part of a huge page":               {object: newBackend("b", resources("hugepages-2Mi", "3Mi", "3Mi")), refusals: []string{"multiple of the page size 2Mi"}},
	"huge pages without a size":           {object: newBackend("b", resources("hugepages-big", "1", "1")), refusals: []string{"hugepages-<size>"}},
	"huge pages that are overcommitted":   {object: newBackend("b", resources("hugepages-2Mi", "2Mi", "4Mi")), refusals: []string{"must both be set and equal"}},
	"resource claims": {object: newBackend("b", observation(func(o *v1alpha1.BackendObservation) {
		o.Resources = &corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}
	})), refusals: []string{"resource claims are not supported"}},
}

// updateCases are what changes may do to objects with violations.
var updateCases = map[string]admissionCase{
	"an old violation does not block": {
		old: newBackend("b", role(v1alpha1.RoleReadOnly)), object: newBackend("b", role(v1alpha1.RoleReadOnly), model("other")),
	},
	"a new violation blocks": {
		old: newBackend("b"), object: newBackend("b", role(v1alpha1.RoleReadOnly)), refusals: []string{"spec.integration.role"},
	},
	"an old violation in another form is a new one": {
		old: newBackend("b", role(v1alpha1.RoleReadOnly)), object: newBackend("b", role(v1alpha1.RoleWriteOnly)), refusals: []string{`"WriteOnly"`},
	},
	"only the new violation is told": {
		old:      newBackend("b", role(v1alpha1.RoleReadOnly)),
		object:   newBackend("b", role(v1alpha1.RoleReadOnly), resources("cpu", "2", "1")),
		refusals: []string{"requests[cpu]", "!spec.integration.role"},
	},
	"the selector's shape holds always": {
		old:      newBackend("b", domain(map[string]string{"app": "x"})),
		object:   newBackend("b", domain(map[string]string{"app": "x"}), model("other")),
		refusals: []string{"exactly the label"},
	},
	"the domain is unique always": {
		existing: []client.Object{newBackend("first", inDomain("d"))}, old: newBackend("b", inDomain("d")), object: newBackend("b", inDomain("d"), model("other")),
		refusals: []string{"of CacheBackend first"},
	},
	"an external replica that another has can be kept": {
		existing: []client.Object{newBackend("first", external("e1"))},
		old:      newBackend("b", external("e1")), object: newBackend("b", external("e0", "e1"), model("other")),
	},
	"an external replica that another has is not taken later": {
		existing: []client.Object{newBackend("first", external("e1", "e2"))},
		old:      newBackend("b", external("e1")), object: newBackend("b", external("e1", "e2")),
		refusals: []string{"externalReplicas[1].replicaID", "!externalReplicas[0]"},
	},
	"an object in deletion passes": {
		old:      newBackend("b", domain(map[string]string{"app": "x"}), role(v1alpha1.RoleReadOnly)),
		object:   newBackend("b", domain(map[string]string{"app": "x"}), role(v1alpha1.RoleWriteOnly)),
		deleting: true,
	},
	"a second policy can be changed": {
		existing: []client.Object{newPolicy("first")}, old: newPolicy("p"), object: newPolicy("p", func(s *v1alpha1.CachePolicySpec) { s.Eviction = v1alpha1.EvictionLFU }),
	},
	"a shared tenant id can be kept": {
		existing: []client.Object{newTenant("first", "t")}, old: newTenant("ct", "t"),
		object: newTenant("ct", "t", func(s *v1alpha1.CacheTenantSpec) { s.Quota.MaxIndexEntries = ptr(int64(5)) }),
	},
	"a tenant id moves onto another's": {
		existing: []client.Object{newTenant("first", "t")}, old: newTenant("ct", "u"), object: newTenant("ct", "t"), refusals: []string{"of CacheTenant first"},
	},
	"the reserved id stays where it was": {
		old:    newTenant("ct", "inferencecache.io/probe"),
		object: newTenant("ct", "inferencecache.io/probe", func(s *v1alpha1.CacheTenantSpec) { s.Quota.MaxIndexEntries = ptr(int64(5)) }),
	},
	"the reserved id is not taken later": {old: newTenant("ct", "t"), object: newTenant("ct", "inferencecache.io/probe"), refusals: []string{"is reserved"}},
}

func newPolicy(name string, options ...func(*v1alpha1.CachePolicySpec)) *v1alpha1.CachePolicy {
	p := &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, option := range options {
		option(&p.Spec)
	}
	return p
}

func newTenant(name, id string, options ...func(*v1alpha1.CacheTenantSpec)) *v1alpha1.CacheTenant {
	t := &v1alpha1.CacheTenant{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.CacheTenantSpec{TenantID: id}}
	for _, option := range options {
		option(&t.Spec)
	}
	return t
}

// policyCases are the rules of CachePolicies and CacheTenants.
var policyCases = map[string]admissionCase{
	"a policy": {object: newPolicy("p", func(s *v1alpha1.CachePolicySpec) { s.EvictionTTL = &metav1.Duration{Duration: time.Minute} })},
	"a policy of the largest numbers": {object: newPolicy("p", func(s *v1alpha1.CachePolicySpec) {
		most := int32(math.MaxInt32)
		s.MinimumPrefixTokens, s.MinimumMatchedTokens, s.LookupTimeoutMs = &most, &most, &most
	})},
	"a lifetime of nothing": {
		object: newPolicy("p", func(s *v1alpha1.CachePolicySpec) { s.EvictionTTL = &metav1.Duration{} }), refusals: []string{"evictionTTL", "must be above 0"},
	},
	"a chain that is required and switched off": {
		object: newPolicy("p", func(s *v1alpha1.CachePolicySpec) {
			s.Strategy = &v1alpha1.CachePolicyStrategy{EnableChainMatching: ptr(false), RequireChain: ptr(true)}
		}),
		refusals: []string{"spec.strategy", "needs enableChainMatching"},
	},
	"a required chain":               {object: newPolicy("p", func(s *v1alpha1.CachePolicySpec) { s.Strategy = &v1alpha1.CachePolicyStrategy{RequireChain: ptr(true)} })},
	"a second policy":                {existing: []client.Object{newPolicy("first")}, object: newPolicy("p"), refusals: []string{"already has the CachePolicy first"}},
	"a tenant":                       {object: newTenant("ct", "t")},
	"a tenant id that another has":   {existing: []client.Object{newTenant("first", "t")}, object: newTenant("ct", "t"), refusals: []string{"spec.tenantID", "of CacheTenant first"}},
	"the reserved tenant id":         {object: newTenant("ct", "inferencecache.io/probe"), refusals: []string{"is reserved"}},
	"the namespace as tenant id":     {scope: webhook.TenantScopeNamespace, object: newTenant("ct", ownNamespace)},
	"another tenant id than allowed": {scope: webhook.TenantScopeNamespace, object: newTenant("ct", "t"), refusals: []string{"tenant ids are limited to namespaces"}},
}

func newTemplate(body string, slots ...v1alpha1.PromptTemplateSlot) *v1alpha1.PromptTemplate {
	return &v1alpha1.PromptTemplate{ObjectMeta: metav1.ObjectMeta{Name: "pt"}, Spec: v1alpha1.PromptTemplateSpec{Body: body, Slots: slots}}
}

func newTopology(change func(*v1alpha1.PDTopologySpec)) *v1alpha1.PDTopology {
	t := &v1alpha1.PDTopology{ObjectMeta: metav1.ObjectMeta{Name: "pdt"}, Spec: v1alpha1.PDTopologySpec{
		PrefillPools: []v1alpha1.PDPool{{Name: "p", MatchLabels: map[string]string{"role": "prefill"}}},
		DecodePools:  []v1alpha1.PDPool{{Name: "d", MatchLabels: map[string]string{"role": "decode"}}},
	}}
	change(&t.Spec)
	return t
}

func manyPools(n int, role string) (pools []v1alpha1.PDPool) {
	for i := range n {
		pools = append(pools, v1alpha1.PDPool{Name: fmt.Sprint(role, i), MatchLabels: map[string]string{"role": role}})
	}
	return pools
}

// templateCases are the rules of PromptTemplates and PDTopologies.
var templateCases = map[string]admissionCase{
	"a template":                   {object: newTemplate("Answer {{question}}", v1alpha1.PromptTemplateSlot{Name: "question", Type: v1alpha1.SlotMutable})},
	"a placeholder without a slot": {object: newTemplate("Answer {{question}}"), refusals: []string{"UndeclaredSlot"}},
	"a placeholder without an end": {object: newTemplate("Answer {{question"), refusals: []string{"BadPlaceholder"}},
	"text that changes comes first": {
		object:  newTemplate("{{a}} {{b}}", v1alpha1.PromptTemplateSlot{Name: "a", Type: v1alpha1.SlotMutable}, v1alpha1.PromptTemplateSlot{Name: "b", Type: v1alpha1.SlotStable}),
		warning: `Mutable slot "a"`,
	},
	"a topology": {object: newTopology(func(*v1alpha1.PDTopologySpec) {})},
	"a topology of the most pools": {object: newTopology(func(s *v1alpha1.PDTopologySpec) {
		s.PrefillPools, s.DecodePools = manyPools(64, "prefill"), manyPools(64, "decode")
	})},
	"a pool in both roles": {object: newTopology(func(s *v1alpha1.PDTopologySpec) { s.DecodePools[0].Name = "p" }), refusals: []string{"spec.decodePools[0]", "DuplicatePool"}},
	"a pool of every pod":  {object: newTopology(func(s *v1alpha1.PDTopologySpec) { s.PrefillPools[0].MatchLabels = nil }), refusals: []string{"spec.prefillPools[0]", "EmptySelector"}},
	"a pool of labels that are none": {
		object: newTopology(func(s *v1alpha1.PDTopologySpec) { s.DecodePools[0].MatchLabels["a b"] = "c" }), refusals: []string{"spec.decodePools[0].matchLabels"},
	},
	"an accelerator nobody declared": {object: newTopology(func(s *v1alpha1.PDTopologySpec) { s.DecodePools[0].AcceleratorType = "x" }), refusals: []string{"UnknownAcceleratorType"}},
	"the same pods in both roles": {
		object: newTopology(func(s *v1alpha1.PDTopologySpec) {
			s.DecodePools[0].MatchLabels = map[string]string{"role": "prefill", "zone": "a"}
		}),
		refusals: []string{"OverlappingPools"},
	},
	"the same labels on other accelerators": {
		object: newTopology(func(s *v1alpha1.PDTopologySpec) {
			s.AcceleratorTypes = []v1alpha1.PDAcceleratorType{{Name: "x"}, {Name: "y"}}
			s.PrefillPools[0].AcceleratorType, s.DecodePools[0].AcceleratorType = "x", "y"
			s.DecodePools[0].MatchLabels = s.PrefillPools[0].MatchLabels
		}),
	},
}
