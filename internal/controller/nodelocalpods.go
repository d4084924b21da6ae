// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/kernelcheck"
	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

// Reasons of events about servers.
const (
	eventServerEnded    = "NodeLocalServerEnded"
	eventServerReplaced = "NodeLocalServerReplaced"
	eventGateTimeout    = "NodeLocalGateTimeout"
)

// serverOf reads the pod of a server.
func serverOf(pod *corev1.Pod) nodelocal.Server {
	_, ready := readySince(pod)
	s := nodelocal.Server{
		Name: pod.Name, Node: pod.Annotations[v1alpha1.AnnotationNodeLocalTargetNode], Hash: pod.Annotations[v1alpha1.AnnotationNodeLocalConfigHash],
		Created: pod.CreationTimestamp.Time, Leaving: pod.DeletionTimestamp != nil, Ready: ready,
		Replace: pod.Annotations[v1alpha1.AnnotationNodeLocalReplace] == "now",
	}
	if n, err := strconv.Atoi(pod.Annotations[v1alpha1.AnnotationNodeLocalFailures]); err == nil {
		s.Failures = max(n, 0)
	}
	if at, err := time.Parse(time.RFC3339, pod.Annotations[v1alpha1.AnnotationNodeLocalIdleSince]); err == nil {
		s.IdleSince = at
	}
	if ended(pod) {
		s.Ended = endOf(pod)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			s.Unschedulable = c.Message
		}
	}
	return s
}

// endOf is the last thing that is known to have happened to a pod.
func endOf(pod *corev1.Pod) time.Time {
	last := pod.CreationTimestamp.Time
	later := func(t metav1.Time) {
		if t.After(last) {
			last = t.Time
		}
	}
	if pod.Status.StartTime != nil {
		later(*pod.Status.StartTime)
	}
	for _, c := range pod.Status.Conditions {
		later(c.LastTransitionTime)
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Terminated != nil {
			later(s.State.Terminated.FinishedAt)
		}
	}
	return last
}

// carryOut does one step of a plan.
func (p *nodePass) carryOut(ctx context.Context, a nodelocal.Action) error {
	switch a.Step {
	case nodelocal.Create:
		return p.create(ctx, a)
	case nodelocal.Delete:
		return p.delete(ctx, a)
	case nodelocal.MarkIdle:
		return p.mark(ctx, a.Server, p.now.UTC().Format(time.RFC3339))
	}
	return p.mark(ctx, a.Server, nil)
}

// create makes a server. One that is there already is as good: another
// controller, or an earlier pass that the cache has not caught up with, made
// it.
func (p *nodePass) create(ctx context.Context, a nodelocal.Action) error {
	if !p.allowed(a.Node) {
		return nil
	}
	var engine corev1.Pod
	key := client.ObjectKey{Namespace: p.backend.Namespace, Name: p.enginesOn[a.Node]}
	if err := p.options.Live.Get(ctx, key, &engine); err != nil {
		return client.IgnoreNotFound(err) // without the engine there is no hurry
	}
	err := p.options.Client.Create(ctx, nodelocal.Pod(nodelocal.Order{
		Backend: p.backend, Node: a.Node, Hash: p.wish.Hash, Storage: p.storage, Engine: &engine.Spec, Failures: a.Failures,
	}))
	switch {
	case err == nil:
		p.created(a.Node)
		p.options.Metrics.nodeServer("created")
		p.options.Logger.Info("LMCache server created", "namespace", p.backend.Namespace, "backend", p.backend.Name, "node", a.Node, "pod", a.Server)
		return nil
	case apierrors.IsAlreadyExists(err):
		return p.taken(ctx, a)
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		p.refuse(a.Node, nodelocal.ReasonRejected, err.Error())
		p.options.Metrics.nodeServer("refused")
		return nil
	}
	return err
}

// taken looks at the pod that has a server's name.
func (p *nodePass) taken(ctx context.Context, a nodelocal.Action) error {
	var pod corev1.Pod
	if err := p.options.Live.Get(ctx, client.ObjectKey{Namespace: p.backend.Namespace, Name: a.Server}, &pod); err != nil {
		return client.IgnoreNotFound(err)
	}
	if metav1.IsControlledBy(&pod, p.backend) {
		p.created(a.Node)
		return nil
	}
	p.refuse(a.Node, nodelocal.ReasonNameConflict, fmt.Sprintf("pod %s belongs to something else", a.Server))
	p.options.Metrics.nodeServer("refused")
	return nil
}

func (p *nodePass) delete(ctx context.Context, a nodelocal.Action) error {
	pod := p.pods[a.Server]
	err := p.options.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return err
	}
	p.options.Metrics.nodeServer(string(a.Cause))
	p.options.Logger.Info("LMCache server deleted", "namespace", pod.Namespace, "backend", p.backend.Name, "node", a.Node, "pod", pod.Name, "cause", string(a.Cause))
	switch a.Cause {
	case nodelocal.CauseEnded:
		p.options.Events.Eventf(p.backend, pod, corev1.EventTypeWarning, eventServerEnded, action,
			"the LMCache server of node %s ended: %s", a.Node, cause(pod))
	case nodelocal.CauseOutdated, nodelocal.CauseReplace:
		p.options.Events.Eventf(p.backend, pod, corev1.EventTypeNormal, eventServerReplaced, action,
			"the LMCache server of node %s makes room for one of another configuration", a.Node)
	}
	return nil
}

// cause says why a pod ended.
func cause(pod *corev1.Pod) string {
	if pod.Status.Reason != "" {
		return pod.Status.Reason + ": " + clip(pod.Status.Message, maxMessageBytes)
	}
	for _, s := range pod.Status.ContainerStatuses {
		if t := s.State.Terminated; t != nil {
			return fmt.Sprintf("%s with exit code %d", t.Reason, t.ExitCode)
		}
	}
	return "phase " + string(pod.Status.Phase)
}

// mark writes since when a server is idle, nil for not at all.
func (p *nodePass) mark(ctx context.Context, name string, since any) error {
	pod := p.pods[name]
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "annotations": map[string]any{v1alpha1.AnnotationNodeLocalIdleSince: since},
	}})
	if err != nil {
		return err
	}
	err = p.options.Client.Patch(ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsConflict(err) { // another pod of the name
		return nil
	}
	return client.IgnoreNotFound(err)
}

// tellTimeouts tells of each gate that gave up, once.
func (p *nodePass) tellTimeouts(pods []*corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := client.ObjectKeyFromObject(p.backend)
	told := map[types.UID]metav1.Time{}
	for _, pod := range pods {
		gate := gateTimeout(pod)
		if gate == nil {
			continue
		}
		told[pod.UID] = gate.FinishedAt
		if before, ok := p.timeouts[key][pod.UID]; ok && before.Equal(&gate.FinishedAt) {
			continue
		}
		p.options.Metrics.gateTimedOut()
		p.options.Events.Eventf(pod, p.backend, corev1.EventTypeWarning, eventGateTimeout, action, "%s", clip(gate.Message, maxBackendMessageBytes))
	}
	p.timeouts[key] = told
}

// gateTimeout is the last end of a pod's gate, nil unless it gave up.
func gateTimeout(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	s := initStatus(pod, nodelocal.GateContainer)
	if s == nil {
		return nil
	}
	over := s.State.Terminated
	if over == nil {
		over = s.LastTerminationState.Terminated
	}
	if over == nil || over.ExitCode != 1 || over.Message == "" {
		return nil
	}
	return over
}

func initStatus(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	i := slices.IndexFunc(pod.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &pod.Status.InitContainerStatuses[i]
}

// checksOf is what the reconciler reads of the gate and the kernel check of a
// pod: another text is news.
func checksOf(pod *corev1.Pod) string {
	var text string
	for _, name := range []string{nodelocal.GateContainer, kernelcheck.ContainerName} {
		s := initStatus(pod, name)
		if s == nil {
			continue
		}
		for _, state := range []corev1.ContainerState{s.State, s.LastTerminationState} {
			switch {
			case state.Terminated != nil:
				text += fmt.Sprintf("%d %s %s;", state.Terminated.ExitCode, state.Terminated.FinishedAt, state.Terminated.Message)
			case state.Waiting != nil:
				text += state.Waiting.Reason + ";"
			case state.Running != nil:
				text += "running;"
			}
		}
	}
	return text
}
