// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/inject"
)

// FuzzPodInjection holds what must be true of every pod: twice is once, the
// user's containers stay, and a pod that is not wired keeps its spec.
func FuzzPodInjection(f *testing.F) {
	seed := func(pod *corev1.Pod) {
		text, err := json.Marshal(pod)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, true, false)
		f.Add(text, false, true)
	}
	for _, change := range shapes {
		seed(newPod(vllm, change))
	}
	o := options()
	allAdapters(&o)
	for _, runtime := range both {
		seed(newPod(runtime, ownTierFlags))
		wired, _ := inject.Pod(newPod(runtime), newBackend(runtime, withRedis), o)
		seed(wired)
	}
	f.Fuzz(func(t *testing.T, text []byte, wanted, ordinary bool) {
		pod := &corev1.Pod{}
		if json.Unmarshal(text, pod) != nil {
			return
		}
		o := options()
		o.OrdinaryContainer = ordinary
		allAdapters(&o)
		for i, backend := range []*v1alpha1.CacheBackend{
			newBackend(vllm), newBackend(sglang), newBackend(vllm, podLocal), newBackend(sglang, withRedis), newBackend(sglang, hiCache),
			newBackend(vllm, nodeLocal),
		} {
			if i != seeded { // the seeds' wired pods are those of one backend
				backend.UID = types.UID(fmt.Sprint(i))
			}
			backend.Spec.Observation.KVEvents.Inject = wanted
			before := pod.DeepCopy()
			once, outcome := inject.Pod(pod, backend, o)
			if !cmp.Equal(before, pod) {
				t.Fatal("the pod given was changed")
			}
			if outcome.Result != inject.Injected && !cmp.Equal(pod.Spec, once.Spec) {
				t.Fatalf("not wired, but changed: %s", cmp.Diff(pod.Spec, once.Spec))
			}
			if outcome.Result != inject.Injected && pod.Annotations[v1alpha1.AnnotationInjectedByUID] == string(backend.UID) {
				continue // without its stamps the pod's publisher is a stranger's
			}
			twice, again := inject.Pod(once, backend, o)
			if !cmp.Equal(once, twice) || outcome.Reason != again.Reason {
				t.Fatalf("twice is not once: %+v, then %+v\n%s", outcome, again, cmp.Diff(once, twice))
			}
			if outcome.Result == inject.Injected {
				checkKept(t, pod, once)
			}
		}
	})
}

// seeded is the place of the backend that wired the pods among the seeds.
const seeded = 3

// ours are names that the adapters may give another meaning to.
var ours = []string{"--kv-transfer-config", "PYTHONHASHSEED", "LMCACHE_USE_EXPERIMENTAL", "INFERENCECACHE_FAIL_OPEN"}

func checkKept(t *testing.T, before, after *corev1.Pod) {
	t.Helper()
	kept := map[string]corev1.Container{}
	for _, c := range after.Spec.Containers {
		kept[c.Name] = c
	}
	for _, c := range before.Spec.Containers {
		if c.Name == inject.SidecarName || c.Name == adapter.ServerContainer {
			continue
		}
		got := kept[c.Name]
		for words, now := range map[*[]string]*[]string{&c.Command: &got.Command, &c.Args: &got.Args} {
			if !keeps(*now, *words) {
				t.Fatalf("words %q became %q", *words, *now)
			}
			*now = *words
		}
		for _, v := range c.Env {
			if !slices.Contains(ours, v.Name) && !slices.ContainsFunc(got.Env, func(w corev1.EnvVar) bool { return cmp.Equal(v, w) }) {
				t.Fatalf("variable %s is gone", v.Name)
			}
		}
		for _, m := range c.VolumeMounts {
			mine := strings.HasPrefix(m.Name, "lmcache-")
			if !mine && !slices.ContainsFunc(got.VolumeMounts, func(w corev1.VolumeMount) bool { return cmp.Equal(m, w) }) {
				t.Fatalf("mount %s is gone", m.Name)
			}
		}
		got.Env, got.VolumeMounts = c.Env, c.VolumeMounts
		if !cmp.Equal(c, got) {
			t.Fatalf("container %s changed: %s", c.Name, cmp.Diff(c, got))
		}
	}
}

// keeps says whether words are still there, in order; the value of a flag of
// ours may be another.
func keeps(now, words []string) bool {
	free := false
	for _, word := range words {
		flag, _, inline := strings.Cut(strings.ReplaceAll(word, "_", "-"), "=")
		mine := slices.Contains(ours, flag)
		i := slices.IndexFunc(now, func(n string) bool {
			return n == word || free || mine && strings.HasPrefix(n, ours[0]) && inline
		})
		if i < 0 {
			return false
		}
		now, free = now[i+1:], mine && !inline
	}
	return true
}
