// SPDX-License-Identifier: Apache-2.0

package nodelocal_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

var update = flag.Bool("update", false, "write the golden files anew")

func ptr[T any](v T) *T { return &v }

func newBackend(edits ...func(*v1alpha1.CacheBackend)) *v1alpha1.CacheBackend {
	b := &v1alpha1.CacheBackend{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "cache", UID: "4c1f", Generation: 3}}
	memory := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("65Gi"), corev1.ResourceCPU: resource.MustParse("2")}
	b.Spec.Runtime = v1alpha1.RuntimeVLLM
	b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.TopologyNodeLocal, NodeLocal: &v1alpha1.NodeLocalLMCache{
		Server: v1alpha1.NodeLocalServer{
			Image: "ic.test/lmcache@sha256:" + strings.Repeat("a", 64), Port: 6555, HTTPPort: 6556, L1Capacity: resource.MustParse("60.5Gi"),
			MaxGPUWorkers: 8, MaxCPUWorkers: 4, Resources: corev1.ResourceRequirements{Requests: memory, Limits: memory},
		},
	}}
	for _, edit := range edits {
		edit(b)
	}
	return b
}

func redis() *nodelocal.Storage {
	key := func(name string) *corev1.SecretKeySelector {
		return &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "redis"}, Key: name}
	}
	return &nodelocal.Storage{Protocol: "resp", Host: "redis.team.svc.cluster.local", Port: 6379, Username: key("user"), Password: key("password")}
}

func TestPod(t *testing.T) {
	engine := &corev1.PodSpec{
		Tolerations:      []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}, PriorityClassName: "high", SchedulerName: "gang", RuntimeClassName: ptr("nvidia"),
		ServiceAccountName: "engine", NodeName: "gpu-1",
	}
	for name, order := range map[string]nodelocal.Order{
		"plain":     {Backend: newBackend(), Node: "gpu-1", Hash: "0123456789abcdef"},
		"inherited": {Backend: newBackend(), Node: "gpu-1", Hash: "0123456789abcdef", Storage: redis(), Engine: engine, Failures: 2},
		"scheduled": {Backend: newBackend(func(b *v1alpha1.CacheBackend) {
			b.Spec.LMCache.NodeLocal.Scheduling = &v1alpha1.PodScheduling{
				Tolerations:      []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}, {Key: "cache", Operator: corev1.TolerationOpExists}},
				ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}, {Name: "mirror"}}, ServiceAccountName: "cache", PriorityClassName: "low",
				SecurityContext: &corev1.PodSecurityContext{RunAsUser: ptr(int64(1000))}, SchedulerName: "own", RuntimeClassName: ptr("runc"),
				TerminationGracePeriodSeconds: ptr(int64(5)),
			}
		}), Node: "gpu-1", Hash: "0123456789abcdef", Engine: engine},
	} {
		t.Run(name, func(t *testing.T) {
			pod := nodelocal.Pod(order)
			pod.APIVersion, pod.Kind = "v1", "Pod"
			got, err := yaml.Marshal(pod)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs (-want +got):\n%s", file, cmp.Diff(string(want), string(got)))
			}
		})
	}
}

func TestServerName(t *testing.T) {
	long := strings.Repeat("a", 239) + "." + strings.Repeat("b", 13)
	names := []string{
		nodelocal.ServerName("cache", "gpu-1"), nodelocal.ServerName("cache", "gpu-2"), nodelocal.ServerName(long, "gpu-1"),
		nodelocal.ServerName(long+"c", "gpu-1"), nodelocal.ServerName(strings.Repeat("a", 240), "gpu-1"),
	}
	if !regexp.MustCompile(`^cache-[0-9a-f]{12}$`).MatchString(names[0]) {
		t.Errorf("name %q", names[0])
	}
	for i, name := range names {
		if problems := validation.IsDNS1123Subdomain(name); problems != nil {
			t.Errorf("%q: %v", name, problems)
		}
		if slices.Index(names, name) != i {
			t.Errorf("%q stands for two", name)
		}
	}
}

func TestConfigHash(t *testing.T) {
	hash := func(b *v1alpha1.CacheBackend, s *nodelocal.Storage) string {
		t.Helper()
		h, err := nodelocal.ConfigHash(b, s)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	plain := hash(newBackend(), nil)
	if !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(plain) {
		t.Errorf("hash %q", plain)
	}
	seen := map[string]string{plain: "the plain one"}
	for name, edit := range map[string]func(*v1alpha1.NodeLocalServer){
		"image":     func(s *v1alpha1.NodeLocalServer) { s.Image = "other@sha256:" + strings.Repeat("b", 64) },
		"port":      func(s *v1alpha1.NodeLocalServer) { s.Port = 7000 },
		"httpPort":  func(s *v1alpha1.NodeLocalServer) { s.HTTPPort = 7000 },
		"l1":        func(s *v1alpha1.NodeLocalServer) { s.L1Capacity = resource.MustParse("60Gi") },
		"gpu":       func(s *v1alpha1.NodeLocalServer) { s.MaxGPUWorkers++ },
		"cpu":       func(s *v1alpha1.NodeLocalServer) { s.MaxCPUWorkers++ },
		"resources": func(s *v1alpha1.NodeLocalServer) { s.Resources.Limits = nil },
	} {
		h := hash(newBackend(func(b *v1alpha1.CacheBackend) { edit(&b.Spec.LMCache.NodeLocal.Server) }), nil)
		if other := seen[h]; other != "" {
			t.Errorf("%s makes no difference to %s", name, other)
		}
		seen[h] = name
	}
	if seen[hash(newBackend(), redis())] != "" || seen[hash(newBackend(func(b *v1alpha1.CacheBackend) { b.Spec.LMCache.ChunkSizeTokens = ptr(int32(512)) }), nil)] != "" {
		t.Error("storage or chunk size make no difference")
	}
	for name, edit := range map[string]func(*v1alpha1.CacheBackend){
		"generation":    func(b *v1alpha1.CacheBackend) { b.Generation++ },
		"retention":     func(b *v1alpha1.CacheBackend) { b.Spec.LMCache.NodeLocal.IdleRetentionSeconds = ptr(int32(1)) },
		"gate":          func(b *v1alpha1.CacheBackend) { b.Spec.LMCache.NodeLocal.GateTimeoutSeconds = ptr(int32(1)) },
		"scheduling":    func(b *v1alpha1.CacheBackend) { b.Spec.LMCache.NodeLocal.Scheduling = &v1alpha1.PodScheduling{} },
		"default chunk": func(b *v1alpha1.CacheBackend) { b.Spec.LMCache.ChunkSizeTokens = ptr(int32(256)) },
		"same L1": func(b *v1alpha1.CacheBackend) {
			b.Spec.LMCache.NodeLocal.Server.L1Capacity = resource.MustParse("61952Mi")
		},
	} {
		if hash(newBackend(edit), nil) != plain {
			t.Errorf("%s makes a difference", name)
		}
	}
}
