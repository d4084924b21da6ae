// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
)

const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func amounts(cpu, memory string) corev1.ResourceList {
	list := corev1.ResourceList{}
	maps.Copy(list, quantities(corev1.ResourceCPU, cpu))
	maps.Copy(list, quantities(corev1.ResourceMemory, memory))
	return list
}

// podLocal is a backend with a server in each pod, changed.
func podLocal(changes ...backendOption) *v1alpha1.CacheBackend {
	b := newBackend("b", integration(func(i *v1alpha1.BackendIntegration) { i.Mode = v1alpha1.ModeOffload }))
	b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.TopologyPodLocal, PodLocal: &v1alpha1.PodLocalLMCache{Server: v1alpha1.PodLocalServer{
		Image: "ic.test/lmcache" + digest, Port: 5555, L1Capacity: resource.MustParse("4Gi"), MaxWorkers: 1,
		Resources: corev1.ResourceRequirements{Requests: amounts("1", "5Gi"), Limits: amounts("", "5Gi")},
	}}}
	for _, change := range changes {
		change(b)
	}
	return b
}

// nodeLocal is a backend with a server on each node, changed.
func nodeLocal(changes ...backendOption) *v1alpha1.CacheBackend {
	b := podLocal()
	b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.TopologyNodeLocal, NodeLocal: &v1alpha1.NodeLocalLMCache{Server: v1alpha1.NodeLocalServer{
		Image: "ic.test/lmcache" + digest, Port: 5557, HTTPPort: 8080, L1Capacity: resource.MustParse("4Gi"), MaxGPUWorkers: 1, MaxCPUWorkers: 1,
		Resources: corev1.ResourceRequirements{Requests: amounts("1", "5Gi"), Limits: amounts("", "5Gi")},
	}}}
	for _, change := range changes {
		change(b)
	}
	return b
}

// hiCache is a backend with SGLang's own tier, changed.
func hiCache(changes ...backendOption) *v1alpha1.CacheBackend {
	b := newBackend("b", integration(func(i *v1alpha1.BackendIntegration) { i.Mode = v1alpha1.ModeOffload }))
	b.Spec.Runtime, b.Spec.Type = v1alpha1.RuntimeSGLang, v1alpha1.BackendSGLangHiCache
	b.Spec.HiCache = &v1alpha1.HiCacheSpec{SizeGB: ptr(int32(8))}
	for _, change := range changes {
		change(b)
	}
	return b
}

func spec(change func(*v1alpha1.CacheBackendSpec)) backendOption {
	return func(b *v1alpha1.CacheBackend) { change(&b.Spec) }
}

func server(change func(*v1alpha1.PodLocalServer)) backendOption {
	return func(b *v1alpha1.CacheBackend) { change(&b.Spec.LMCache.PodLocal.Server) }
}

func nodeServer(change func(*v1alpha1.NodeLocalServer)) backendOption {
	return func(b *v1alpha1.CacheBackend) { change(&b.Spec.LMCache.NodeLocal.Server) }
}

func ratio(text string) backendOption {
	return func(b *v1alpha1.CacheBackend) { b.Spec.HiCache = &v1alpha1.HiCacheSpec{Ratio: &text} }
}

func managed(changes ...func(*v1alpha1.RedisSpec)) backendOption {
	return func(b *v1alpha1.CacheBackend) {
		b.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Provider: v1alpha1.ProviderRedis, Ownership: v1alpha1.OwnershipManaged, Redis: &v1alpha1.RedisSpec{}}
		for _, change := range changes {
			change(b.Spec.RemoteStorage.Redis)
		}
	}
}

func externalAt(endpoint string, changes ...func(*v1alpha1.RemoteStorageSpec)) backendOption {
	return func(b *v1alpha1.CacheBackend) {
		b.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Provider: v1alpha1.ProviderRedis, Ownership: v1alpha1.OwnershipExternal, Endpoint: endpoint}
		for _, change := range changes {
			change(b.Spec.RemoteStorage)
		}
	}
}

func secret(name, key string) *corev1.SecretKeySelector {
	return &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key}
}

func auth(a v1alpha1.RedisAuthentication) func(*v1alpha1.RedisSpec) {
	return func(r *v1alpha1.RedisSpec) { r.Authentication = &a }
}

func crossing(b *v1alpha1.CacheBackend) { b.Spec.AllowCrossNamespace = true }

func tooOpen(s *corev1.SecretKeySelector) *corev1.SecretKeySelector {
	s.Optional = ptr(true)
	return s
}

// tierCases are the rules of storage tiers.
var tierCases = map[string]admissionCase{
	"a server in each pod":      {object: podLocal()},
	"a server on each node":     {object: nodeLocal()},
	"SGLang's own tier by size": {object: hiCache()},
	"type LMCache without servers": {
		object: podLocal(spec(func(s *v1alpha1.CacheBackendSpec) { s.LMCache = nil })), refusals: []string{"spec.lmCache", "needs its servers", "!is not supported"},
	},
	"servers of a backend that watches": {object: podLocal(integration(func(i *v1alpha1.BackendIntegration) { i.Mode = v1alpha1.ModeEventsOnly })), refusals: []string{"spec.lmCache: Forbidden"}},
	"a storage of a backend that watches": {
		object: podLocal(managed(), integration(func(i *v1alpha1.BackendIntegration) { i.Mode = v1alpha1.ModeEventsOnly })), refusals: []string{"spec.remoteStorage: Forbidden"},
	},
	"servers of HiCache":                 {object: hiCache(spec(func(s *v1alpha1.CacheBackendSpec) { s.LMCache = podLocal().Spec.LMCache })), refusals: []string{"spec.lmCache: Forbidden"}},
	"a storage of HiCache":               {object: hiCache(managed()), refusals: []string{"spec.remoteStorage: Forbidden"}},
	"HiCache's settings of another type": {object: podLocal(spec(func(s *v1alpha1.CacheBackendSpec) { s.HiCache = &v1alpha1.HiCacheSpec{SizeGB: ptr(int32(1))} })), refusals: []string{"spec.hiCache: Forbidden"}},
	"HiCache without settings":           {object: hiCache(spec(func(s *v1alpha1.CacheBackendSpec) { s.HiCache = nil })), refusals: []string{"spec.hiCache", "a size or a ratio", "!is not supported"}},
	"HiCache without a selector":         {object: hiCache(spec(func(s *v1alpha1.CacheBackendSpec) { s.EngineSelector = nil })), refusals: []string{"spec.engineSelector"}},
	"HiCache that fails closed":          {object: hiCache(integration(func(i *v1alpha1.BackendIntegration) { i.FailOpen = ptr(false) })), refusals: []string{"always fails open"}},
	"HiCache that only reads":            {object: hiCache(role(v1alpha1.RoleReadOnly)), refusals: []string{"spec.integration.role"}},
	"HiCache of vLLM": {object: hiCache(spec(func(s *v1alpha1.CacheBackendSpec) { s.Runtime = v1alpha1.RuntimeVLLM })), refusals: []string{
		"VLLM/SGLangHiCache with mode Offload is not supported; supported are SGLang/External, SGLang/LMCache, SGLang/Memory, " +
			"SGLang/SGLangHiCache with mode Offload, VLLM/External, VLLM/LMCache, VLLM/Memory",
	}},
	"HiCache by ratio":                 {object: hiCache(ratio("1.5"))},
	"a ratio of nothing":               {object: hiCache(ratio("0")), refusals: []string{"spec.hiCache.ratio", "above 0"}},
	"a ratio the engine cannot read":   {object: hiCache(ratio("0x1p-2")), refusals: []string{"spec.hiCache.ratio"}},
	"a ratio without an end":           {object: hiCache(ratio("Inf")), refusals: []string{"spec.hiCache.ratio"}},
	"a ratio that is none":             {object: hiCache(ratio("NaN")), refusals: []string{"spec.hiCache.ratio"}},
	"a ratio in words":                 {object: hiCache(ratio("two")), refusals: []string{"spec.hiCache.ratio"}},
	"a server without cpu":             {object: podLocal(server(func(s *v1alpha1.PodLocalServer) { s.Resources.Requests = amounts("", "5Gi") })), refusals: []string{"resources.requests[cpu]"}},
	"a server of little memory":        {object: podLocal(server(func(s *v1alpha1.PodLocalServer) { s.L1Capacity = resource.MustParse("4097Mi") })), refusals: []string{"podLocal.server.resources.requests[memory]", "resources.limits[memory]", "at least 5121Mi"}},
	"a server without a limit":         {object: podLocal(server(func(s *v1alpha1.PodLocalServer) { s.Resources.Limits = nil })), refusals: []string{"resources.limits[memory]"}},
	"a server on the publisher's port": {object: podLocal(server(func(s *v1alpha1.PodLocalServer) { s.Port = 9095 })), refusals: []string{"server.port", "publisher"}},
	"a server on an event port":        {object: podLocal(kvEvents(v1alpha1.KVEventsSpec{Port: ptr(int32(5555))})), refusals: []string{"server.port", "spec.observation.kvEvents"}},
	"a server on a replay port":        {object: podLocal(kvEvents(v1alpha1.KVEventsSpec{ReplayPort: ptr(int32(5553)), DataParallelRanks: ptr(int32(3))})), refusals: []string{"server.port", "spec.observation.kvEvents"}},
	"a node's server with a GPU": {object: nodeLocal(nodeServer(func(s *v1alpha1.NodeLocalServer) {
		s.Resources.Requests["nvidia.com/gpu"], s.Resources.Limits["nvidia.com/gpu"] = resource.MustParse("1"), resource.MustParse("1")
	})), refusals: []string{"resources.limits[nvidia.com/gpu]", "resources.requests[nvidia.com/gpu]"}},
	"a node's server of little memory": {object: nodeLocal(nodeServer(func(s *v1alpha1.NodeLocalServer) { s.L1Capacity = resource.MustParse("5Gi") })), refusals: []string{"nodeLocal.server.resources.limits[memory]"}},
	"a node's server without engines":  {object: nodeLocal(spec(func(s *v1alpha1.CacheBackendSpec) { s.EngineSelector = nil })), refusals: []string{"spec.engineSelector"}},
	"scheduling with names": {object: nodeLocal(spec(func(s *v1alpha1.CacheBackendSpec) {
		s.LMCache.NodeLocal.Scheduling = &v1alpha1.PodScheduling{ServiceAccountName: "sa", PriorityClassName: "high", TerminationGracePeriodSeconds: ptr(int64(0))}
	}))},
	"scheduling with a name that is none": {object: nodeLocal(spec(func(s *v1alpha1.CacheBackendSpec) {
		s.LMCache.NodeLocal.Scheduling = &v1alpha1.PodScheduling{ServiceAccountName: "a b", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "_"}}}
	})), refusals: []string{"scheduling.serviceAccountName", "scheduling.imagePullSecrets[0].name"}},

	"a managed Redis": {object: podLocal(managed())},
	"a managed Redis whose name no Service can have": {object: podLocal(managed(), func(b *v1alpha1.CacheBackend) { b.Name = "1.b" }), refusals: []string{"metadata.name", "managed storage"}},
	"a managed Redis with a password":                {object: podLocal(managed(auth(v1alpha1.RedisAuthentication{Password: secret("s", "k")})))},
	"a managed Redis with a user":                    {object: podLocal(managed(auth(v1alpha1.RedisAuthentication{Username: secret("s", "u"), Password: secret("s", "k")}))), refusals: []string{"authentication.username", "default user"}},
	"a user of an external Redis": {object: podLocal(externalAt("redis:6379", func(r *v1alpha1.RemoteStorageSpec) {
		r.Redis = &v1alpha1.RedisSpec{Authentication: &v1alpha1.RedisAuthentication{Username: secret("s", "u"), Password: secret("s", "k")}}
	}))},
	"a secret with a bad name":     {object: podLocal(managed(auth(v1alpha1.RedisAuthentication{Password: secret("A b", "k")}))), refusals: []string{"password.name"}},
	"a secret with a bad key":      {object: podLocal(managed(auth(v1alpha1.RedisAuthentication{Password: secret("s", "a/b")}))), refusals: []string{"password.key"}},
	"a secret that may be missing": {object: podLocal(managed(auth(v1alpha1.RedisAuthentication{Password: tooOpen(secret("s", "k"))}))), refusals: []string{"password.optional"}},
	"credentials of a backend that has no servers": {
		object: hiCache(managed(auth(v1alpha1.RedisAuthentication{Password: secret("s", "k")}))), refusals: []string{"redis.authentication", "take credentials"},
	},
	"Redis with TLS":        {object: podLocal(managed(func(r *v1alpha1.RedisSpec) { r.TLS = &v1alpha1.RedisTLS{} })), refusals: []string{"redis.tls"}},
	"Redis with a database": {object: podLocal(managed(func(r *v1alpha1.RedisSpec) { r.Database = ptr(int32(1)) })), refusals: []string{"redis.database"}},
	"Redis with bad resources": {object: podLocal(managed(func(r *v1alpha1.RedisSpec) {
		r.Resources = &corev1.ResourceRequirements{Requests: amounts("2", ""), Limits: amounts("1", "")}
	})), refusals: []string{"redis.resources.requests[cpu]"}},
	"Redis with a broken image": {object: podLocal(managed(func(r *v1alpha1.RedisSpec) { r.Image = "a b" })), refusals: []string{"redis.image"}},
	"a workload with a bad name": {object: podLocal(managed(), spec(func(s *v1alpha1.CacheBackendSpec) {
		s.RemoteStorage.Workload = &v1alpha1.WorkloadScheduling{PodScheduling: v1alpha1.PodScheduling{PriorityClassName: "A b"}}
	})), refusals: []string{"workload.priorityClassName"}},

	"an external Redis":                    {object: podLocal(externalAt("redis.example:6379"))},
	"an IPv6 endpoint":                     {object: podLocal(externalAt("[fd00::1]:6379"))},
	"an endpoint with a scheme":            {object: podLocal(externalAt("redis://redis:6379")), refusals: []string{"remoteStorage.endpoint", "without a scheme"}},
	"an endpoint with white space":         {object: podLocal(externalAt("redis :6379")), refusals: []string{"white space"}},
	"an endpoint with a control character": {object: podLocal(externalAt("redis\u0001:6379")), refusals: []string{"control characters"}},
	"an endpoint without a port":           {object: podLocal(externalAt("redis")), refusals: []string{"host:port"}},
	"an endpoint with port 0":              {object: podLocal(externalAt("redis:0")), refusals: []string{"port from 1"}},
	"an endpoint with a huge port":         {object: podLocal(externalAt("redis:65536")), refusals: []string{"port from 1"}},
	"an IPv6 endpoint without bounds":      {object: podLocal(externalAt("fd00::1:6379")), refusals: []string{"remoteStorage.endpoint"}},
	"a Service elsewhere":                  {object: podLocal(externalAt("redis.elsewhere.svc:6379")), refusals: []string{"namespace elsewhere", "allowCrossNamespace"}},
	"a Service elsewhere, in full":         {object: podLocal(externalAt("Redis.elsewhere.svc.cluster.local.:6379")), refusals: []string{"namespace elsewhere"}},
	"a Service elsewhere, with many dots":  {object: podLocal(externalAt("redis.elsewhere.svc.cluster.local..:6379")), refusals: []string{"namespace elsewhere"}},
	"a Service elsewhere, by wide dots":    {object: podLocal(externalAt("redis\u3002elsewhere\u3002svc:6379")), refusals: []string{"remoteStorage.endpoint", "letters, digits"}},
	"the namespace's own Service":          {object: podLocal(externalAt("redis." + ownNamespace + ".svc:6379"))},
	"a Service elsewhere, as it was":       {old: podLocal(externalAt("redis.elsewhere.svc:6379")), object: podLocal(externalAt("redis.elsewhere.svc:6379"), model("other"))},
	"another Service of the same place":    {old: podLocal(externalAt("redis.elsewhere.svc:6379")), object: podLocal(externalAt("keys.elsewhere.svc:6379")), refusals: []string{"keys.elsewhere.svc:6379 is in namespace elsewhere"}},
	"a Service elsewhere, allowed":         {object: podLocal(externalAt("redis.elsewhere.svc:6379"), crossing)},
	"a host that looks like no Service":    {object: podLocal(externalAt("redis.elsewhere.svc.example:6379"))},

	"an override of the transfer":          {object: podLocal(overrides(v1alpha1.EngineOverrides{Args: []string{"--kv-transfer-config={}"}})), refusals: []string{"engineOverrides.args[0]", "belongs to the integration"}},
	"an override in the engine's spelling": {object: podLocal(overrides(v1alpha1.EngineOverrides{SuppressArgs: []string{"--kv_transfer_config"}})), refusals: []string{"suppressArgs[0]"}},
	"an override of a member":              {object: podLocal(overrides(v1alpha1.EngineOverrides{Args: []string{"--kv-transfer-config.kv_role=kv_consumer"}})), refusals: []string{"args[0]"}},
	"an override that negates a switch":    {object: podLocal(overrides(v1alpha1.EngineOverrides{Args: []string{"--no-disable-hybrid-kv-cache-manager"}})), refusals: []string{"args[0]"}},
	"an override beside a missing server": {
		object:   podLocal(spec(func(s *v1alpha1.CacheBackendSpec) { s.LMCache = nil }), overrides(v1alpha1.EngineOverrides{Args: []string{"--kv-transfer-config={}"}})),
		refusals: []string{"spec.lmCache", "args[0]"},
	},
	"an override of the seed":       {object: podLocal(overrides(v1alpha1.EngineOverrides{Env: []corev1.EnvVar{{Name: "PYTHONHASHSEED", Value: "1"}}, SuppressEnv: []string{"INFERENCECACHE_FAIL_OPEN"}})), refusals: []string{"env[0].name", "suppressEnv[0]"}},
	"an override of HiCache":        {object: hiCache(overrides(v1alpha1.EngineOverrides{Args: []string{"--hicache-ratio", "9"}})), refusals: []string{"args[0]"}},
	"an override of something else": {object: podLocal(overrides(v1alpha1.EngineOverrides{Args: []string{"--max-model-len=9"}, Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}))},
	"a kernel check":                {object: podLocal(annotation(v1alpha1.AnnotationKernelCheck, "strict"))},
	"a kernel check nobody knows":   {object: podLocal(annotation(v1alpha1.AnnotationKernelCheck, "maybe")), refusals: []string{v1alpha1.AnnotationKernelCheck, "report-only"}},
}

func TestTierRules(t *testing.T) { runCasesWith(t, adapter.All(), tierCases) }
