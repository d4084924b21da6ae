// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/commandline"
)

// hicache has SGLang offload to its own hierarchical cache.
type hicache struct{}

var (
	_ Adapter      = hicache{}
	_ PodValidator = hicache{}
	_ PairLister   = hicache{}
)

const (
	hierarchicalFlag = "--enable-hierarchical-cache"
	hicacheSizeFlag  = "--hicache-size"
	hicacheRatioFlag = "--hicache-ratio"
	writePolicyFlag  = "--hicache-write-policy"
	ioBackendFlag    = "--hicache-io-backend"
	memoryLayoutFlag = "--hicache-mem-layout"
)

func (hicache) Name() string   { return "hicache-sglang" }
func (hicache) Version() int   { return 1 }
func (hicache) Engine() Engine { return sglang().engine }

func (hicache) Supports(runtime v1alpha1.EngineRuntime, backend *v1alpha1.CacheBackend) bool {
	return runtime == v1alpha1.RuntimeSGLang && Type(backend) == v1alpha1.BackendSGLangHiCache &&
		Mode(backend) == v1alpha1.ModeOffload && backend.Spec.HiCache != nil
}

func (hicache) SupportsBinding(binding *Binding) bool { return binding == nil }

func (hicache) SupportedPairs() []Pair {
	return []Pair{{v1alpha1.RuntimeSGLang, v1alpha1.BackendSGLangHiCache, v1alpha1.ModeOffload}}
}

func (hicache) ReservedArgs() []string {
	return []string{
		hierarchicalFlag, hicacheSizeFlag, hicacheRatioFlag, writePolicyFlag, ioBackendFlag, memoryLayoutFlag, enableMetricsFlag,
	}
}
func (hicache) ReservedEnv() []string { return nil }

// setting is a flag with the value that the backend wants.
type setting struct {
	flag, value string
	// decimal values are equal as numbers.
	decimal bool
}

func settings(h *v1alpha1.HiCacheSpec) (wanted []setting) {
	if h.SizeGB != nil {
		wanted = append(wanted, setting{hicacheSizeFlag, strconv.Itoa(int(*h.SizeGB)), true})
	}
	if h.Ratio != nil {
		wanted = append(wanted, setting{hicacheRatioFlag, *h.Ratio, true})
	}
	for _, s := range []setting{{writePolicyFlag, h.WritePolicy, false}, {ioBackendFlag, h.IOBackend, false}, {memoryLayoutFlag, h.MemoryLayout, false}} {
		if s.value != "" {
			wanted = append(wanted, s)
		}
	}
	return wanted
}

// accepts says whether a value that the engine has is the one wanted.
func (s setting) accepts(value string) bool {
	if value == s.value {
		return true
	}
	a, errA := strconv.ParseFloat(value, 64)
	b, errB := strconv.ParseFloat(s.value, 64)
	return s.decimal && errA == nil && errB == nil && a == b
}

// ValidateEnginePod wants the engine's own settings to be those of the backend.
func (hicache) ValidateEnginePod(pod *corev1.Pod, w Wiring) error {
	line, err := readable(pod, w)
	if err != nil {
		return err
	}
	h := w.Backend.Spec.HiCache
	other := hicacheRatioFlag
	if h.Ratio != nil {
		other = hicacheSizeFlag
	}
	for _, err := range []error{
		checkAbsent(line, "does not go with HiCache", enableLMCacheFlag, lmcacheConfigFlag, "--disable-radix-cache"),
		checkAbsent(line, "contradicts spec.hiCache", other),
		checkSwitch(line, hierarchicalFlag), checkSwitch(line, enableMetricsFlag),
	} {
		if err != nil {
			return err
		}
	}
	for _, s := range settings(h) {
		if err := checkOnce(line, s.flag); err != nil {
			return err
		}
		for _, value := range line.Values(s.flag) {
			if !s.accepts(value) {
				return unfit(ReasonEngineArgsConflict, "%s is %q; spec.hiCache wants %s", s.flag, value, s.value)
			}
		}
	}
	return nil
}

// InjectEngineConfig adds the flags that the engine does not have.
func (hicache) InjectEngineConfig(pod *corev1.Pod, w Wiring) error {
	c := engineOf(pod, w.Container)
	line := commandline.Of(c)
	setSwitch(c, line, hierarchicalFlag)
	for _, s := range settings(w.Backend.Spec.HiCache) {
		if line.Count(s.flag) == 0 {
			c.Args = append(c.Args, s.flag, commandline.Escape(s.value))
		}
	}
	setSwitch(c, line, enableMetricsFlag)
	return nil
}
