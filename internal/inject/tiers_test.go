// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/inject"
	"github.com/inferencecache/inference-cache/internal/kernelcheck"
)

func moreArgs(args ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { c := &p.Spec.Containers[0]; c.Args = append(c.Args, args...) }
}

func variable(v corev1.EnvVar) func(*corev1.Pod) {
	return func(p *corev1.Pod) { c := &p.Spec.Containers[0]; c.Env = append(c.Env, v) }
}

// shm mounts a volume at /dev/shm.
func shm(size string, change func(*corev1.EmptyDirVolumeSource, *corev1.VolumeMount)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		source, mount := &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}, corev1.VolumeMount{Name: "mine", MountPath: "/dev/shm/"}
		if size != "" {
			source.SizeLimit = ptr(resource.MustParse(size))
		}
		if change != nil {
			change(source, &mount)
		}
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "mine", VolumeSource: corev1.VolumeSource{EmptyDir: source}})
		c := &p.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, mount)
	}
}

func port(p corev1.ContainerPort) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { c := &pod.Spec.Containers[0]; c.Ports = append(c.Ports, p) }
}

// tierCase is a pod of a backend with a storage tier.
type tierCase struct {
	runtime v1alpha1.EngineRuntime
	backend func(*v1alpha1.CacheBackend)
	pod     func(*corev1.Pod)
	// reason is empty for a pod that is wired; message is a part of what
	// explains it.
	reason, message string
}

var tierCases = map[string]tierCase{
	"vLLM on its own":               {vllm, podLocal, moreArgs(), "", ""},
	"one rank, spelt out":           {vllm, podLocal, moreArgs("-pp", "1", "--data-parallel-size=1"), "", ""},
	"parallelism by an override":    {vllm, overridden("--data-parallel-size", "2"), moreArgs(), inject.ReasonParallelism, "--data-parallel-size"},
	"an override that fits":         {vllm, overridden("--max-model-len=9"), moreArgs(), "", ""},
	"a page size by an override":    {sglang, overridden("--page-size=64"), engineArgs("--x"), "", ""},
	"another one by an override":    {sglang, overridden("--page-size=96"), engineArgs("--x"), inject.ReasonPageSizeMismatch, "96"},
	"pipeline parallelism":          {vllm, podLocal, moreArgs("-pp=2"), inject.ReasonParallelism, "--pipeline-parallel-size"},
	"data parallelism":              {vllm, podLocal, moreArgs("--data_parallel_size", "2"), inject.ReasonParallelism, "--data-parallel-size"},
	"a degree twice":                {vllm, podLocal, moreArgs("-dp", "1", "--data-parallel-size=1"), inject.ReasonParallelism, "more than once"},
	"a degree nobody can read":      {vllm, podLocal, moreArgs("-dp", "$(RANKS)"), inject.ReasonParallelism, "$(RANKS)"},
	"a degree without a value":      {vllm, podLocal, moreArgs("-dp"), inject.ReasonParallelism, "LMCache needs 1"},
	"a rank":                        {vllm, podLocal, moreArgs("--data-parallel-rank=0"), inject.ReasonParallelism, "--data-parallel-rank"},
	"a start rank":                  {vllm, podLocal, moreArgs("--data-parallel-start-rank=0"), inject.ReasonParallelism, "start-rank"},
	"local ranks":                   {vllm, podLocal, moreArgs("-dpl", "1"), inject.ReasonParallelism, "size-local"},
	"an address of ranks":           {vllm, podLocal, moreArgs("--data-parallel-address=a"), inject.ReasonParallelism, "address"},
	"a port of ranks":               {vllm, podLocal, moreArgs("--data-parallel-rpc-port=1"), inject.ReasonParallelism, "rpc-port"},
	"a transfer of its own":         {vllm, podLocal, ownTierFlags, "", ""},
	"two transfers":                 {vllm, podLocal, moreArgs("--kv-transfer-config={}", "--kv_transfer_config", "{}"), inject.ReasonEngineArgsConflict, "2 times"},
	"a transfer without a value":    {vllm, podLocal, moreArgs("--kv-transfer-config"), inject.ReasonEngineArgsConflict, "without a value"},
	"a member of the transfer":      {vllm, podLocal, moreArgs("--kv-transfer-config.kv_role=kv_both"), inject.ReasonEngineArgsConflict, "flag of its own"},
	"a switch with a value":         {vllm, podLocal, moreArgs("--disable-hybrid-kv-cache-manager=true"), inject.ReasonEngineArgsConflict, "takes none"},
	"a switch before a word":        {vllm, podLocal, moreArgs("--disable-hybrid-kv-cache-manager", "false"), inject.ReasonEngineArgsConflict, "takes none"},
	"a switch turned round":         {vllm, podLocal, moreArgs("--no-disable-hybrid-kv-cache-manager"), inject.ReasonEngineArgsConflict, "does not go with"},
	"another hash seed":             {vllm, podLocal, variable(corev1.EnvVar{Name: "PYTHONHASHSEED", Value: "7"}), inject.ReasonEngineArgsConflict, "PYTHONHASHSEED"},
	"the same hash seed":            {vllm, podLocal, variable(corev1.EnvVar{Name: "PYTHONHASHSEED", Value: "0"}), "", ""},
	"a shell":                       {vllm, podLocal, shapes["shell-command"], inject.ReasonEngineArgsConflict, "shell"},
	"a port that the server has":    {vllm, podLocal, moreArgs("--port=5555"), inject.ReasonEngineArgsConflict, "port 5555"},
	"events on the server's port":   {vllm, podLocal, moreArgs("--kv-events-config", `{"enable_kv_cache_events":true,"endpoint":"tcp://*:5555"}`), inject.ReasonReservedNameConflict, "port 5555"},
	"replay on the server's health": {vllm, podLocal, moreArgs("--kv-events-config", `{"enable_kv_cache_events":true,"replay_endpoint":"tcp://*:8080"}`), inject.ReasonReservedNameConflict, "port 8080"},
	"events beside the server":      {vllm, podLocal, moreArgs("--kv-events-config", `{"enable_kv_cache_events":true,"endpoint":"tcp://*:5554"}`), "", ""},
	"a declared port of the server": {vllm, podLocal, port(corev1.ContainerPort{ContainerPort: 5555}), inject.ReasonReservedNameConflict, "port 5555"},
	"a port with the server's name": {vllm, podLocal, port(corev1.ContainerPort{Name: "lmcache-http", ContainerPort: 1}), inject.ReasonReservedNameConflict, "lmcache-http"},
	"a container with our name":     {vllm, podLocal, sibling(corev1.Container{Name: adapter.ServerContainer}), inject.ReasonReservedNameConflict, adapter.ServerContainer},
	"a container named like the check": {vllm, podLocal, func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: kernelcheck.ContainerName, Image: "mine"}}
	}, inject.ReasonReservedNameConflict, kernelcheck.ContainerName},
	"a volume with our name":          {vllm, podLocal, func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: adapter.ShmVolume}} }, inject.ReasonReservedNameConflict, adapter.ShmVolume},
	"shared memory of its own":        {vllm, podLocal, shm("21Gi", nil), "", ""},
	"shared memory without a limit":   {vllm, podLocal, shm("", nil), "", ""},
	"shared memory that is small":     {vllm, podLocal, shm("20Gi", nil), inject.ReasonShmConflict, "20Gi of the 21Gi needed"},
	"shared memory on disk":           {vllm, podLocal, shm("", func(v *corev1.EmptyDirVolumeSource, _ *corev1.VolumeMount) { v.Medium = "" }), inject.ReasonShmConflict, "no emptyDir in memory"},
	"shared memory that is read-only": {vllm, podLocal, shm("", func(_ *corev1.EmptyDirVolumeSource, m *corev1.VolumeMount) { m.ReadOnly = true }), inject.ReasonShmConflict, "read-only"},
	"shared memory with an expression": {
		vllm, podLocal, shm("", func(_ *corev1.EmptyDirVolumeSource, m *corev1.VolumeMount) { m.SubPathExpr = "$(A)" }), inject.ReasonShmConflict, "subPathExpr",
	},

	"SGLang on its own":               {sglang, podLocal, moreArgs(), "", ""},
	"events of a rank on its port":    {sglang, podLocal, moreArgs("--dp-size=3", `--kv-events-config={"publisher":"zmq","endpoint":"tcp://*:5553"}`), inject.ReasonReservedNameConflict, "port 5555"},
	"events of ranks below its port":  {sglang, podLocal, moreArgs("--dp-size=2", `--kv-events-config={"publisher":"zmq","endpoint":"tcp://*:5553"}`), "", ""},
	"no page size":                    {sglang, podLocal, engineArgs("--x"), inject.ReasonPageSizeMissing, "--page-size"},
	"a page size nobody can read":     {sglang, podLocal, engineArgs("--page-size", "$(SIZE)"), inject.ReasonPageSizeMissing, "--page-size"},
	"two page sizes":                  {sglang, podLocal, moreArgs("--page-size=64"), inject.ReasonEngineArgsConflict, "2 times"},
	"pages that are no part of chunk": {sglang, podLocal, engineArgs("--page-size=96"), inject.ReasonPageSizeMismatch, "96"},
	"a configuration of its own":      {sglang, podLocal, moreArgs("--lmcache-config-file=/etc/mine"), inject.ReasonEngineArgsConflict, "of the engine's own"},
	"HiCache beside LMCache":          {sglang, podLocal, moreArgs("--enable-hierarchical-cache"), inject.ReasonEngineArgsConflict, "does not go with LMCache"},
	"no radix cache":                  {sglang, podLocal, moreArgs("--disable-radix-cache"), inject.ReasonEngineArgsConflict, "does not go with LMCache"},
	"LMCache with a value":            {sglang, podLocal, moreArgs("--enable-lmcache=1"), inject.ReasonEngineArgsConflict, "takes none"},
	"another kind of LMCache":         {sglang, podLocal, variable(corev1.EnvVar{Name: "LMCACHE_USE_EXPERIMENTAL", Value: "False"}), inject.ReasonEngineArgsConflict, "LMCACHE_USE_EXPERIMENTAL"},
	"a mount where the client's file is": {sglang, podLocal, func(p *corev1.Pod) {
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "x", MountPath: adapter.ClientDir}}
	}, inject.ReasonReservedNameConflict, adapter.ClientDir},

	"HiCache":                       {sglang, hiCache, moreArgs(), "", ""},
	"HiCache's settings, spelt out": {sglang, hiCache, moreArgs("--hicache-ratio=1.50", "--hicache-write-policy", "write_through"), "", ""},
	"HiCache of another ratio":      {sglang, hiCache, moreArgs("--hicache-ratio=2"), inject.ReasonEngineArgsConflict, `"2"`},
	"HiCache by size instead":       {sglang, hiCache, moreArgs("--hicache-size=2"), inject.ReasonEngineArgsConflict, "contradicts"},
	"HiCache of another policy":     {sglang, hiCache, moreArgs("--hicache-write-policy=write_back"), inject.ReasonEngineArgsConflict, "write_through"},
	"HiCache of another layout":     {sglang, hiCache, moreArgs("--hicache-mem-layout", "page_head"), inject.ReasonEngineArgsConflict, "page_first"},
	"HiCache given a ratio twice":   {sglang, hiCache, moreArgs("--hicache-ratio=1.5", "--hicache-ratio=1.5"), inject.ReasonEngineArgsConflict, "2 times"},
	"LMCache beside HiCache":        {sglang, hiCache, moreArgs("--enable-lmcache"), inject.ReasonEngineArgsConflict, "does not go with HiCache"},
	"HiCache through a shell":       {sglang, hiCache, shapes["shell-command"], inject.ReasonEngineArgsConflict, "shell"},
}

// overridden is podLocal with arguments of the backend.
func overridden(args ...string) func(*v1alpha1.CacheBackend) {
	return func(b *v1alpha1.CacheBackend) {
		podLocal(b)
		b.Spec.Integration.EngineOverrides = &v1alpha1.EngineOverrides{Args: args}
	}
}

func sibling(c corev1.Container) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, c) }
}

func TestPodsThatTakeThePublishersPortAreSkipped(t *testing.T) {
	for name, tc := range map[string]struct {
		pod   func(*corev1.Pod)
		taken bool
	}{
		"the engine's HTTP":  {engineArgs("--port=9095"), true},
		"a port of a helper": {sibling(corev1.Container{Name: "helper", Ports: []corev1.ContainerPort{{ContainerPort: 9095}}}), true},
		"another protocol's": {sibling(corev1.Container{Name: "helper", Ports: []corev1.ContainerPort{{ContainerPort: 9095, Protocol: corev1.ProtocolUDP}}}), false},
		"on the host's network, where the publisher serves nothing": {func(p *corev1.Pod) {
			p.Spec.HostNetwork = true
			engineArgs("--port=9095")(p)
		}, false},
		"another port": {engineArgs("--port=9096"), false},
	} {
		_, outcome := inject.Pod(newPod(vllm, tc.pod), newBackend(vllm), options())
		if (outcome.Reason == inject.ReasonReservedNameConflict && strings.Contains(outcome.Message, "9095")) != tc.taken {
			t.Errorf("%s: %+v", name, outcome)
		}
	}
}

func TestTierPreconditions(t *testing.T) {
	caused := map[string]bool{}
	for _, tc := range tierCases {
		caused[tc.reason] = true
	}
	for _, reason := range []string{
		inject.ReasonEngineArgsConflict, inject.ReasonReservedNameConflict, inject.ReasonParallelism, inject.ReasonPageSizeMissing,
		inject.ReasonPageSizeMismatch, inject.ReasonShmConflict,
	} {
		if !caused[reason] {
			t.Errorf("no case causes %s", reason)
		}
	}
	for name, tc := range tierCases {
		t.Run(name, func(t *testing.T) {
			o := options()
			allAdapters(&o)
			pod := newPod(tc.runtime, tc.pod)
			got, outcome := inject.Pod(pod, newBackend(tc.runtime, tc.backend), o)
			if outcome.Reason != tc.reason || !strings.Contains(outcome.Message, tc.message) || (outcome.Result == inject.Injected) != (tc.reason == "") {
				t.Errorf("outcome %+v, want reason %q and %q", outcome, tc.reason, tc.message)
			}
			if diff := cmp.Diff(pod.Spec, got.Spec); tc.reason != "" && diff != "" {
				t.Errorf("the pod was changed:\n%s", diff)
			}
		})
	}
}

func TestStoragesThatCannotBeUsed(t *testing.T) {
	for reason, tc := range map[string]struct {
		bindings inject.BindingResolver
		message  string
	}{
		inject.ReasonBindingUnsupported: {func(*v1alpha1.CacheBackend) (*adapter.Binding, error) {
			return &adapter.Binding{Protocol: "memcached", Endpoint: "a:1"}, nil
		}, "memcached"},
		inject.ReasonEndpointUnresolved: {func(*v1alpha1.CacheBackend) (*adapter.Binding, error) {
			return nil, errors.New("no such service")
		}, "no such service"},
	} {
		t.Run(reason, func(t *testing.T) {
			o := options()
			o.Registry, o.Bindings = adapter.All(), tc.bindings
			_, outcome := inject.Pod(newPod(vllm), newBackend(vllm, withRedis), o)
			if outcome.Result != inject.Skipped || outcome.Reason != reason || !strings.Contains(outcome.Message, tc.message) {
				t.Errorf("outcome %+v", outcome)
			}
		})
	}
	t.Run("a controller that resolves none", func(t *testing.T) {
		o := options()
		o.Registry = adapter.All()
		if _, outcome := inject.Pod(newPod(vllm), newBackend(vllm, withRedis), o); outcome.Reason != inject.ReasonEndpointUnresolved {
			t.Errorf("outcome %+v", outcome)
		}
	})
}

// A storage that is not there yet leaves the engine with the memory of its pod;
// once it is there, the pod shows as stale.
func TestAStorageThatIsNotThereYet(t *testing.T) {
	o := options()
	o.Registry, o.Bindings = adapter.All(), func(*v1alpha1.CacheBackend) (*adapter.Binding, error) { return nil, nil }
	backend := newBackend(vllm, withRedis)
	pod, outcome := inject.Pod(newPod(vllm), backend, o)
	if outcome.Result != inject.Injected || slices.Contains(serverOf(t, pod).Args, "--l2-adapter") {
		t.Fatalf("outcome %+v, server %q", outcome, serverOf(t, pod).Args)
	}
	allAdapters(&o)
	hash, err := o.Hash(backend)
	if err != nil || hash == pod.Annotations[v1alpha1.AnnotationInjectedConfigHash] {
		t.Errorf("hash %q, %v: the pod does not show as stale", hash, err)
	}
}

// serverOf returns the LMCache server of a pod.
func serverOf(t *testing.T, pod *corev1.Pod) corev1.Container {
	t.Helper()
	return containerOf(t, pod, adapter.ServerContainer)
}

func TestPodLocalServer(t *testing.T) {
	for name, tc := range map[string]struct {
		backend func(*v1alpha1.CacheBackend)
		pod     func(*corev1.Pod)
		check   func(corev1.Container) bool
	}{
		"no readiness while failing open": {check: func(c corev1.Container) bool { return c.ReadinessProbe == nil && c.StartupProbe != nil }},
		"readiness while failing closed": {
			backend: func(b *v1alpha1.CacheBackend) { b.Spec.Integration.FailOpen = ptr(false) },
			check: func(c corev1.Container) bool {
				return c.ReadinessProbe != nil && c.ReadinessProbe.PeriodSeconds == 5 && c.ReadinessProbe.FailureThreshold == 3
			},
		},
		"health on 8080":                  {check: httpOn("8080")},
		"health beside an engine on 8080": {pod: moreArgs("--port=8080"), check: httpOn("8081")},
		"health beside a sibling's port":  {pod: sibling(corev1.Container{Name: "proxy", Ports: []corev1.ContainerPort{{ContainerPort: 8080}, {ContainerPort: 8081}}}), check: httpOn("8082")},
		"health beside events on 8080":    {backend: events(func(e *v1alpha1.KVEventsSpec) { e.Port = ptr(int32(8080)) }), check: httpOn("8081")},
		"memory that is no whole number":  {backend: server(func(s *v1alpha1.PodLocalServer) { s.L1Capacity = resource.MustParse("1536Mi") }), check: hasArgs("--l1-size-gb", "1.5")},
		"memory in other units":           {backend: server(func(s *v1alpha1.PodLocalServer) { s.L1Capacity = resource.MustParse("1G") }), check: hasArgs("--l1-size-gb", "0.9313225746154785")},
		"chunks of another size":          {backend: func(b *v1alpha1.CacheBackend) { b.Spec.LMCache.ChunkSizeTokens = ptr(int32(64)) }, check: hasArgs("--chunk-size", "64")},
		"the engine's user": {pod: func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: ptr(int64(7)), RunAsNonRoot: ptr(true), Privileged: ptr(true)}
		}, check: sameUser},
		"a guaranteed pod": {pod: shapes["guaranteed"], check: func(c corev1.Container) bool {
			return cmp.Equal(c.Resources.Requests, c.Resources.Limits) && c.Resources.Limits.Memory().String() == "24Gi"
		}},
		"a pod with resources as a whole":      {pod: func(p *corev1.Pod) { p.Spec.Resources = &corev1.ResourceRequirements{} }, check: func(c corev1.Container) bool { return c.Resources.Limits == nil }},
		"shared memory that the engine brings": {pod: shm("", nil), check: func(c corev1.Container) bool { return len(c.VolumeMounts) == 1 && c.VolumeMounts[0].Name == "mine" }},
	} {
		t.Run(name, func(t *testing.T) {
			backend := newBackend(vllm, podLocal)
			if tc.backend != nil {
				tc.backend(backend)
			}
			o := options()
			allAdapters(&o)
			got, outcome := inject.Pod(newPod(vllm, or(tc.pod, func(*corev1.Pod) {})), backend, o)
			if outcome.Result != inject.Injected {
				t.Fatalf("outcome %+v", outcome)
			}
			if c := serverOf(t, got); !tc.check(c) {
				t.Errorf("the server is %+v", c)
			}
		})
	}
}

func or[T any](f, otherwise func(T)) func(T) {
	if f == nil {
		return otherwise
	}
	return f
}

func server(change func(*v1alpha1.PodLocalServer)) func(*v1alpha1.CacheBackend) {
	return func(b *v1alpha1.CacheBackend) { change(&b.Spec.LMCache.PodLocal.Server) }
}

func hasArgs(flag, value string) func(corev1.Container) bool {
	return func(c corev1.Container) bool {
		i := slices.Index(c.Args, flag)
		return i >= 0 && c.Args[i+1] == value
	}
}

func httpOn(port string) func(corev1.Container) bool { return hasArgs("--http-port", port) }

func sameUser(c corev1.Container) bool {
	s := c.SecurityContext
	return *s.RunAsUser == 7 && *s.RunAsNonRoot && s.Privileged == nil && !*s.AllowPrivilegeEscalation
}

// The wrapper around SGLang's server leaves the engine a file to read, and
// starts the server with its flags.
func TestClientFile(t *testing.T) {
	for name, change := range map[string]func(*inject.Options){"before the server": allAdapters, "in a container of its own": ordinary} {
		t.Run(name, func(t *testing.T) {
			o := options()
			change(&o)
			pod, _ := inject.Pod(newPod(sglang), newBackend(sglang, podLocal), o)
			words := serverOf(t, pod).Command
			if i := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == adapter.ClientConfigContainer }); i >= 0 {
				words = pod.Spec.InitContainers[i].Command
			} else {
				words = slices.Concat(words, serverOf(t, pod).Args)
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "lmcache"), []byte("#!/bin/sh\necho \"$@\"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			for i := range words {
				words[i] = strings.ReplaceAll(words[i], adapter.ClientDir, dir)
			}
			command := exec.CommandContext(t.Context(), words[0], words[1:]...)
			command.Env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
			started, err := command.Output()
			if err != nil {
				t.Fatal(err)
			}
			file, err := os.ReadFile(filepath.Join(dir, "client.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			if want := "chunk_size: 256\nmp_host: \"127.0.0.1\"\nmp_port: 5555\n"; string(file) != want {
				t.Errorf("the file is %q, want %q", file, want)
			}
			if name == "before the server" && !strings.HasPrefix(string(started), "server --host 127.0.0.1 --port 5555") {
				t.Errorf("started with %q", started)
			}
		})
	}
}

// TestConfigHashOfNodeLocal: how servers are scheduled, and how long they stay,
// is no reason to restart engines.
func TestConfigHashOfNodeLocal(t *testing.T) {
	o := options()
	allAdapters(&o)
	hash := func(t *testing.T, change func(*v1alpha1.NodeLocalLMCache)) string {
		t.Helper()
		b := newBackend(vllm, nodeLocal)
		change(b.Spec.LMCache.NodeLocal)
		h, err := o.Hash(b)
		if err != nil || len(h) != 16 {
			t.Fatalf("hash %q: %v", h, err)
		}
		return h
	}
	base := hash(t, func(*v1alpha1.NodeLocalLMCache) {})
	for name, tc := range map[string]struct {
		change func(*v1alpha1.NodeLocalLMCache)
		same   bool
	}{
		"the server's image": {func(n *v1alpha1.NodeLocalLMCache) { n.Server.Image = "x" + digest }, false},
		"a port":             {func(n *v1alpha1.NodeLocalLMCache) { n.Server.HTTPPort++ }, false},
		"its workers":        {func(n *v1alpha1.NodeLocalLMCache) { n.Server.MaxGPUWorkers++ }, false},
		"its resources": {func(n *v1alpha1.NodeLocalLMCache) {
			n.Server.Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("9")}
		}, false},
		"the gate":                {func(n *v1alpha1.NodeLocalLMCache) { n.GateTimeoutSeconds = ptr(int32(30)) }, false},
		"the default gate, spelt": {func(n *v1alpha1.NodeLocalLMCache) { n.GateTimeoutSeconds = ptr(int32(600)) }, true},
		"how long servers stay":   {func(n *v1alpha1.NodeLocalLMCache) { n.IdleRetentionSeconds = ptr(int32(0)) }, true},
		"scheduling": {func(n *v1alpha1.NodeLocalLMCache) {
			n.Scheduling = &v1alpha1.PodScheduling{PriorityClassName: "high"}
		}, true},
	} {
		if got := hash(t, tc.change); (got == base) != tc.same {
			t.Errorf("%s: same hash %t, want %t", name, got == base, tc.same)
		}
	}
}

func TestConfigHashOfTiers(t *testing.T) {
	o := options()
	allAdapters(&o)
	hash := func(t *testing.T, change func(*v1alpha1.CacheBackend), o inject.Options) string {
		t.Helper()
		b := newBackend(vllm, withRedis)
		if change != nil {
			change(b)
		}
		h, err := o.Hash(b)
		if err != nil || len(h) != 16 {
			t.Fatalf("hash %q: %v", h, err)
		}
		return h
	}
	elsewhere := o
	elsewhere.Bindings = func(*v1alpha1.CacheBackend) (*adapter.Binding, error) {
		return &adapter.Binding{Protocol: adapter.ProtocolRESP, Endpoint: "other:6379", Username: key("user"), Password: key("password")}, nil
	}
	otherSecret := o
	otherSecret.Bindings = func(*v1alpha1.CacheBackend) (*adapter.Binding, error) {
		return &adapter.Binding{Protocol: adapter.ProtocolRESP, Endpoint: redisAt, Username: key("user"), Password: key("new")}, nil
	}
	base := hash(t, nil, o)
	for name, tc := range map[string]struct {
		change  func(*v1alpha1.CacheBackend)
		options inject.Options
		same    bool
	}{
		"the server's image":       {server(func(s *v1alpha1.PodLocalServer) { s.Image = "x" + digest }), o, false},
		"the memory for blocks":    {server(func(s *v1alpha1.PodLocalServer) { s.L1Capacity = resource.MustParse("1Gi") }), o, false},
		"the same memory, spelt":   {server(func(s *v1alpha1.PodLocalServer) { s.L1Capacity = resource.MustParse("20480Mi") }), o, true},
		"the chunk size":           {func(b *v1alpha1.CacheBackend) { b.Spec.LMCache.ChunkSizeTokens = ptr(int32(64)) }, o, false},
		"the default chunk, spelt": {func(b *v1alpha1.CacheBackend) { b.Spec.LMCache.ChunkSizeTokens = ptr(int32(256)) }, o, true},
		"failing closed":           {func(b *v1alpha1.CacheBackend) { b.Spec.Integration.FailOpen = ptr(false) }, o, false},
		"an override": {func(b *v1alpha1.CacheBackend) {
			b.Spec.Integration.EngineOverrides = &v1alpha1.EngineOverrides{Args: []string{"--x"}}
		}, o, false},
		"the kernel check": {func(b *v1alpha1.CacheBackend) {
			b.Annotations = map[string]string{v1alpha1.AnnotationKernelCheck: string(v1alpha1.KernelCheckStrict)}
		}, o, false},
		"the default kernel check, spelt": {func(b *v1alpha1.CacheBackend) {
			b.Annotations = map[string]string{v1alpha1.AnnotationKernelCheck: string(v1alpha1.KernelCheckAuto)}
		}, o, true},
		"the endpoint":       {nil, elsewhere, false},
		"the secret":         {nil, otherSecret, false},
		"how Redis is run":   {func(b *v1alpha1.CacheBackend) { b.Spec.RemoteStorage.Workload = &v1alpha1.WorkloadScheduling{} }, o, true},
		"the image of Redis": {func(b *v1alpha1.CacheBackend) { b.Spec.RemoteStorage.Redis = &v1alpha1.RedisSpec{Image: "x"} }, o, true},
		"the first event":    {func(b *v1alpha1.CacheBackend) { b.Spec.Observation.FirstEventTimeout = &metav1.Duration{} }, o, true},
	} {
		if got := hash(t, tc.change, tc.options); (got == base) != tc.same {
			t.Errorf("%s: same hash %t, want %t", name, got == base, tc.same)
		}
	}
	hi := newBackend(sglang, hiCache)
	before, _ := o.Hash(hi)
	hi.Spec.HiCache.IOBackend = "kernel"
	if after, err := o.Hash(hi); err != nil || after == before {
		t.Errorf("HiCache's settings do not change the hash %q: %v", after, err)
	}
}
