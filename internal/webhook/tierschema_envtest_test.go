// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// tierSchemaCases are what the resource definition alone refuses of tiers.
var tierSchemaCases = map[string]admissionCase{
	"a server by tag":                 {object: podLocal(server(func(s *v1alpha1.PodLocalServer) { s.Image = "ic.test/lmcache:1" })), refusals: []string{"server.image"}},
	"a server on the events' port":    {object: podLocal(server(func(s *v1alpha1.PodLocalServer) { s.Port = 5557 })), refusals: []string{"5557 and 8080"}},
	"a server on the health port":     {object: podLocal(server(func(s *v1alpha1.PodLocalServer) { s.Port = 8080 })), refusals: []string{"5557 and 8080"}},
	"a server without memory":         {object: podLocal(server(func(s *v1alpha1.PodLocalServer) { s.L1Capacity = resource.MustParse("0") })), refusals: []string{"l1Capacity must be above 0"}},
	"a server without workers":        {object: podLocal(server(func(s *v1alpha1.PodLocalServer) { s.MaxWorkers = 0 })), refusals: []string{"maxWorkers"}},
	"chunks of nothing":               {object: podLocal(spec(func(s *v1alpha1.CacheBackendSpec) { s.LMCache.ChunkSizeTokens = ptr(int32(0)) })), refusals: []string{"chunkSizeTokens"}},
	"a topology nobody knows":         {object: podLocal(spec(func(s *v1alpha1.CacheBackendSpec) { s.LMCache.Topology = "Cluster" })), refusals: []string{"lmCache.topology"}},
	"a topology without its server":   {object: podLocal(spec(func(s *v1alpha1.CacheBackendSpec) { s.LMCache.Topology = v1alpha1.TopologyNodeLocal })), refusals: []string{"podLocal is set if and only if", "nodeLocal is set if and only if"}},
	"one port for two things":         {object: nodeLocal(nodeServer(func(s *v1alpha1.NodeLocalServer) { s.HTTPPort = s.Port })), refusals: []string{"port and httpPort must differ"}},
	"a node's server without workers": {object: nodeLocal(nodeServer(func(s *v1alpha1.NodeLocalServer) { s.MaxGPUWorkers, s.MaxCPUWorkers = 0, 0 })), refusals: []string{"maxGPUWorkers", "maxCPUWorkers"}},
	"a node's server by tag":          {object: nodeLocal(nodeServer(func(s *v1alpha1.NodeLocalServer) { s.Image = "x@sha256:12" })), refusals: []string{"server.image"}},
	"a retention of two days":         {object: nodeLocal(spec(func(s *v1alpha1.CacheBackendSpec) { s.LMCache.NodeLocal.IdleRetentionSeconds = ptr(int32(172800)) })), refusals: []string{"idleRetentionSeconds"}},
	"a gate of two hours":             {object: nodeLocal(spec(func(s *v1alpha1.CacheBackendSpec) { s.LMCache.NodeLocal.GateTimeoutSeconds = ptr(int32(7200)) })), refusals: []string{"gateTimeoutSeconds"}},
	"a negative grace": {object: nodeLocal(spec(func(s *v1alpha1.CacheBackendSpec) {
		s.LMCache.NodeLocal.Scheduling = &v1alpha1.PodScheduling{TerminationGracePeriodSeconds: ptr(int64(-1))}
	})), refusals: []string{"terminationGracePeriodSeconds"}},
	"a provider nobody knows":          {object: podLocal(managed(), spec(func(s *v1alpha1.CacheBackendSpec) { s.RemoteStorage.Provider = "Memcached" })), refusals: []string{"remoteStorage.provider"}},
	"an owner nobody knows":            {object: podLocal(managed(), spec(func(s *v1alpha1.CacheBackendSpec) { s.RemoteStorage.Ownership = "Shared" })), refusals: []string{"remoteStorage.ownership"}},
	"an external one without endpoint": {object: podLocal(externalAt("")), refusals: []string{"External needs an endpoint"}},
	"a managed one with endpoint":      {object: podLocal(managed(), spec(func(s *v1alpha1.CacheBackendSpec) { s.RemoteStorage.Endpoint = "a:1" })), refusals: []string{"Managed has no endpoint"}},
	"a workload that is not ours":      {object: podLocal(externalAt("a:1", func(r *v1alpha1.RemoteStorageSpec) { r.Workload = &v1alpha1.WorkloadScheduling{} })), refusals: []string{"External has no workload"}},
	"an image that is not ours":        {object: podLocal(externalAt("a:1", func(r *v1alpha1.RemoteStorageSpec) { r.Redis = &v1alpha1.RedisSpec{Image: "x"} })), refusals: []string{"no redis.image"}},
	"resources that are not ours": {object: podLocal(externalAt("a:1", func(r *v1alpha1.RemoteStorageSpec) {
		r.Redis = &v1alpha1.RedisSpec{Resources: &corev1.ResourceRequirements{}}
	})), refusals: []string{"no redis.resources"}},
	"credentials without password": {object: podLocal(managed(auth(v1alpha1.RedisAuthentication{}))), refusals: []string{"authentication.password"}},
	"HiCache by size and ratio":    {object: hiCache(ratio("1"), spec(func(s *v1alpha1.CacheBackendSpec) { s.HiCache.SizeGB = ptr(int32(1)) })), refusals: []string{"exactly one of sizeGB and ratio"}},
	"HiCache by neither":           {object: hiCache(spec(func(s *v1alpha1.CacheBackendSpec) { s.HiCache.SizeGB = nil })), refusals: []string{"exactly one of sizeGB and ratio"}},
	"HiCache of nothing":           {object: hiCache(spec(func(s *v1alpha1.CacheBackendSpec) { s.HiCache.SizeGB = ptr(int32(0)) })), refusals: []string{"sizeGB"}},
	"HiCache with unknown settings": {object: hiCache(spec(func(s *v1alpha1.CacheBackendSpec) {
		s.HiCache.WritePolicy, s.HiCache.IOBackend, s.HiCache.MemoryLayout = "x", "y", "z"
	})), refusals: []string{"writePolicy", "ioBackend", "memoryLayout"}},
}
