// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/controller"
)

// publisherPod is an injected pod whose publisher, of an image, is as a status
// says.
func publisherPod(name, image string, native bool, state corev1.ContainerStatus) *corev1.Pod {
	pod := injectedPod(name, "hash")
	state.Name = "kvevent-subscriber"
	containers := []corev1.Container{{Name: "kvevent-subscriber", Image: image}}
	engine := corev1.ContainerStatus{Name: "vllm", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}}
	if native {
		pod.Spec.InitContainers, pod.Status.InitContainerStatuses = containers, []corev1.ContainerStatus{state}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{engine}
	} else {
		pod.Spec.Containers, pod.Status.ContainerStatuses = containers, []corev1.ContainerStatus{engine, state}
	}
	return pod
}

func waitingFor(reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
}

func runningSince(at time.Time, restarts int32) corev1.ContainerStatus {
	return corev1.ContainerStatus{RestartCount: restarts, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at)}}}
}

// withEngine has the engine run.
func withEngine(pod *corev1.Pod) *corev1.Pod {
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	return pod
}

func bornAt(at time.Time, pod *corev1.Pod) *corev1.Pod {
	pod.CreationTimestamp = metav1.NewTime(at)
	return pod
}

// breakerBench injects image "pub:1" with configuration "hash".
func breakerBench(t *testing.T, pods ...*corev1.Pod) *bench {
	objects := []client.Object{someBackend()}
	for _, pod := range pods {
		objects = append(objects, pod)
	}
	return newBench(t, objects...).with(func(o *controller.BackendOptions) {
		o.SidecarImage = "pub:1"
		o.ConfigHash = func(*v1alpha1.CacheBackend, *adapter.Binding) string { return "hash" }
	})
}

// replace changes a pod as the kubelet does, or creates it.
func (b *bench) replace(pod *corev1.Pod) {
	b.t.Helper()
	_ = b.cluster.Delete(b.t.Context(), pod)
	pod.ResourceVersion = ""
	if err := b.cluster.Create(b.t.Context(), pod); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) breaker() v1alpha1.InjectionBreaker {
	b.t.Helper()
	if i := b.status().Injection; i != nil && i.Breaker != nil {
		return *i.Breaker
	}
	return v1alpha1.InjectionBreaker{}
}

func TestBreakerOpens(t *testing.T) {
	terminated := corev1.ContainerStatus{RestartCount: 3, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}
	for name, tc := range map[string]struct {
		pod    *corev1.Pod
		reason string // of the open breaker, "" for none
		want   string // of InjectionHealthy
	}{
		"no image yet":              {publisherPod("p", "pub:1", true, waitingFor("ErrImagePull")), "ImagePullBackOff", "False/BreakerOpen"},
		"no image for long":         {publisherPod("p", "pub:1", true, waitingFor("ImagePullBackOff")), "ImagePullBackOff", "False/BreakerOpen"},
		"an image never pulled":     {publisherPod("p", "pub:1", true, waitingFor("ErrImageNeverPull")), "ErrImageNeverPull", "False/BreakerOpen"},
		"no name of an image":       {publisherPod("p", "pub:1", true, waitingFor("InvalidImageName")), "InvalidImageName", "False/BreakerOpen"},
		"an image not trusted":      {publisherPod("p", "pub:1", true, waitingFor("SignatureValidationFailed")), "SignatureValidationFailed", "False/BreakerOpen"},
		"an image not readable":     {publisherPod("p", "pub:1", true, waitingFor("ImageInspectError")), "ImageInspectError", "False/BreakerOpen"},
		"a configuration refused":   {publisherPod("p", "pub:1", true, waitingFor("CreateContainerConfigError")), "CreateContainerConfigError", "False/BreakerOpen"},
		"a container refused":       {publisherPod("p", "pub:1", true, waitingFor("CreateContainerError")), "CreateContainerError", "False/BreakerOpen"},
		"a container not run":       {publisherPod("p", "pub:1", true, waitingFor("RunContainerError")), "RunContainerError", "False/BreakerOpen"},
		"dying":                     {publisherPod("p", "pub:1", true, waitingFor("CrashLoopBackOff")), "CrashLoopBackOff", "False/BreakerOpen"},
		"dead":                      {publisherPod("p", "pub:1", true, terminated), "CrashLoopBackOff", "False/BreakerOpen"},
		"beside the engine":         {withEngine(publisherPod("p", "pub:1", false, waitingFor("ErrImagePull"))), "ImagePullBackOff", "False/BreakerOpen"},
		"dying beside the engine":   {withEngine(publisherPod("p", "pub:1", false, waitingFor("CrashLoopBackOff"))), "", "False/SidecarUnavailable"},
		"dying after the engine":    {withEngine(publisherPod("p", "pub:1", true, waitingFor("CrashLoopBackOff"))), "", "False/SidecarUnavailable"},
		"dead after the engine":     {withEngine(publisherPod("p", "pub:1", true, terminated)), "", "True/AllInjected"},
		"an unknown state":          {publisherPod("p", "pub:1", true, waitingFor("Teapot")), "", "False/SidecarUnavailable"},
		"not its turn":              {publisherPod("p", "pub:1", true, waitingFor("PodInitializing")), "", "True/AllInjected"},
		"an older image":            {publisherPod("p", "pub:0", true, waitingFor("ErrImagePull")), "", "False/SidecarUnavailable"},
		"running long after a fall": {publisherPod("p", "pub:1", true, runningSince(birth.Add(-time.Hour), 1)), "", "True/AllInjected"},
	} {
		t.Run(name, func(t *testing.T) {
			b := breakerBench(t, tc.pod)
			next := b.pass()
			if unavailable := tc.reason != "" || strings.Contains(tc.want, "SidecarUnavailable"); unavailable {
				b.want("InjectionHealthy=False/SidecarUnavailable")
			}
			b.advance(59 * time.Second)
			last := b.pass()
			if b.breaker().Open {
				t.Error("open after 59 seconds")
			}
			if tc.reason != "" && (next != 30*time.Second || last != time.Second) {
				t.Errorf("next passes in %s and %s, want 30s and 1s", next, last)
			}
			b.advance(time.Second)
			b.pass()
			got := b.breaker()
			if got.Open != (tc.reason != "") || got.Reason != tc.reason {
				t.Errorf("breaker %+v, want reason %q", got, tc.reason)
			}
			if got.Open && (got.Image != "pub:1" || got.ConfigHash != "hash" || !got.Since.Time.Equal(birth.Add(time.Minute))) {
				t.Errorf("breaker %+v", got)
			}
			b.want("InjectionHealthy=" + tc.want)
		})
	}
}

// Statuses hold whole seconds; a clock between them delays nothing.
func TestBreakerOpensBetweenSeconds(t *testing.T) {
	b := breakerBench(t, publisherPod("p", "pub:1", true, waitingFor("ErrImagePull")))
	b.advance(900 * time.Millisecond)
	b.pass()
	b.advance(59*time.Second + 150*time.Millisecond)
	b.pass()
	if !b.breaker().Open {
		t.Error("not open once the minute is over")
	}
}

// A publisher that dies runs for a moment in between.
func TestBreakerSeesThroughRestarts(t *testing.T) {
	b := breakerBench(t, publisherPod("p", "pub:1", true, waitingFor("CrashLoopBackOff")))
	b.pass()
	b.advance(50 * time.Second)
	b.replace(publisherPod("p", "pub:1", true, runningSince(b.clock(), 3)))
	b.pass()
	b.advance(10 * time.Second)
	b.replace(publisherPod("p", "pub:1", true, waitingFor("CrashLoopBackOff")))
	b.pass()
	if got := b.breaker(); !got.Open || got.Reason != "CrashLoopBackOff" {
		t.Errorf("breaker %+v", got)
	}

	b = breakerBench(t, publisherPod("p", "pub:1", true, waitingFor("ErrImagePull")))
	b.pass()
	b.advance(50 * time.Second)
	b.replace(withEngine(publisherPod("p", "pub:1", true, runningSince(b.clock(), 0))))
	b.pass()
	b.advance(time.Second)
	b.replace(publisherPod("p", "pub:1", true, waitingFor("ErrImagePull")))
	b.advance(30 * time.Second)
	b.pass()
	if b.breaker().Open {
		t.Error("trouble that ended counts")
	}
}

func TestBreakerEvents(t *testing.T) {
	b := breakerBench(t, publisherPod("p", "pub:1", true, waitingFor("ErrImagePull")))
	b.pass()
	b.wantEvents("Normal AwaitingFirstKVEvent, Warning InjectionDegraded, Warning SidecarUnavailable")
	b.advance(time.Minute)
	b.pass()
	b.wantEvents("Warning InjectionDegraded")
	b.advance(time.Minute)
	b.replace(withEngine(publisherPod("p", "pub:1", true, runningSince(b.clock(), 0))))
	b.replace(somePod("q", v1alpha1.AnnotationInjectSkipped, "breaker-open"))
	b.pass()
	b.want("InjectionHealthy=False/PodsSkipped: 1 of 2 injected; breaker-open: 1: q")
	b.wantEvents("Normal InjectionRecovered")
	if err := b.cluster.Delete(t.Context(), somePod("q")); err != nil {
		t.Fatal(err)
	}
	b.pass()
	b.want("InjectionHealthy=True/AllInjected")
	b.wantEvents("Normal InjectionRecovered")
}

// opened returns a bench whose breaker is open since a minute after birth.
func opened(t *testing.T) *bench {
	b := breakerBench(t, publisherPod("p", "pub:1", true, waitingFor("ErrImagePull")))
	b.pass()
	b.advance(time.Minute)
	b.pass()
	if !b.breaker().Open {
		t.Fatal("the breaker does not open")
	}
	return b
}

func TestBreakerCloses(t *testing.T) {
	for name, tc := range map[string]struct {
		do     func(*bench)
		closed bool
	}{
		"not with time":        {func(b *bench) { b.advance(time.Hour) }, false},
		"not without its pods": {func(b *bench) { _ = b.cluster.Delete(b.t.Context(), somePod("p")) }, false},
		"with another image":   {func(b *bench) { b.with(func(o *controller.BackendOptions) { o.SidecarImage = "pub:2" }) }, true},
		"without any image":    {func(b *bench) { b.with(func(o *controller.BackendOptions) { o.SidecarImage = "" }) }, true},
		"with another configuration": {func(b *bench) {
			b.with(func(o *controller.BackendOptions) {
				o.ConfigHash = func(*v1alpha1.CacheBackend, *adapter.Binding) string { return "2" }
			})
		}, true},
		"with a trial pod's engine": {func(b *bench) {
			b.advance(time.Hour)
			b.replace(withEngine(bornAt(b.clock(), publisherPod("t", "pub:1", true, runningSince(b.clock(), 0)))))
		}, true},
		"with a minute of a trial pod": {func(b *bench) {
			b.replace(bornAt(b.clock(), publisherPod("t", "pub:1", true, runningSince(b.clock(), 0))))
			b.advance(time.Minute)
		}, true},
		"with the first pod": {func(b *bench) { b.replace(withEngine(publisherPod("p", "pub:1", true, runningSince(b.clock(), 0)))) }, true},
		"not within that minute": {func(b *bench) {
			b.replace(bornAt(b.clock(), publisherPod("t", "pub:1", true, runningSince(b.clock(), 0))))
			b.advance(59 * time.Second)
		}, false},
		"not beside an engine at once":  {func(b *bench) { b.replace(withEngine(publisherPod("t", "pub:1", false, runningSince(b.clock(), 0)))) }, false},
		"not with one that fell":        {func(b *bench) { b.replace(withEngine(publisherPod("t", "pub:1", true, runningSince(b.clock(), 1)))) }, false},
		"not with one that ran before":  {func(b *bench) { b.replace(withEngine(publisherPod("t", "pub:1", true, runningSince(birth, 0)))) }, false},
		"not with one of another image": {func(b *bench) { b.replace(withEngine(publisherPod("t", "pub:0", true, runningSince(b.clock(), 0)))) }, false},
		"not with another's that is fine": {func(b *bench) {
			pod := withEngine(publisherPod("t", "pub:1", true, runningSince(b.clock(), 0)))
			pod.Annotations[v1alpha1.AnnotationInjectedByUID] = "x"
			b.replace(pod)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := opened(t)
			tc.do(b)
			b.pass()
			if got := b.breaker(); got.Open == tc.closed {
				t.Errorf("breaker %+v", got)
			}
		})
	}
}

func TestBreakerAfterATrial(t *testing.T) {
	b := opened(t)
	b.advance(10 * time.Minute)
	b.replace(bornAt(b.clock(), publisherPod("t", "pub:1", true, waitingFor("ErrImagePull"))))
	b.pass()
	if got := b.breaker(); !got.Open || got.LastTrialAt == nil || !got.LastTrialAt.Time.Equal(b.clock()) {
		t.Errorf("a failed trial leaves %+v", got)
	}
	b.advance(10 * time.Minute)
	b.replace(withEngine(bornAt(b.clock(), publisherPod("u", "pub:1", true, runningSince(b.clock(), 0)))))
	b.pass()
	closed := b.clock()
	if got := b.breaker(); got.Open || got.Image != "pub:1" || !got.Since.Time.Equal(closed) || got.LastTrialAt != nil || got.Reason != "" {
		t.Errorf("a good trial leaves %+v", got)
	}
	b.want("InjectionHealthy=False/SidecarUnavailable")
	b.advance(time.Hour)
	b.pass()
	if b.breaker().Open {
		t.Error("pods of before open it again")
	}
	b.replace(bornAt(b.clock(), publisherPod("v", "pub:1", true, waitingFor("ErrImagePull"))))
	b.pass()
	b.advance(time.Minute)
	b.pass()
	if !b.breaker().Open {
		t.Error("a pod of later does not open it")
	}
}

// A leader that takes over finds the breaker in the status and counts anew
// what is not in there.
func TestBreakerOutlivesItsLeader(t *testing.T) {
	b := opened(t).with(func(*controller.BackendOptions) {})
	b.pass()
	if !b.breaker().Open {
		t.Error("another leader closes it")
	}
	b = breakerBench(t, publisherPod("p", "pub:1", true, waitingFor("ErrImagePull")))
	b.pass()
	b.advance(59 * time.Second)
	b.with(func(*controller.BackendOptions) {})
	b.pass()
	b.advance(59 * time.Second)
	b.pass()
	if b.breaker().Open {
		t.Error("open before the new leader has looked for a minute")
	}
	b.advance(time.Second)
	b.pass()
	if !b.breaker().Open {
		t.Error("not open after the new leader's minute")
	}
}

func TestBlockedPodsAreUnblocked(t *testing.T) {
	const command = "kubectl -n a set image pod/p kvevent-subscriber="
	for name, tc := range map[string]struct {
		image   string
		native  bool
		repairs bool
		message string
		becomes string
	}{
		"a command for an older image":        {"pub:0", true, false, "to unblock: " + command + "pub:1", "pub:0"},
		"a command to complete for this one":  {"pub:1", true, false, "to unblock: " + command + "IMAGE-THAT-WORKS", "pub:1"},
		"a repair of an older image":          {"pub:0", true, true, "the controller changes its image to pub:1", "pub:1"},
		"a repair of an ordinary container":   {"pub:0", false, true, "the controller changes its image to pub:1", "pub:1"},
		"nothing to repair this image with":   {"pub:1", true, true, "to unblock: " + command + "IMAGE-THAT-WORKS", "pub:1"},
		"a command for an ordinary container": {"pub:0", false, false, "to unblock: " + command + "pub:1", "pub:0"},
	} {
		t.Run(name, func(t *testing.T) {
			b := breakerBench(t, publisherPod("p", tc.image, tc.native, waitingFor("ImagePullBackOff"))).with(func(o *controller.BackendOptions) {
				o.RepairSidecarImage = tc.repairs
			})
			imageNow := func() string {
				spec := get[corev1.Pod](t, b.cluster, key("a", "p")).Spec
				return append(spec.InitContainers, spec.Containers...)[0].Image
			}
			b.pass()
			b.want("InjectionHealthy=False/SidecarUnavailable: 1 of 1 injected; the publisher of 1 does not run (ImagePullBackOff): p; " + tc.message)
			b.advance(59 * time.Second)
			b.pass()
			if got := imageNow(); got != tc.image {
				t.Errorf("image %q after 59 seconds", got)
			}
			b.advance(time.Second)
			b.pass()
			if got := imageNow(); got != tc.becomes {
				t.Errorf("image %q, want %q", got, tc.becomes)
			}
			var want []string
			if tc.becomes != tc.image {
				want = []string{"p: Normal SidecarRepaired: ImagePullBackOff: the publisher's image is now pub:1 (CacheBackend cb uid-cb)"}
			}
			if got := podEvents(t, b.cluster, "a"); !slices.Equal(got, want) {
				t.Errorf("events on pods %q, want %q", got, want)
			}
		})
	}
}

func TestRepairWaitsForAnImageThatMayWork(t *testing.T) {
	b := breakerBench(t, publisherPod("p", "pub:1", true, waitingFor("ErrImagePull")), publisherPod("q", "pub:0", true, waitingFor("ErrImagePull")))
	b.with(func(o *controller.BackendOptions) { o.RepairSidecarImage = true })
	b.pass()
	b.advance(time.Minute)
	b.pass()
	if !b.breaker().Open {
		t.Fatal("the breaker does not open")
	}
	if got := get[corev1.Pod](t, b.cluster, key("a", "q")).Spec.InitContainers[0].Image; got != "pub:0" {
		t.Errorf("a pod was given %s, which does not work", got)
	}
	refusal, logs := errors.New("no right to patch pods"), new(strings.Builder)
	b.with(func(o *controller.BackendOptions) {
		o.SidecarImage, o.Logger = "pub:2", slog.New(slog.NewTextHandler(logs, nil))
		o.Client = interceptor.NewClient(b.cluster.(client.WithWatch), interceptor.Funcs{
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				return refusal
			},
		})
	})
	b.pass()
	b.advance(time.Minute)
	if next := b.pass(); next != 30*time.Second {
		t.Errorf("next pass in %s, want the usual 30s", next)
	}
	if text := logs.String(); !strings.Contains(text, "pod p: "+refusal.Error()) || !strings.Contains(text, "pod q: "+refusal.Error()) {
		t.Errorf("logs %q, want both pods named", text)
	}
}
