// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/commandline"
	"github.com/inferencecache/inference-cache/internal/kernelcheck"
	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

// lmcache offloads the engines of one runtime through LMCache servers.
type lmcache struct {
	runtime v1alpha1.EngineRuntime
	engine  Engine
}

func (l lmcache) Name() string   { return "lmcache-" + l.engine.HashScheme }
func (l lmcache) Version() int   { return 1 }
func (l lmcache) Engine() Engine { return l.engine }

func (l lmcache) Supports(runtime v1alpha1.EngineRuntime, backend *v1alpha1.CacheBackend) bool {
	s := backend.Spec.LMCache
	return runtime == l.runtime && Type(backend) == v1alpha1.BackendLMCache && Mode(backend) == v1alpha1.ModeOffload &&
		s != nil && (s.PodLocal != nil) == (s.Topology == v1alpha1.TopologyPodLocal) && (s.NodeLocal != nil) == (s.Topology == v1alpha1.TopologyNodeLocal)
}

func (l lmcache) SupportsBinding(binding *Binding) bool {
	return binding == nil || binding.Protocol == ProtocolRESP
}

func (l lmcache) SupportedPairs() []Pair {
	return []Pair{{l.runtime, v1alpha1.BackendLMCache, v1alpha1.ModeOffload}}
}

func (l lmcache) Remove(pod *corev1.Pod) {
	removeServer(pod)
	unwireNodeLocal(pod)
	pod.Spec.InitContainers = slices.DeleteFunc(pod.Spec.InitContainers, kernelcheck.IsContainer)
}

// port is where the engine finds its server.
func (l lmcache) port(s *v1alpha1.LMCacheSpec) int32 {
	if s.Topology == v1alpha1.TopologyNodeLocal {
		return s.NodeLocal.Server.Port
	}
	return s.PodLocal.Server.Port
}

// lmcacheVLLM wires vLLM.
type lmcacheVLLM struct{ lmcache }

var (
	_ Adapter       = lmcacheVLLM{}
	_ PodValidator  = lmcacheVLLM{}
	_ PairLister    = lmcacheVLLM{}
	_ Remover       = lmcacheVLLM{}
	_ KernelChecker = lmcacheVLLM{}
)

const (
	transferFlag     = "--kv-transfer-config"
	hybridFlag       = "--disable-hybrid-kv-cache-manager"
	hashSeedVariable = "PYTHONHASHSEED"
	hashSeed         = "0"
)

func (lmcacheVLLM) ReservedArgs() []string { return []string{transferFlag, hybridFlag} }
func (lmcacheVLLM) ReservedEnv() []string {
	return []string{hashSeedVariable, failOpenVariable, nodelocal.NodeIPVariable}
}

// ValidateEnginePod wants one rank, and flags that leave room for ours.
func (a lmcacheVLLM) ValidateEnginePod(pod *corev1.Pod, w Wiring) error {
	line, err := readable(pod, w)
	if err != nil {
		return err
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == kernelcheck.ContainerName {
			return unfit(ReasonReservedNameConflict, "the pod has a container named %s", c.Name)
		}
	}
	for _, names := range [][]string{{"--pipeline-parallel-size", "-pp"}, {"--data-parallel-size", "-dp"}} {
		if err := checkSingle(line, names...); err != nil {
			return err
		}
	}
	for _, names := range [][]string{
		{"--data-parallel-rank", "-dpn"}, {"--data-parallel-start-rank", "-dpr"}, {"--data-parallel-size-local", "-dpl"},
		{"--data-parallel-address", "-dpa"}, {"--data-parallel-rpc-port", "-dpp"},
	} {
		if line.Count(names...) > 0 {
			return unfit(ReasonParallelism, "%s: engines of several data-parallel ranks are not supported", names[0])
		}
	}
	for _, err := range []error{
		checkOnce(line, transferFlag), checkSwitch(line, hybridFlag),
		checkAbsent(line, "does not go with LMCache", "--no-disable-hybrid-kv-cache-manager"),
		checkVariable(engineOf(pod, w.Container), hashSeedVariable, hashSeed),
	} {
		if err != nil {
			return err
		}
	}
	return a.checkServer(pod, w, line)
}

// checkSingle wants a degree of parallelism to be 1, and given once.
func checkSingle(line commandline.Line, names ...string) error {
	values := line.Values(names...)
	switch {
	case line.Count(names...) > 1:
		return unfit(ReasonParallelism, "%s is given more than once", names[0])
	case line.Count(names...) == 1 && (len(values) == 0 || values[0] != "1"):
		return unfit(ReasonParallelism, "%s is %q; LMCache needs 1", names[0], strings.Join(values, ""))
	}
	return nil
}

// transferConfig is the value of --kv-transfer-config.
type transferConfig struct {
	Connector string        `json:"kv_connector"`
	Module    string        `json:"kv_connector_module_path"`
	Role      string        `json:"kv_role"`
	Extra     transferExtra `json:"kv_connector_extra_config"`
}

type transferExtra struct {
	Host string `json:"lmcache.mp.host"`
	Port string `json:"lmcache.mp.port"`
}

// InjectEngineConfig points vLLM at its server and adds a server of the pod.
func (a lmcacheVLLM) InjectEngineConfig(pod *corev1.Pod, w Wiring) error {
	s := w.Backend.Spec.LMCache
	host := "tcp://" + loopback
	if s.Topology == v1alpha1.TopologyNodeLocal {
		host = "tcp://$(" + nodelocal.NodeIPVariable + ")"
	}
	value, err := json.Marshal(transferConfig{
		Connector: "LMCacheMPConnector", Module: "lmcache.integration.vllm.lmcache_mp_connector", Role: "kv_both",
		Extra: transferExtra{Host: host, Port: strconv.Itoa(int(a.port(s)))},
	})
	if err != nil {
		return fmt.Errorf("encode %s: %w", transferFlag, err)
	}
	c := engineOf(pod, w.Container)
	line := commandline.Of(c)
	commandline.Set(c, transferFlag, string(value))
	setSwitch(c, line, hybridFlag)
	setVariable(c, corev1.EnvVar{Name: hashSeedVariable, Value: hashSeed})
	setFailOpen(c, w.Backend)
	return a.addServer(pod, w, line, false)
}

// KernelCheckInitContainer has the engine's own image load the kernels.
func (lmcacheVLLM) KernelCheckInitContainer(pod *corev1.Pod, w Wiring) *corev1.Container {
	c, mode := engineOf(pod, w.Container), v1alpha1.KernelCheck(w.Backend)
	if !kernelcheck.Wanted(mode, c) {
		return nil
	}
	check := kernelcheck.Container(c, mode == v1alpha1.KernelCheckStrict, Guaranteed(&pod.Spec))
	return &check
}

// lmcacheSGLang wires SGLang.
type lmcacheSGLang struct{ lmcache }

var (
	_ Adapter      = lmcacheSGLang{}
	_ PodValidator = lmcacheSGLang{}
	_ PairLister   = lmcacheSGLang{}
	_ Remover      = lmcacheSGLang{}
)

const (
	enableLMCacheFlag    = "--enable-lmcache"
	lmcacheConfigFlag    = "--lmcache-config-file"
	enableMetricsFlag    = "--enable-metrics"
	pageSizeFlag         = "--page-size"
	experimentalVariable = "LMCACHE_USE_EXPERIMENTAL"
	experimental         = "True"
	// ourConfigs is where configuration files of ours are mounted.
	ourConfigs = "/var/run/inference-cache/"
)

func (lmcacheSGLang) ReservedArgs() []string {
	return []string{enableLMCacheFlag, lmcacheConfigFlag, enableMetricsFlag}
}
func (lmcacheSGLang) ReservedEnv() []string {
	return []string{experimentalVariable, failOpenVariable, nodelocal.NodeIPVariable}
}

// ValidateEnginePod wants chunks of whole pages, and flags that leave room for
// ours.
func (a lmcacheSGLang) ValidateEnginePod(pod *corev1.Pod, w Wiring) error {
	line, err := readable(pod, w)
	if err != nil {
		return err
	}
	for _, err := range []error{
		checkPages(line, nodelocal.ChunkTokens(w.Backend.Spec.LMCache)),
		checkSwitch(line, enableLMCacheFlag), checkSwitch(line, enableMetricsFlag), checkOnce(line, lmcacheConfigFlag),
		checkAbsent(line, "does not go with LMCache", "--enable-hierarchical-cache", "--disable-radix-cache"),
		checkVariable(engineOf(pod, w.Container), experimentalVariable, experimental),
	} {
		if err != nil {
			return err
		}
	}
	for _, file := range line.Values(lmcacheConfigFlag) {
		if !strings.HasPrefix(file, ourConfigs) {
			return unfit(ReasonEngineArgsConflict, "%s names a file of the engine's own", lmcacheConfigFlag)
		}
	}
	return a.checkServer(pod, w, line)
}

func checkPages(line commandline.Line, chunk int32) error {
	if n := line.Count(pageSizeFlag); n > 1 {
		return unfit(ReasonEngineArgsConflict, "%s is given %d times", pageSizeFlag, n)
	}
	size, ok := line.Number(1<<20, pageSizeFlag)
	switch {
	case !ok:
		return unfit(ReasonPageSizeMissing, "%s is not given as a number; LMCache chunks have %d tokens", pageSizeFlag, chunk)
	case chunk%size != 0:
		return unfit(ReasonPageSizeMismatch, "%s is %d; spec.lmCache.chunkSizeTokens %d is no multiple of it", pageSizeFlag, size, chunk)
	}
	return nil
}

// InjectEngineConfig points SGLang at its server and adds a server of the pod.
func (a lmcacheSGLang) InjectEngineConfig(pod *corev1.Pod, w Wiring) error {
	file := ClientFile
	if w.Backend.Spec.LMCache.Topology == v1alpha1.TopologyNodeLocal {
		file = nodelocal.ConfigFile
	}
	c := engineOf(pod, w.Container)
	line := commandline.Of(c)
	setSwitch(c, line, enableLMCacheFlag)
	commandline.Set(c, lmcacheConfigFlag, file)
	if w.Observed {
		setSwitch(c, line, enableMetricsFlag)
	}
	setVariable(c, corev1.EnvVar{Name: experimentalVariable, Value: experimental})
	setFailOpen(c, w.Backend)
	return a.addServer(pod, w, line, true)
}
