// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package controller_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/kubetest"
)

// fleet is a namespace with a backend, its pods, and a clock that can be set
// forward.
type fleet struct {
	t       *testing.T
	cluster *kubetest.Cluster
	backend *v1alpha1.CacheBackend
	ahead   atomic.Int64
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{t: t, cluster: kubetest.Start(t, "../../deploy/crds")}
	f.cluster.Namespace(t, "team-a", nil)
	f.backend = someBackend()
	f.backend.ObjectMeta = metav1.ObjectMeta{Namespace: "team-a", Name: "cb"}
	f.create(f.backend)
	return f
}

func (f *fleet) create(o client.Object) {
	f.t.Helper()
	if err := f.cluster.Client.Create(f.t.Context(), o); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) now() time.Time { return time.Now().Add(time.Duration(f.ahead.Load())) }

// options wire engines with an image.
func (f *fleet) options(image string) func(*controller.Options) {
	return func(o *controller.Options) {
		o.SidecarImage, o.RepairSidecarImage, o.Now = image, true, f.now
		o.ConfigHash = func(*v1alpha1.CacheBackend, *adapter.Binding) string { return "hash" }
	}
}

// pod creates an injected one whose publisher is in a state.
func (f *fleet) pod(name, image string, native bool, state corev1.ContainerStatus) {
	f.t.Helper()
	pod := publisherPod(name, image, native, state)
	status := pod.Status
	pod.ObjectMeta = metav1.ObjectMeta{Namespace: "team-a", Name: name, Labels: pod.Labels, Annotations: pod.Annotations}
	pod.Annotations[v1alpha1.AnnotationInjectedBy], pod.Annotations[v1alpha1.AnnotationInjectedByUID] = "team-a/cb", string(f.backend.UID)
	if native {
		pod.Spec.InitContainers[0].RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
	}
	pod.Spec.Containers = append([]corev1.Container{{Name: "vllm", Image: "vllm"}}, pod.Spec.Containers...)
	f.create(pod)
	pod.Status = status
	f.setStatus(pod)
}

func (f *fleet) setStatus(pod *corev1.Pod) {
	f.t.Helper()
	if err := f.cluster.Client.Status().Update(f.t.Context(), pod); err != nil {
		f.t.Fatal(err)
	}
}

// advance sets the clock forward and has the backend looked at.
func (f *fleet) advance(d time.Duration) {
	f.t.Helper()
	f.ahead.Add(int64(d))
	b := get[v1alpha1.CacheBackend](f.t, f.cluster.Client, key("team-a", "cb"))
	before := b.DeepCopy()
	b.Annotations = map[string]string{"looked-at": f.now().String()}
	if err := f.cluster.Client.Patch(f.t.Context(), b, client.MergeFrom(before)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) healthy(prefix string) {
	f.t.Helper()
	last := ""
	defer func() { f.t.Logf("InjectionHealthy is %s", last) }()
	eventually(f.t, "InjectionHealthy="+prefix, func() bool {
		last = conditionOf(get[v1alpha1.CacheBackend](f.t, f.cluster.Client, key("team-a", "cb")).Status.Conditions, "InjectionHealthy")
		return strings.HasPrefix(last, prefix)
	})
}

func (f *fleet) image(pod string) string {
	spec := get[corev1.Pod](f.t, f.cluster.Client, key("team-a", pod)).Spec
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if c.Name == "kvevent-subscriber" {
			return c.Image
		}
	}
	return ""
}

// An image that is not there opens the breaker; with another image it closes,
// and the pods that were blocked get that one.
func TestEnvtestBreakerAndRepair(t *testing.T) {
	f := newFleet(t)
	server := startServer(t, "1")
	stop := startController(t, f.cluster, server, false, f.options("pub:1"))
	f.pod("p", "pub:1", true, waitingFor("ErrImagePull"))
	f.pod("q", "pub:0", false, waitingFor("CreateContainerError"))
	f.healthy("False/SidecarUnavailable: 2 of 2 injected; the publisher of 2 does not run (ImagePullBackOff): p, q; to unblock: kubectl -n team-a set image pod/p ")
	f.advance(61 * time.Second)
	f.healthy("False/BreakerOpen: 2 of 2 injected; new pods get no publisher: ImagePullBackOff; ")
	breaker := get[v1alpha1.CacheBackend](t, f.cluster.Client, key("team-a", "cb")).Status.Injection.Breaker
	if !breaker.Open || breaker.Image != "pub:1" || breaker.ConfigHash != "hash" || breaker.Since == nil {
		t.Errorf("breaker %+v", breaker)
	}
	if got := f.image("q"); got != "pub:0" {
		t.Errorf("while the breaker is open a pod was given %s", got)
	}
	stop()

	startController(t, f.cluster, server, false, f.options("pub:2"))
	f.healthy("False/SidecarUnavailable: 2 of 2 injected; the publisher of 2 does not run (ImagePullBackOff): p, q; the controller changes its image to pub:2")
	f.advance(61 * time.Second)
	eventually(t, "both pods are repaired", func() bool { return f.image("p") == "pub:2" && f.image("q") == "pub:2" })
	for _, name := range []string{"p", "q"} {
		pod := get[corev1.Pod](t, f.cluster.Client, key("team-a", name))
		sound := withEngine(publisherPod(name, "pub:2", name == "p", runningSince(f.now(), 0)))
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = sound.Status.InitContainerStatuses, sound.Status.ContainerStatuses
		f.setStatus(pod)
	}
	f.healthy("True/AllInjected: 2 of 2 injected")
	eventually(t, "each pod's events, once though leaders changed", func() bool {
		return slices.Equal(podEvents(t, f.cluster.Client, "team-a"), f.events(
			"p: Normal InjectedByCacheBackend: wired for CacheBackend cb",
			"p: Normal SidecarRepaired: ImagePullBackOff: the publisher's image is now pub:2",
			"q: Normal InjectedByCacheBackend: wired for CacheBackend cb",
			"q: Normal SidecarRepaired: CreateContainerError: the publisher's image is now pub:2",
		))
	})
}

func (f *fleet) events(notes ...string) []string {
	for i := range notes {
		notes[i] += " (CacheBackend cb " + string(f.backend.UID) + ")"
	}
	return notes
}

// A reconciler that breaks is counted and goes on with other backends.
func TestEnvtestPanicsAreCounted(t *testing.T) {
	f := newFleet(t)
	address := freeAddress(t)
	startController(t, f.cluster, startServer(t, "1"), false, func(o *controller.Options) {
		o.Metrics.Address = address
		o.ConfigHash = func(b *v1alpha1.CacheBackend, _ *adapter.Binding) string {
			if b.Name == "broken" {
				panic("broken")
			}
			return "hash"
		}
	})
	broken := f.backend.DeepCopy()
	broken.ObjectMeta = metav1.ObjectMeta{Namespace: "team-a", Name: "broken"}
	broken.Spec.EngineSelector.MatchLabels = map[string]string{v1alpha1.LabelCacheDomain: "broken"}
	f.create(broken)
	eventually(t, "the panic is counted and both backends are", func() bool {
		response, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		page, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(page), `inferencecache_panics_total{component="reconcile"} `) &&
			!strings.Contains(string(page), `inferencecache_panics_total{component="reconcile"} 0`) &&
			strings.Contains(string(page), `inferencecache_objects{kind="CacheBackend",state="ok"} 2`)
	})
	f.healthy("Unknown/NoEnginePods")
}
