// SPDX-License-Identifier: Apache-2.0

package storage_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/storage"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files")

func backend(edits ...func(*v1alpha1.CacheBackend)) *v1alpha1.CacheBackend {
	b := &v1alpha1.CacheBackend{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "cb", UID: "uid-cb"}}
	b.Spec.Runtime, b.Spec.Type = v1alpha1.RuntimeVLLM, v1alpha1.BackendLMCache
	b.Spec.EngineSelector = &v1alpha1.EngineSelector{MatchLabels: map[string]string{v1alpha1.LabelCacheDomain: "d"}}
	b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.TopologyPodLocal}
	b.Spec.RemoteStorage = &v1alpha1.RemoteStorageSpec{Provider: v1alpha1.ProviderRedis, Ownership: v1alpha1.OwnershipManaged}
	for _, edit := range edits {
		edit(b)
	}
	return b
}

func external(endpoint string) func(*v1alpha1.CacheBackend) {
	return func(b *v1alpha1.CacheBackend) {
		b.Spec.RemoteStorage.Ownership, b.Spec.RemoteStorage.Endpoint = v1alpha1.OwnershipExternal, endpoint
	}
}

func withPassword(b *v1alpha1.CacheBackend) {
	b.Spec.RemoteStorage.Redis = &v1alpha1.RedisSpec{Authentication: &v1alpha1.RedisAuthentication{Password: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: "redis"}, Key: "password",
	}}}
}

func TestObjects(t *testing.T) {
	for name, edit := range map[string]func(*v1alpha1.CacheBackend){
		"defaults": func(*v1alpha1.CacheBackend) {},
		"password": withPassword,
		"everything": func(b *v1alpha1.CacheBackend) {
			withPassword(b)
			b.Spec.RemoteStorage.Redis.Image = "registry.test/redis@sha256:" + strings.Repeat("a", 64)
			b.Spec.RemoteStorage.Redis.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}
			grace, class, user := int64(5), "gvisor", int64(70)
			b.Spec.RemoteStorage.Workload = &v1alpha1.WorkloadScheduling{
				PodScheduling: v1alpha1.PodScheduling{
					Tolerations:        []corev1.Toleration{{Key: "cache", Operator: corev1.TolerationOpExists}},
					ImagePullSecrets:   []corev1.LocalObjectReference{{Name: "pull"}},
					ServiceAccountName: "redis", PriorityClassName: "high", SchedulerName: "other", RuntimeClassName: &class,
					SecurityContext: &corev1.PodSecurityContext{RunAsUser: &user}, TerminationGracePeriodSeconds: &grace,
				},
				NodeSelector: map[string]string{"disk": "fast"},
				TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
					MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.ScheduleAnyway,
				}},
			}
		},
		"node-local": func(b *v1alpha1.CacheBackend) { b.Spec.LMCache.Topology = v1alpha1.TopologyNodeLocal },
		"no-engines": func(b *v1alpha1.CacheBackend) { b.Spec.EngineSelector = nil },
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := storage.All().Objects(backend(edit))
			if err != nil {
				t.Fatal(err)
			}
			text, err := yaml.Marshal(objects)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".yaml")
			text = append([]byte("# SPDX-License-Identifier: Apache-2.0\n"), text...)
			if *rewrite {
				if err := os.WriteFile(file, text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if string(want) != string(text) {
				t.Errorf("%s differs; go test ./internal/storage -rewrite writes:\n%s", file, text)
			}
		})
	}
}

func TestObjectsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*v1alpha1.CacheBackend)
		want string
	}{
		"a name that no Service can have": {func(b *v1alpha1.CacheBackend) { b.Name = strings.Repeat("a", 64) }, "metadata.name"},
		"an unknown provider":             {func(b *v1alpha1.CacheBackend) { b.Spec.RemoteStorage.Provider = "Tape" }, `provider "Tape"`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := storage.All().Objects(backend(tc.edit)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestValidateEndpoint(t *testing.T) {
	for endpoint, want := range map[string]string{
		"redis:6379":                          "",
		"redis.team-a.svc.cluster.local:6379": "",
		"10.0.0.1:1":                          "",
		"[2001:db8::1]:65535":                 "",
		"":                                    "expected host:port of the storage",
		"redis":                               "expected host:port",
		":6379":                               "expected a host name",
		"redis:":                              "port from 1 to 65535",
		"redis:0":                             "port from 1 to 65535",
		"redis:65536":                         "port from 1 to 65535",
		"redis:+1":                            "port from 1 to 65535",
		"redis:http":                          "port from 1 to 65535",
		"redis://redis:6379":                  "without a scheme",
		"redis :6379":                         "no white space",
		"redis:6379\n":                        "no white space",
		"redis\x00:6379":                      "no control characters",
		"2001:db8::1:6379":                    "in brackets",
		"[redis]:6379":                        "IPv6 address in the brackets",
		"[10.0.0.1]:6379":                     "IPv6 address in the brackets",
		"user@redis:6379":                     "expected a host name",
		"redis/0:6379":                        "expected a host name",
		"redis\u3002team:6379":                "expected a host name",
	} {
		t.Run(endpoint, func(t *testing.T) {
			err := storage.ValidateEndpoint(endpoint)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
		})
	}
	if err := storage.ValidateEndpoint(""); !errors.Is(err, storage.ErrEndpointMissing) {
		t.Errorf("an empty endpoint gives %v", err)
	}
}

// A managed storage is bound to once its Service is there and the backend's.
func TestResolve(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	rendered, err := storage.All().Objects(backend())
	if err != nil {
		t.Fatal(err)
	}
	foreign := rendered.Service.DeepCopy()
	foreign.OwnerReferences[0].UID = "uid-of-a-former-one"
	broken := errors.New("connection refused")
	for name, tc := range map[string]struct {
		edit     func(*v1alpha1.CacheBackend)
		cluster  []client.Object
		fails    error
		endpoint string
		want     string // in the error
	}{
		"no storage":                    {edit: func(b *v1alpha1.CacheBackend) { b.Spec.RemoteStorage = nil }},
		"engines that are only watched": {edit: func(b *v1alpha1.CacheBackend) { b.Spec.Type = v1alpha1.BackendMemory }, cluster: []client.Object{rendered.Service}},
		"managed, there":                {cluster: []client.Object{rendered.Service}, endpoint: "cb.team-a.svc.cluster.local:6379"},
		"managed, not there yet":        {},
		"managed, another's Service":    {cluster: []client.Object{foreign}},
		"managed, unreadable":           {fails: broken},
		"external":                      {edit: external("redis:6379"), fails: broken, endpoint: "redis:6379"},
		"external, invalid":             {edit: external("redis"), want: "expected host:port"},
		"external, missing":             {edit: external(""), want: "expected host:port"},
		"an unknown provider":           {edit: func(b *v1alpha1.CacheBackend) { b.Spec.RemoteStorage.Provider = "Tape" }, want: "no storage of this kind"},
	} {
		t.Run(name, func(t *testing.T) {
			b := backend()
			if tc.edit != nil {
				tc.edit(b)
			}
			builder := fake.NewClientBuilder().WithScheme(scheme)
			for _, o := range tc.cluster {
				builder = builder.WithObjects(o.DeepCopyObject().(client.Object))
			}
			if tc.fails != nil {
				builder = builder.WithInterceptorFuncs(interceptor.Funcs{Get: failing(tc.fails)})
			}
			var unread error
			resolver := &storage.Resolver{Reader: builder.Build(), Providers: storage.All(), Unreadable: func(_ *v1alpha1.CacheBackend, err error) { unread = err }}
			binding, err := resolver.Resolve(t.Context(), b)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want %q in it", err, tc.want)
			}
			if managed := strings.HasPrefix(name, "managed"); managed && !errors.Is(unread, tc.fails) {
				t.Errorf("told of %v, want %v", unread, tc.fails)
			}
			got := ""
			if binding != nil {
				got = binding.Endpoint
				if binding.Protocol != adapter.ProtocolRESP {
					t.Errorf("protocol %q", binding.Protocol)
				}
			}
			if got != tc.endpoint {
				t.Errorf("endpoint %q, want %q", got, tc.endpoint)
			}
		})
	}
}
