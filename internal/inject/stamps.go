// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

// maxMessage bounds the explanation on a pod, in bytes.
const maxMessage = 256

// OptedOut says whether a pod's annotation asks for no injection. Only values
// that clearly say no are taken for one.
func OptedOut(pod *corev1.Pod) bool {
	switch strings.ToLower(strings.TrimSpace(pod.Annotations[v1alpha1.AnnotationSkipInject])) {
	case "", "false", "0", "f", "no", "off", "disable", "disabled":
		return false
	}
	return true
}

// Strip takes our stamps off a pod and says whether there were any.
func Strip(pod *corev1.Pod) (stripped bool) {
	for _, name := range v1alpha1.StampAnnotations() {
		if _, ok := pod.Annotations[name]; ok {
			delete(pod.Annotations, name)
			stripped = true
		}
	}
	return stripped
}

// maxAnnotations is what the API server admits of all annotations of an object,
// in bytes.
const maxAnnotations = 256 << 10

// annotate adds those values that are not empty, or, if they do not fit, none.
func annotate(pod *corev1.Pod, values map[string]string) (fits bool) {
	size := 0
	for _, all := range []map[string]string{pod.Annotations, values} {
		for name, value := range all {
			size += len(name) + len(value)
		}
	}
	if size > maxAnnotations {
		return false
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	for name, value := range values {
		if value != "" {
			pod.Annotations[name] = value
		}
	}
	return true
}

var errNoRoom = errors.New("the pod has so many annotations that none can be added")

// stamp says by which backend a pod was wired.
func stamp(pod *corev1.Pod, backend *v1alpha1.CacheBackend, hash string, warnings []string) error {
	if !annotate(pod, map[string]string{
		v1alpha1.AnnotationInjectedBy:         owner(backend),
		v1alpha1.AnnotationInjectedByUID:      string(backend.UID),
		v1alpha1.AnnotationInjectedGeneration: strconv.FormatInt(backend.Generation, 10),
		v1alpha1.AnnotationInjectedConfigHash: hash,
		v1alpha1.AnnotationInjectWarnings:     strings.Join(warnings, ","),
	}) {
		return errNoRoom
	}
	return nil
}

// explain says why a pod was not wired, if there is room for it; backend may be
// nil.
func explain(pod *corev1.Pod, backend *v1alpha1.CacheBackend, outcome Outcome) {
	by := ""
	if backend != nil {
		by = owner(backend)
	}
	annotate(pod, map[string]string{
		v1alpha1.AnnotationInjectSkipped:   outcome.Reason,
		v1alpha1.AnnotationInjectSkippedBy: by,
		v1alpha1.AnnotationInjectMessage:   cut(outcome.Message, maxMessage),
	})
}

// cut shortens a text to a number of bytes without breaking a character.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}

func owner(backend *v1alpha1.CacheBackend) string { return backend.Namespace + "/" + backend.Name }

// stampedBy says whether a pod carries the stamps of a backend.
func stampedBy(pod *corev1.Pod, backend *v1alpha1.CacheBackend) bool {
	return backend.UID != "" && pod.Annotations[v1alpha1.AnnotationInjectedBy] == owner(backend) &&
		pod.Annotations[v1alpha1.AnnotationInjectedByUID] == string(backend.UID)
}

// Hash is the ConfigHash of pods that are injected now, "" where no adapter
// serves the backend.
func (o Options) Hash(backend *v1alpha1.CacheBackend) (string, error) {
	o = o.withDefaults()
	a, served := o.Registry.For(backend)
	if !served {
		return "", nil
	}
	var binding *adapter.Binding
	if !adapter.WatchesOnly(backend) {
		var err error
		if binding, err = o.Bindings(backend); err != nil {
			return "", fmt.Errorf("resolve the storage of %s: %w", owner(backend), err)
		}
	}
	return ConfigHash(backend, a, binding)
}

// ConfigHash names everything of a backend that the wiring of a pod rests on:
// 16 hexadecimal digits. A pod with another one is wired in an older way. The
// binding is the storage that the backend resolves to, nil for none.
func ConfigHash(backend *v1alpha1.CacheBackend, a adapter.Adapter, binding *adapter.Binding) (string, error) {
	role, failOpen := v1alpha1.RoleReadWrite, true
	var overrides *v1alpha1.EngineOverrides
	if i := backend.Spec.Integration; i != nil {
		overrides = i.EngineOverrides
		if i.Role != "" {
			role = i.Role
		}
		if i.FailOpen != nil {
			failOpen = *i.FailOpen
		}
	}
	observation := observationOf(backend)
	content := map[string]any{
		"adapter": a.Name(), "adapterVersion": a.Version(), "renderVersion": renderVersion,
		"runtime": backend.Spec.Runtime, "type": adapter.Type(backend), "mode": adapter.Mode(backend), "role": role, "failOpen": failOpen,
		"engineOverrides": overrides, "modelID": observation.ModelID, "engineMetrics": effectiveMetrics(observation.EngineMetrics),
		"kvEvents": effectiveEvents(observation.KVEvents),
	}
	if !adapter.WatchesOnly(backend) {
		content["lmCache"], content["hiCache"] = visibleLMCache(backend.Spec.LMCache), backend.Spec.HiCache
		content["binding"], content["kernelCheck"] = binding, v1alpha1.KernelCheck(backend)
	}
	text, err := canonical(content)
	if err != nil {
		return "", fmt.Errorf("encode the configuration of %s: %w", owner(backend), err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), nil
}

// visibleLMCache is what engine pods show of LMCache. How NodeLocal servers are
// run beside them is not part of it.
func visibleLMCache(l *v1alpha1.LMCacheSpec) *v1alpha1.LMCacheSpec {
	if l == nil {
		return nil
	}
	out := l.DeepCopy()
	chunk := nodelocal.ChunkTokens(l)
	out.ChunkSizeTokens = &chunk
	if n := out.NodeLocal; n != nil {
		n.IdleRetentionSeconds, n.Scheduling = nil, nil
		if nodelocal.GateSeconds(n) == nodelocal.DefaultGateSeconds {
			n.GateTimeoutSeconds = nil
		}
	}
	return out
}

// canonical is JSON with sorted members and no spaces: what was encoded from
// structs is read into maps and encoded again.
func canonical(content any) ([]byte, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	var generic any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&generic); err != nil {
		return nil, err
	}
	return json.Marshal(generic)
}

// effectiveEvents fills in the defaults, so that writing one out changes
// nothing.
func effectiveEvents(e *v1alpha1.KVEventsSpec) v1alpha1.KVEventsSpec {
	var out v1alpha1.KVEventsSpec
	if e != nil {
		out = *e.DeepCopy()
	}
	port, replay := adapter.EventPorts(e)
	out.Port, out.ReplayPort, out.Transport = &port, &replay, transportOf(e)
	if out.Topic == nil {
		out.Topic = ptr(adapter.DefaultTopic)
	}
	return out
}

// effectiveMetrics fills in the default path, so that writing it out changes
// nothing.
func effectiveMetrics(e *v1alpha1.EngineMetricsSpec) v1alpha1.EngineMetricsSpec {
	var out v1alpha1.EngineMetricsSpec
	if e != nil {
		out = *e.DeepCopy()
	}
	out.Path = cmp.Or(out.Path, "/metrics")
	return out
}

func observationOf(backend *v1alpha1.CacheBackend) v1alpha1.BackendObservation {
	if backend.Spec.Observation == nil {
		return v1alpha1.BackendObservation{}
	}
	return *backend.Spec.Observation
}

func transportOf(e *v1alpha1.KVEventsSpec) v1alpha1.EventTransport {
	switch {
	case e != nil && e.Transport != "":
		return e.Transport
	case e != nil && e.Inject:
		return v1alpha1.TransportLoopback
	}
	return v1alpha1.TransportWildcard
}
