// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/inject"
)

var update = flag.Bool("update", false, "write the golden files anew")

func ptr[T any](v T) *T { return &v }

// options are those of a usual installation.
func options() inject.Options {
	return inject.Options{
		Image: "ic.test/publisher:1", Servers: []string{"dns:///inference-cache-server-headless.ic.svc.cluster.local:9090"},
		ServerName: "inference-cache-server.ic.svc",
	}
}

func newBackend(runtime v1alpha1.EngineRuntime, changes ...func(*v1alpha1.CacheBackend)) *v1alpha1.CacheBackend {
	b := &v1alpha1.CacheBackend{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "cache", UID: "4c1f", Generation: 3},
		Spec: v1alpha1.CacheBackendSpec{
			Runtime: runtime, Type: v1alpha1.BackendLMCache,
			Integration:    &v1alpha1.BackendIntegration{Mode: v1alpha1.ModeEventsOnly},
			EngineSelector: &v1alpha1.EngineSelector{MatchLabels: map[string]string{v1alpha1.LabelCacheDomain: "d"}},
			Observation:    &v1alpha1.BackendObservation{ModelID: "org/model", KVEvents: &v1alpha1.KVEventsSpec{Inject: true}},
		},
	}
	for _, change := range changes {
		change(b)
	}
	return b
}

// newPod is an engine pod as users write it.
func newPod(runtime v1alpha1.EngineRuntime, changes ...func(*corev1.Pod)) *corev1.Pod {
	engine := corev1.Container{Name: "vllm", Image: "engine:1", Command: []string{"vllm", "serve", "org/model"}, Args: []string{"--port=8001"}}
	if runtime == v1alpha1.RuntimeSGLang {
		engine = corev1.Container{
			Name: "sglang", Image: "engine:1", Command: []string{"python3", "-m", "sglang.launch_server"},
			Args: []string{"--model-path", "org/model", "--page-size", "64"},
		}
	}
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", GenerateName: "engine-", Labels: map[string]string{v1alpha1.LabelCacheDomain: "d"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{engine}},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

// shapes are the kinds of pods whose injection is written down.
var shapes = map[string]func(*corev1.Pod){
	"one-container": func(*corev1.Pod) {},
	"several-containers": func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "download", Image: "tools:1"}}
		p.Spec.Containers = append([]corev1.Container{{Name: "proxy", Image: "proxy:1", Args: []string{"--port=9999"}}}, p.Spec.Containers...)
		p.Spec.Volumes = []corev1.Volume{{Name: "models", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	},
	"shell-command": func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.Command, c.Args = []string{"/bin/sh", "-c"}, []string{"exec start-engine --port 8001"}
	},
	"own-kv-events-flag": func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.Args = append(c.Args, `--kv-events-config={"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:6000","topic":"mine"}`, "--dp-size", "2")
	},
	"guaranteed": func(p *corev1.Pod) {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("64Gi")}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	},
	"host-network": func(p *corev1.Pod) { p.Spec.HostNetwork = true },
	"existing-sidecar": func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: "events", Image: "mine:1", Args: []string{"--engine-endpoint=tcp://127.0.0.1:5557", "--server=elsewhere:9090"},
		})
	},
	"job": func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "batch", UID: "77"}}
	},
}

// tier is a kind of backend.
type tier struct {
	runtimes []v1alpha1.EngineRuntime
	change   func(*v1alpha1.CacheBackend)
	options  func(*inject.Options)
	// shapes of pods whose injection is written down; nil for those of a
	// backend that watches.
	shapes []string
}

const (
	digest  = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	secret  = "redis"
	redisAt = "cache.team.svc.cluster.local:6379"
)

func offloads(b *v1alpha1.CacheBackend) {
	b.Spec.Integration.Mode = v1alpha1.ModeOffload
}

func podLocal(b *v1alpha1.CacheBackend) {
	offloads(b)
	b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.TopologyPodLocal, PodLocal: &v1alpha1.PodLocalLMCache{Server: v1alpha1.PodLocalServer{
		Image: "ic.test/lmcache" + digest, Port: 5555, L1Capacity: resource.MustParse("20Gi"), MaxWorkers: 2,
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("22Gi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("24Gi")},
		},
	}}}
}

// nodeLocal also has the engines' kernels checked.
func nodeLocal(b *v1alpha1.CacheBackend) {
	offloads(b)
	b.Annotations = map[string]string{v1alpha1.AnnotationKernelCheck: string(v1alpha1.KernelCheckStrict)}
	b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.TopologyNodeLocal, NodeLocal: &v1alpha1.NodeLocalLMCache{Server: v1alpha1.NodeLocalServer{
		Image: "ic.test/lmcache" + digest, Port: 6555, HTTPPort: 6556, L1Capacity: resource.MustParse("60Gi"), MaxGPUWorkers: 8, MaxCPUWorkers: 4,
	}}}
}

func withRedis(b *v1alpha1.CacheBackend) {
	podLocal(b)
	b.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Provider: v1alpha1.ProviderRedis, Ownership: v1alpha1.OwnershipManaged}
}

func hiCache(b *v1alpha1.CacheBackend) {
	offloads(b)
	b.Spec.Type = v1alpha1.BackendSGLangHiCache
	b.Spec.HiCache = &v1alpha1.HiCacheSpec{Ratio: ptr("1.5"), WritePolicy: "write_through", MemoryLayout: "page_first"}
}

func key(name string) *corev1.SecretKeySelector {
	return &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: name}
}

// allAdapters takes every backend there is, and knows a Redis server for those
// with a storage.
func allAdapters(o *inject.Options) {
	o.Registry = adapter.All()
	o.Bindings = func(b *v1alpha1.CacheBackend) (*adapter.Binding, error) {
		if b.Spec.RemoteStorage == nil {
			return nil, nil
		}
		return &adapter.Binding{Protocol: adapter.ProtocolRESP, Endpoint: redisAt, Username: key("user"), Password: key("password")}, nil
	}
}

func ordinary(o *inject.Options) {
	allAdapters(o)
	o.OrdinaryContainer = true
}

var (
	both       = []v1alpha1.EngineRuntime{v1alpha1.RuntimeVLLM, v1alpha1.RuntimeSGLang}
	tierShapes = []string{"one-container", "several-containers", "shell-command", "own-tier-flags", "guaranteed", "host-network", "job"}
)

var tiers = map[string]tier{
	"":                  {both, nil, nil, nil},
	"lmcache-":          {both, podLocal, allAdapters, tierShapes},
	"lmcache-redis-":    {both, withRedis, allAdapters, tierShapes},
	"hicache-":          {both[1:], hiCache, allAdapters, tierShapes},
	"lmcache-node-":     {both, nodeLocal, allAdapters, []string{"one-container", "own-tier-flags", "job"}},
	"lmcache-ordinary-": {both, podLocal, ordinary, []string{"one-container", "job"}},
}

// ownTierFlags are an engine's own, of which the adapters take over some.
func ownTierFlags(p *corev1.Pod) {
	c := &p.Spec.Containers[0]
	own := []string{`--kv_transfer_config={"kv_connector":"NixlConnector","kv_role":"kv_both"}`, "-dp", "1"}
	if c.Name == "sglang" {
		own = []string{"--enable-metrics", "--hicache-ratio", "1.50"}
	}
	c.Args = append(c.Args, own...)
}

// pods are the shapes by name.
func (k tier) pods() map[string]func(*corev1.Pod) {
	if k.shapes == nil {
		return shapes
	}
	some := map[string]func(*corev1.Pod){}
	for _, name := range k.shapes {
		some[name] = shapes[name]
		if name == "own-tier-flags" {
			some[name] = ownTierFlags
		}
	}
	return some
}

func TestGoldenInjection(t *testing.T) {
	for name, kind := range tiers {
		for _, runtime := range kind.runtimes {
			for shape, change := range kind.pods() {
				file := string(runtime) + "-" + name + shape
				t.Run(file, func(t *testing.T) {
					backend, o := newBackend(runtime), options()
					if kind.change != nil {
						kind.change(backend)
						kind.options(&o)
					}
					checkGolden(t, filepath.Join("testdata", file+".yaml"), newPod(runtime, change), backend, o)
				})
			}
		}
	}
}

// checkGolden injects a pod twice and compares the outcome with a file.
func checkGolden(t *testing.T, file string, pod *corev1.Pod, backend *v1alpha1.CacheBackend, o inject.Options) {
	before := pod.DeepCopy()
	once, outcome := inject.Pod(pod, backend, o)
	if diff := cmp.Diff(before, pod); diff != "" {
		t.Errorf("the pod given was changed:\n%s", diff)
	}
	got, err := yaml.Marshal(once)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, append([]byte("# SPDX-License-Identifier: Apache-2.0\n"), got...), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ = bytes.Cut(want, []byte("\n"))
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("differs from %s:\n%s", file, diff)
	}
	twice, again := inject.Pod(once, backend, o)
	if diff := cmp.Diff(once, twice); diff != "" {
		t.Errorf("twice is not once:\n%s", diff)
	}
	if again.Result != outcome.Result || again.Reason != outcome.Reason || !slices.Equal(again.Warnings, outcome.Warnings) {
		t.Errorf("the second time gave %+v, the first %+v", again, outcome)
	}
}
