// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/inject"
)

const vllm, sglang = v1alpha1.RuntimeVLLM, v1alpha1.RuntimeSGLang

func engineArgs(args ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Args = args }
}

func events(change func(*v1alpha1.KVEventsSpec)) func(*v1alpha1.CacheBackend) {
	return func(b *v1alpha1.CacheBackend) { change(b.Spec.Observation.KVEvents) }
}

func ownEvents(b *v1alpha1.CacheBackend) { b.Spec.Observation.KVEvents.Inject = false }

// A pod that is not wired keeps everything but forged stamps.
func TestReasons(t *testing.T) {
	for reason, tc := range map[string]struct {
		pod     func(*corev1.Pod)
		backend func(*v1alpha1.CacheBackend)
		options func(*inject.Options)
	}{
		inject.ReasonSubscriberImageUnset: {options: func(o *inject.Options) { o.Image = "" }},
		inject.ReasonModelIDUnset:         {backend: func(b *v1alpha1.CacheBackend) { b.Spec.Observation.ModelID = "" }},
		inject.ReasonSidecarPresent: {pod: func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: inject.SidecarName, Image: "mine"}}
		}},
		inject.ReasonAdapterUnsupported: {backend: func(b *v1alpha1.CacheBackend) { b.Spec.Integration = nil }},
		inject.ReasonEngineContainerNotFound: {pod: func(p *corev1.Pod) {
			p.Spec.Containers[0].Name = "main"
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other"})
		}},
		inject.ReasonReservedNameConflict: {pod: func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: inject.VolumeName}} }},
		inject.ReasonOSUnsupported:        {pod: func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }},
		inject.ReasonBindingUnsupported: {backend: func(b *v1alpha1.CacheBackend) { b.Spec.Integration = nil }, options: func(o *inject.Options) {
			o.Registry = adapter.NewRegistry(offloading{stored: true})
		}},
		inject.ReasonEngineArgsConflict: {backend: func(b *v1alpha1.CacheBackend) { b.Spec.Integration = nil }, pod: engineArgs("--conflict"), options: func(o *inject.Options) {
			o.Registry = adapter.NewRegistry(offloading{})
		}},
	} {
		t.Run(reason, func(t *testing.T) {
			pod, backend, o := newPod(vllm), newBackend(vllm), options()
			pod.Annotations = map[string]string{v1alpha1.AnnotationInjectedBy: "team/cache", v1alpha1.AnnotationInjectedByUID: "forged", "mine": "kept"}
			if tc.pod != nil {
				tc.pod(pod)
			}
			if tc.backend != nil {
				tc.backend(backend)
			}
			if tc.options != nil {
				tc.options(&o)
			}
			got, outcome := inject.Pod(pod, backend, o)
			if outcome.Result != inject.Skipped || outcome.Reason != reason || outcome.Message == "" {
				t.Errorf("outcome %+v, want %s skipped with a message", outcome, reason)
			}
			if diff := cmp.Diff(pod.Spec, got.Spec); diff != "" {
				t.Errorf("the pod was changed:\n%s", diff)
			}
			want := map[string]string{
				"mine": "kept", v1alpha1.AnnotationInjectSkipped: reason, v1alpha1.AnnotationInjectSkippedBy: "team/cache",
				v1alpha1.AnnotationInjectMessage: got.Annotations[v1alpha1.AnnotationInjectMessage],
			}
			if diff := cmp.Diff(want, got.Annotations); diff != "" || len(got.Annotations[v1alpha1.AnnotationInjectMessage]) > 256 {
				t.Error(diff)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	for name, tc := range map[string]struct {
		runtime v1alpha1.EngineRuntime
		pod     func(*corev1.Pod)
		backend func(*v1alpha1.CacheBackend)
		want    string
	}{
		"nothing to say":                  {vllm, engineArgs("--port=1"), nil, ""},
		"no flag and none wanted":         {vllm, engineArgs("--port=1"), ownEvents, inject.WarnKVEventsConfigMissing},
		"events switched off":             {vllm, engineArgs(`--kv-events-config={"enable_kv_cache_events":false}`), nil, inject.WarnKVEventsDisabled},
		"no publisher":                    {vllm, engineArgs(`--kv-events-config={"enable_kv_cache_events":true,"publisher":"null"}`), nil, inject.WarnKVEventsDisabled},
		"SGLang without a publisher":      {sglang, engineArgs("--page-size=64", `--kv-events-config={}`), nil, inject.WarnKVEventsDisabled},
		"the flag twice":                  {vllm, engineArgs("--kv-events-config", "{}", "--kv_events_config={}"), nil, inject.WarnKVEventsConfigUnreadable},
		"the flag twice, bare at the end": {vllm, engineArgs("--kv-events-config", "{}", "--kv-events-config"), nil, inject.WarnKVEventsConfigUnreadable},
		"the loopback of IPv6":            {vllm, engineArgs(`--kv-events-config={"enable_kv_cache_events":true,"endpoint":"tcp://[::1]:5557"}`), nil, inject.WarnKVEventsConfigUnreadable},
		"every address of IPv6":           {vllm, engineArgs(`--kv-events-config={"enable_kv_cache_events":true,"endpoint":"tcp://[::]:5557"}`), nil, ""},
		"members in another case":         {vllm, engineArgs(`--kv-events-config={"ENABLE_KV_CACHE_EVENTS":true}`), nil, inject.WarnKVEventsDisabled},
		"no JSON":                         {vllm, engineArgs("--kv-events-config", "{"), nil, inject.WarnKVEventsConfigUnreadable},
		"the flag without a value":        {vllm, engineArgs("--kv-events-config"), nil, inject.WarnKVEventsConfigUnreadable},
		"members as flags":                {vllm, engineArgs("--kv-events-config.publisher=zmq"), nil, inject.WarnKVEventsConfigUnreadable},
		"events that go elsewhere":        {vllm, engineArgs(`--kv-events-config={"enable_kv_cache_events":true,"endpoint":"tcp://10.0.0.1:5557"}`), nil, inject.WarnKVEventsConfigUnreadable},
		"a socket file":                   {vllm, engineArgs(`--kv-events-config={"enable_kv_cache_events":true,"endpoint":"ipc:///tmp/kv"}`), nil, inject.WarnKVEventsConfigUnreadable},
		"the image's own command":         {vllm, func(p *corev1.Pod) { p.Spec.Containers[0].Command, p.Spec.Containers[0].Args = nil, nil }, nil, inject.WarnEngineCommandOpaque},
		"a shell behind a wrapper":        {vllm, func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"tini", "--", "bash", "-c"} }, nil, inject.WarnEngineCommandOpaque},
		"no prefix caching":               {vllm, engineArgs("--no-enable-prefix-caching"), nil, inject.WarnPrefixCachingOff},
		"no radix cache":                  {sglang, engineArgs("--page-size", "16", "--disable-radix-cache"), nil, inject.WarnPrefixCachingOff},
		"pages of one token":              {sglang, engineArgs("--page-size", "1"), nil, inject.WarnPageSizeOne},
		"pages of the default size":       {sglang, engineArgs("--x"), nil, inject.WarnPageSizeOne},
		"the node's network":              {vllm, func(p *corev1.Pod) { p.Spec.HostNetwork = true }, nil, inject.WarnHostNetwork},
		"several findings keep an order":  {sglang, func(p *corev1.Pod) { p.Spec.HostNetwork = true; engineArgs("--x")(p) }, ownEvents, "kv-events-config-missing,page-size-one,host-network"},
	} {
		t.Run(name, func(t *testing.T) {
			pod, backend := newPod(tc.runtime, tc.pod), newBackend(tc.runtime)
			if tc.backend != nil {
				tc.backend(backend)
			}
			got, outcome := inject.Pod(pod, backend, options())
			if outcome.Result != inject.Injected || strings.Join(outcome.Warnings, ",") != tc.want || got.Annotations[v1alpha1.AnnotationInjectWarnings] != tc.want {
				t.Errorf("outcome %+v, want injected with %q", outcome, tc.want)
			}
		})
	}
}

func TestAPodForNodesOfWindowsIsSkipped(t *testing.T) {
	pod := newPod(vllm)
	pod.Spec.NodeSelector = map[string]string{corev1.LabelOSStable: "windows"}
	if _, outcome := inject.Pod(pod, newBackend(vllm), options()); outcome.Reason != inject.ReasonOSUnsupported {
		t.Errorf("outcome %+v, want %s", outcome, inject.ReasonOSUnsupported)
	}
}

// sidecarOf returns the publisher of a pod.
func sidecarOf(t *testing.T, pod *corev1.Pod) corev1.Container {
	t.Helper()
	return containerOf(t, pod, inject.SidecarName)
}

// containerOf returns the container of a pod with a name, init containers
// included.
func containerOf(t *testing.T, pod *corev1.Pod, name string) corev1.Container {
	t.Helper()
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("the pod has no container %s", name)
	return corev1.Container{}
}

func TestPublisherFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		runtime v1alpha1.EngineRuntime
		pod     func(*corev1.Pod)
		backend func(*v1alpha1.CacheBackend)
		options func(*inject.Options)
		want    []string // "!" in front: absent
	}{
		"the engine's last port": {runtime: vllm, pod: engineArgs("--port", "1", "--port=2", "--port=none"), want: []string{"--engine-metrics-url=http://127.0.0.1:2/metrics"}},
		"a port from a variable": {runtime: vllm, pod: func(p *corev1.Pod) {
			engineArgs("--port=$(P)")(p)
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "P", Value: "7"}}
		}, want: []string{"--engine-metrics-url=http://127.0.0.1:7/metrics"}},
		"a port made of two variables": {runtime: vllm, pod: func(p *corev1.Pod) {
			engineArgs("--port", "$(P)")(p)
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "BASE", Value: "700"}, {Name: "P", Value: "$(BASE)8"}}
		}, want: []string{"--engine-metrics-url=http://127.0.0.1:7008/metrics"}},
		"a port that a shell hands on": {runtime: vllm, pod: func(p *corev1.Pod) {
			p.Spec.Containers[0].Command = []string{"/bin/sh", "-c", `exec vllm serve m "$@"`, "--"}
			p.Spec.Containers[0].Args = []string{"--port", "9001"}
		}, want: []string{"--engine-metrics-url=http://127.0.0.1:9001/metrics"}},
		"a port in a shell's script": {runtime: vllm, pod: func(p *corev1.Pod) {
			p.Spec.Containers[0].Command = []string{"sh", "-c", `helper --port 1 & exec vllm serve m --port "${PORT:-9002}"; cleanup --port=3`}
			p.Spec.Containers[0].Args = nil
		}, want: []string{"--engine-metrics-url=http://127.0.0.1:9002/metrics"}},
		"vLLM's usual port": {runtime: vllm, pod: engineArgs("--port=$(UNKNOWN)"), want: []string{"--engine-metrics-url=http://127.0.0.1:8000/metrics"}},
		"a declared metrics address": {runtime: vllm, backend: func(b *v1alpha1.CacheBackend) {
			b.Spec.Observation.EngineMetrics = &v1alpha1.EngineMetricsSpec{Port: ptr(int32(9)), Path: "/m"}
		}, want: []string{"--engine-metrics-url=http://127.0.0.1:9/m"}},
		"an engine that listens": {runtime: vllm, backend: events(func(e *v1alpha1.KVEventsSpec) { e.Transport = v1alpha1.TransportWildcard }), want: []string{"--engine-socket=connect"}},
		"no replay":              {runtime: vllm, backend: events(func(e *v1alpha1.KVEventsSpec) { e.ReplayPort = ptr(int32(0)) }), want: []string{"!--replay-endpoint"}},
		"ranks of the engine":    {runtime: vllm, pod: engineArgs("-dp", "4"), want: []string{"--data-parallel-ranks=4"}},
		"ranks of the backend":   {runtime: vllm, pod: engineArgs("-dp", "4"), backend: events(func(e *v1alpha1.KVEventsSpec) { e.DataParallelRanks = ptr(int32(2)) }), want: []string{"--data-parallel-ranks=2"}},
		"adapters": {runtime: vllm, backend: events(func(e *v1alpha1.KVEventsSpec) {
			e.LoRAAdapterNames = []v1alpha1.LoRAAdapterName{{ID: 1, Name: "a"}, {ID: 2, Name: "b,c"}}
		}), want: []string{"--lora-adapter-names=1=a", `--lora-adapter-names="2=b,c"`}},
		"a model that looks like a variable": {runtime: vllm, backend: func(b *v1alpha1.CacheBackend) { b.Spec.Observation.ModelID = "$(POD_IP)" }, want: []string{"--model-id=$$(POD_IP)"}},
		"an engine's loopback endpoint":      {runtime: vllm, pod: engineArgs(`--kv-events-config={"enable_kv_cache_events":true,"endpoint":"tcp://127.0.0.1:7000","replay_endpoint":"tcp://*:7100"}`), want: []string{"--engine-endpoint=tcp://127.0.0.1:7000", "--engine-socket=bind", "--replay-endpoint=tcp://127.0.0.1:7100", "!--topic"}},
		"vLLM connects to 0.0.0.0":           {runtime: vllm, pod: engineArgs(`--kv-events-config={"enable_kv_cache_events":true,"endpoint":"tcp://0.0.0.0:7000"}`), want: []string{"--engine-socket=bind"}},
		"SGLang listens on 0.0.0.0":          {runtime: sglang, pod: engineArgs(`--kv-events-config={"publisher":"zmq","endpoint":"tcp://0.0.0.0:7000"}`), want: []string{"--engine-socket=connect"}},
		"servers without TLS":                {runtime: vllm, options: func(o *inject.Options) { o.PlainText = true }, want: []string{"--insecure-token-transport", "!--server-ca-file", "!--server-name"}},
		"the node's network":                 {runtime: vllm, pod: func(p *corev1.Pod) { p.Spec.HostNetwork = true }, want: []string{"--metrics-bind-address="}},
		"a tier keeps removed blocks":        {runtime: vllm, backend: func(b *v1alpha1.CacheBackend) { b.Spec.Integration = nil }, options: func(o *inject.Options) { o.Registry = adapter.NewRegistry(offloading{}) }, want: []string{"--ignore-block-removed=true"}},
		"watching keeps none":                {runtime: vllm, want: []string{"!--ignore-block-removed"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod, backend, o := newPod(tc.runtime), newBackend(tc.runtime), options()
			if tc.pod != nil {
				tc.pod(pod)
			}
			if tc.backend != nil {
				tc.backend(backend)
			}
			if tc.options != nil {
				tc.options(&o)
			}
			got, outcome := inject.Pod(pod, backend, o)
			if outcome.Result != inject.Injected {
				t.Fatalf("outcome %+v", outcome)
			}
			args := sidecarOf(t, got).Args
			for _, want := range tc.want {
				if absent, ok := strings.CutPrefix(want, "!"); ok {
					if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, absent) }) {
						t.Errorf("has %s in %q", absent, args)
					}
				} else if !slices.Contains(args, want) {
					t.Errorf("no %s in %q", want, args)
				}
			}
		})
	}
}

func TestSidecarResources(t *testing.T) {
	some := func(request, limit string) *corev1.ResourceRequirements {
		r := &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(limit)}}
		if request != "" {
			r.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(request)}
		}
		return r
	}
	list := corev1.ResourceList{"hugepages-2Mi": resource.MustParse("2Mi")}
	hugePages := &corev1.ResourceRequirements{Requests: list, Limits: list}
	for name, tc := range map[string]struct {
		pod  func(*corev1.Pod)
		own  *corev1.ResourceRequirements
		want string
	}{
		"usual":                           {nil, nil, `{"limits":{"cpu":"500m","memory":"256Mi"},"requests":{"cpu":"10m","memory":"64Mi"}}`},
		"declared":                        {nil, some("1", "2"), `{"limits":{"cpu":"2"},"requests":{"cpu":"1"}}`},
		"guaranteed":                      {shapes["guaranteed"], nil, `{"limits":{"cpu":"100m","memory":"256Mi"},"requests":{"cpu":"100m","memory":"256Mi"}}`},
		"declared for a guaranteed pod":   {shapes["guaranteed"], some("1", "2"), `{"limits":{"cpu":"2","memory":"256Mi"},"requests":{"cpu":"2","memory":"256Mi"}}`},
		"huge pages alone":                {nil, hugePages, `{"limits":{"hugepages-2Mi":"2Mi"},"requests":{"cpu":"10m","hugepages-2Mi":"2Mi","memory":"64Mi"}}`},
		"a pod with resources as a whole": {func(p *corev1.Pod) { p.Spec.Resources = some("1", "2") }, nil, `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			pod, backend := newPod(vllm), newBackend(vllm)
			if tc.pod != nil {
				tc.pod(pod)
			}
			backend.Spec.Observation.Resources = tc.own
			got, _ := inject.Pod(pod, backend, options())
			text, err := json.Marshal(sidecarOf(t, got).Resources)
			if err != nil {
				t.Fatal(err)
			}
			if string(text) != tc.want {
				t.Errorf("got  %s\nwant %s", text, tc.want)
			}
		})
	}
}

func TestConfigHash(t *testing.T) {
	hash := func(change func(*v1alpha1.CacheBackend)) string {
		b := newBackend(vllm)
		if change != nil {
			change(b)
		}
		a, ok := adapter.Core().For(b)
		if !ok {
			t.Fatal("no adapter")
		}
		h, err := inject.ConfigHash(b, a, nil)
		if err != nil || len(h) != 16 {
			t.Fatalf("hash %q: %v", h, err)
		}
		return h
	}
	base := hash(nil)
	for name, tc := range map[string]struct {
		change func(*v1alpha1.CacheBackend)
		same   bool
	}{
		"the model":               {func(b *v1alpha1.CacheBackend) { b.Spec.Observation.ModelID = "x" }, false},
		"a port":                  {events(func(e *v1alpha1.KVEventsSpec) { e.Port = ptr(int32(1)) }), false},
		"the default port, spelt": {events(func(e *v1alpha1.KVEventsSpec) { e.Port = ptr(int32(5557)) }), true},
		"the default metrics path, spelt": {func(b *v1alpha1.CacheBackend) {
			b.Spec.Observation.EngineMetrics = &v1alpha1.EngineMetricsSpec{Path: "/metrics"}
		}, true},
		"another metrics path": {func(b *v1alpha1.CacheBackend) {
			b.Spec.Observation.EngineMetrics = &v1alpha1.EngineMetricsSpec{Path: "/m"}
		}, false},
		"the type":                {func(b *v1alpha1.CacheBackend) { b.Spec.Type = v1alpha1.BackendMemory }, false},
		"failing open, spelt":     {func(b *v1alpha1.CacheBackend) { b.Spec.Integration.FailOpen = ptr(true) }, true},
		"failing closed":          {func(b *v1alpha1.CacheBackend) { b.Spec.Integration.FailOpen = ptr(false) }, false},
		"the sidecar's resources": {func(b *v1alpha1.CacheBackend) { b.Spec.Observation.Resources = &corev1.ResourceRequirements{} }, true},
		"the generation":          {func(b *v1alpha1.CacheBackend) { b.Generation = 9 }, true},
		"external replicas": {func(b *v1alpha1.CacheBackend) {
			b.Spec.Observation.ExternalReplicas = []v1alpha1.ExternalReplica{{ReplicaID: "e"}}
		}, true},
	} {
		if got := hash(tc.change); (got == base) != tc.same {
			t.Errorf("%s: same hash %t, want %t", name, got == base, tc.same)
		}
	}
}

// offloading adds flags and a variable to the engine.
type offloading struct{ stored bool }

func (offloading) Name() string                                                 { return "offloading" }
func (offloading) Version() int                                                 { return 1 }
func (offloading) Supports(v1alpha1.EngineRuntime, *v1alpha1.CacheBackend) bool { return true }
func (o offloading) SupportsBinding(b *adapter.Binding) bool                    { return !o.stored || b != nil }
func (offloading) ReservedArgs() []string                                       { return nil }
func (offloading) ReservedEnv() []string                                        { return nil }
func (offloading) Engine() adapter.Engine {
	return adapter.Engine{Container: "vllm", HTTPPort: 8000, HashScheme: "vllm"}
}

func (offloading) InjectEngineConfig(pod *corev1.Pod, _ adapter.Wiring) error {
	c := &pod.Spec.Containers[0]
	if slices.Contains(c.Args, "--conflict") {
		return &adapter.PodError{Reason: inject.ReasonEngineArgsConflict, Err: errConflict}
	}
	if !slices.Contains(c.Args, "--tier") {
		c.Args = append(c.Args, "--tier", "ram", "--size=4")
	}
	return nil
}

var errConflict = errors.New("--conflict does not go with a tier")

func TestOverrides(t *testing.T) {
	for name, tc := range map[string]struct {
		args      []string
		overrides v1alpha1.EngineOverrides
		want      string
	}{
		"none":                      {[]string{"--a"}, v1alpha1.EngineOverrides{}, "--a --tier ram --size=4"},
		"ours is replaced in place": {[]string{"--a"}, v1alpha1.EngineOverrides{Args: []string{"--tier=disk"}}, "--a --tier=disk --size=4"},
		"ours is suppressed":        {[]string{"--a"}, v1alpha1.EngineOverrides{SuppressArgs: []string{"--size"}}, "--a --tier ram"},
		"suppressed, then set":      {[]string{"--a"}, v1alpha1.EngineOverrides{SuppressArgs: []string{"--size"}, Args: []string{"--size=9"}}, "--a --tier ram --size=9"},
		"the user's stays":          {[]string{"--a", "1"}, v1alpha1.EngineOverrides{Args: []string{"--a", "2"}, SuppressArgs: []string{"--a"}}, "--a 1 --tier ram --size=4"},
		"suppressed with a value":   {[]string{"--a"}, v1alpha1.EngineOverrides{SuppressArgs: []string{"--size=1"}}, "--a --tier ram"},
		"dashes are underscores":    {[]string{"--my_len=1"}, v1alpha1.EngineOverrides{Args: []string{"--my-len=2"}}, "--my_len=1 --tier ram --size=4"},
		"the command's stays":       {[]string{"--a"}, v1alpha1.EngineOverrides{Args: []string{"--max_len=2"}}, "--a --tier ram --size=4"},
		"unknown ones come last":    {[]string{"--a"}, v1alpha1.EngineOverrides{Args: []string{"--new", "x", "word"}}, "--a --tier ram --size=4 --new x word"},
	} {
		t.Run(name, func(t *testing.T) {
			backend := newBackend(vllm, func(b *v1alpha1.CacheBackend) {
				b.Spec.Integration = &v1alpha1.BackendIntegration{EngineOverrides: &tc.overrides}
				b.Spec.Observation.ModelID = "" // the engine alone
			})
			o := options()
			o.Registry = adapter.NewRegistry(offloading{})
			pod := newPod(vllm, engineArgs(tc.args...))
			pod.Spec.Containers[0].Command = []string{"vllm", "serve", "--max-len", "9"}
			got, outcome := inject.Pod(pod, backend, o)
			if args := strings.Join(got.Spec.Containers[0].Args, " "); outcome.Result != inject.Injected || args != tc.want {
				t.Errorf("%+v with %s, want %s", outcome, args, tc.want)
			}
		})
	}
}

// The page for people who meet a reason has each of them.
func TestEveryReasonIsDocumented(t *testing.T) {
	var source []byte
	for _, file := range []string{"reason.go", "../adapter/reason.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, text...)
	}
	page, err := os.ReadFile("../../docs/injection.md")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`(?m)^\t(?:Reason|Warn)\w+ += "([a-z-]+)"$`).FindAllStringSubmatch(string(source), -1)
	if len(codes) < 20 {
		t.Fatalf("found only %d codes", len(codes))
	}
	for _, code := range codes {
		if !strings.Contains(string(page), "| `"+code[1]+"` |") {
			t.Errorf("docs/injection.md has no row for %s", code[1])
		}
	}
}
