// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// breakerPatience is how long a publisher may be in trouble before its pod
// counts, and how long it has to run to count as sound.
const breakerPatience = 60 * time.Second

// Kinds of trouble with a publisher. What alternates in a pod's status has one
// name here.
const (
	troublePull  = "ImagePullBackOff"
	troubleCrash = "CrashLoopBackOff"
)

// holdingUp are the reasons of the kubelet for which a container has not been
// started: its image is not there, or it cannot be created.
var holdingUp = map[string]string{
	"ErrImagePull": troublePull, "ImagePullBackOff": troublePull, "ErrImageNeverPull": "ErrImageNeverPull",
	"InvalidImageName": "InvalidImageName", "ImageInspectError": "ImageInspectError",
	"SignatureValidationFailed":  "SignatureValidationFailed",
	"CreateContainerConfigError": "CreateContainerConfigError", "CreateContainerError": "CreateContainerError",
	"RunContainerError": "RunContainerError",
}

// sidecar is what a pod says of its publisher. It is comparable.
type sidecar struct {
	image string
	// native ones are started before the engine, which waits for them.
	native bool
	// waiting is why the kubelet has not started it, "" if it has.
	waiting string
	// runsSince is in Unix seconds, 0 unless it runs.
	runsSince            int64
	terminated, restarts bool
	// engineStarted says that another container of the pod has ever run.
	engineStarted bool
}

func sidecarOf(pod *corev1.Pod) (s sidecar) {
	for i, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == sidecarContainer {
			s.image, s.native = c.Image, i < len(pod.Spec.InitContainers)
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		started := status.State.Running != nil || status.State.Terminated != nil || status.LastTerminationState.Terminated != nil
		s.engineStarted = s.engineStarted || started && status.Name != sidecarContainer
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if status.Name != sidecarContainer {
			continue
		}
		s.restarts, s.terminated = status.RestartCount > 0, status.State.Terminated != nil
		if status.State.Running != nil {
			s.runsSince = status.State.Running.StartedAt.Unix()
		}
		if status.State.Waiting != nil {
			s.waiting = status.State.Waiting.Reason
		}
	}
	return s
}

// trouble says why the publisher does not run, "" if it does or has not had
// its turn. Grave trouble keeps the engine, or at least its pod, from serving.
func (s sidecar) trouble(now time.Time) (reason string, grave bool) {
	switch s.waiting {
	case "", "PodInitializing", "ContainerCreating":
		unstable := s.terminated || s.runsSince != 0 && s.restarts && now.Sub(time.Unix(s.runsSince, 0)) < breakerPatience
		if unstable && !s.engineStarted {
			return troubleCrash, true
		}
		return "", false
	case troubleCrash:
		return troubleCrash, !s.engineStarted
	}
	if reason = holdingUp[s.waiting]; reason != "" {
		return reason, true
	}
	return s.waiting, false
}

// soundSince says whether the publisher was started after a time and has
// proven that it lets the engine start.
func (s sidecar) soundSince(after *metav1.Time, now time.Time) bool {
	if s.runsSince == 0 || after != nil && s.runsSince < after.Unix() {
		return false
	}
	return s.native && s.engineStarted && !s.restarts || now.Sub(time.Unix(s.runsSince, 0)) >= breakerPatience
}

// publisher is the injected one of a live pod.
type publisher struct {
	sidecar
	pod    *corev1.Pod
	reason string // of the trouble it is in, "" for none
	grave  bool
	since  time.Time // when the trouble was first seen
}

// troubles remembers since when publishers are in grave trouble: pods do not
// say. A controller that takes over counts anew.
type troubles struct {
	mu    sync.Mutex
	since map[types.NamespacedName]map[types.UID]time.Time // by backend and pod
}

// note takes in what one pass has found and fills in the times.
func (t *troubles) note(backend types.NamespacedName, all []publisher, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.since[backend]
	next := make(map[types.UID]time.Time)
	for i := range all {
		p := &all[i]
		if p.reason, p.grave = p.trouble(now); !p.grave {
			continue
		}
		p.since = now
		if since, ok := known[p.pod.UID]; ok {
			p.since = since
		}
		next[p.pod.UID] = p.since
	}
	if t.since == nil {
		t.since = make(map[types.NamespacedName]map[types.UID]time.Time)
	}
	if t.since[backend] = next; len(next) == 0 {
		delete(t.since, backend)
	}
}

func (t *troubles) forget(backend types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.since, backend)
}

// overdue says whether the publisher has been in grave trouble for too long.
func (p *publisher) overdue(now time.Time) bool {
	return p.grave && now.Sub(p.since) >= breakerPatience
}

// current says whether the pod has what new pods would get.
func (f *podFacts) current(p *publisher) bool {
	return p.image == f.image && p.pod.Annotations[v1alpha1.AnnotationInjectedConfigHash] == f.configHash
}

// breaker says whether new pods get a publisher. It opens for an image and a
// configuration that keep a pod from serving, and closes with either of them,
// or once one pod serves with both. What troubled pods before that does not
// open it again.
func (f *podFacts) breaker(old *v1alpha1.InjectionBreaker, now metav1.Time) *v1alpha1.InjectionBreaker {
	if f.image == "" || old != nil && (old.Image != f.image || old.ConfigHash != f.configHash) {
		old = nil
	}
	if f.image == "" {
		return nil
	}
	next := v1alpha1.InjectionBreaker{Since: &now, Image: f.image, ConfigHash: f.configHash}
	open := old != nil && old.Open
	if open {
		next = *old
	}
	for i := range f.publishers {
		p := &f.publishers[i]
		born := p.pod.CreationTimestamp
		switch {
		case !f.current(p):
		case open && p.soundSince(old.Since, now.Time):
			return &v1alpha1.InjectionBreaker{Since: &now, Image: f.image, ConfigHash: f.configHash}
		case open && old.Since.Before(&born) && (next.LastTrialAt == nil || next.LastTrialAt.Before(&born)):
			next.LastTrialAt = &born
		case !open && p.overdue(now.Time) && (old == nil || old.Since.Before(&born)):
			next.Open, next.Reason = true, p.reason
			return &next
		}
	}
	if open {
		return &next
	}
	return old
}

// untilOverdue is the time to the next publisher that may open the breaker, 0
// for none.
func (f *podFacts) untilOverdue(now time.Time) (wait time.Duration) {
	for i := range f.publishers {
		p := &f.publishers[i]
		if left := p.since.Add(breakerPatience).Sub(now); p.grave && left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}
