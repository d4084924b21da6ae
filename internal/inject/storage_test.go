// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/inject"
)

// Engines that come before the storage of their backend use their own memory,
// and are told from those that come later by their hash.
func TestStorageThatIsNotThereYet(t *testing.T) {
	backend := newBackend(vllm, withRedis)
	a, _ := adapter.All().For(backend)
	var stamped []string
	for name, binding := range map[string]*adapter.Binding{
		"not there yet": nil, "there": {Protocol: adapter.ProtocolRESP, Endpoint: "redis.team-a.svc.cluster.local:6379"},
	} {
		asked := 0
		o := inject.HandlerOptions{Options: options(), Live: newReader(t, nil, backend)}
		o.Registry = adapter.All()
		o.Resolve = func(context.Context, *v1alpha1.CacheBackend) (*adapter.Binding, error) {
			asked++
			return binding, nil
		}
		_, pod := newHarness(o).ask(t, newPod(vllm))
		hash, err := inject.ConfigHash(backend, a, binding)
		if err != nil {
			t.Fatal(err)
		}
		got := pod.Annotations[v1alpha1.AnnotationInjectedConfigHash]
		if got != hash || asked != 1 {
			t.Errorf("%s: hash %q, want %q; asked %d times", name, got, hash, asked)
		}
		server := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == "lmcache-mp-server" })
		if server < 0 {
			t.Fatalf("%s: no server in the pod: %v", name, pod.Annotations)
		}
		if args := fmt.Sprint(pod.Spec.InitContainers[server].Args); strings.Contains(args, "--l2-adapter") != (binding != nil) {
			t.Errorf("%s: arguments %s", name, args)
		}
		stamped = append(stamped, got)
	}
	if stamped[0] == stamped[1] {
		t.Error("the endpoint is not in the hash")
	}
}
