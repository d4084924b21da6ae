// SPDX-License-Identifier: Apache-2.0

package kernelcheck

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Reasons of a verdict.
const (
	ReasonHealthy = "KernelsHealthy"
	ReasonFailed  = "KernelLoadFailed"
	ReasonError   = "KernelCheckError"
	ReasonPending = "KernelCheckPending"
)

// Verdict is what the checks of several engines say together: a failure counts
// for more than a check that did not work, that for more than one that is not
// done.
type Verdict struct {
	Reason, Message string
	// Strict is set when a failure keeps an engine from starting.
	Strict bool
}

// examples is how many pods a message names.
const examples = 3

// Judge returns false where no pod is checked. The pods are those that a
// backend has wired.
func Judge(pods []*corev1.Pod) (Verdict, bool) {
	var (
		names   = map[string][]string{}
		details = map[string]string{}
		v       Verdict
	)
	for _, pod := range pods {
		i := slices.IndexFunc(pod.Status.InitContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == ContainerName })
		if i < 0 {
			continue
		}
		reason, detail, exit := outcome(pod.Status.InitContainerStatuses[i])
		if len(names[reason]) == 0 {
			details[reason] = detail
		}
		names[reason] = append(names[reason], pod.Name)
		v.Strict = v.Strict || reason == ReasonFailed && exit != 0
	}
	texts := map[string]string{
		ReasonFailed: "cannot load the compiled parts of LMCache or vLLM", ReasonError: "could not be checked", ReasonPending: "are not checked yet",
	}
	for _, reason := range []string{ReasonFailed, ReasonError, ReasonPending} {
		if pods := names[reason]; len(pods) > 0 {
			v.Reason, v.Message = reason, fmt.Sprintf("%d engines %s: %s", len(pods), texts[reason], some(pods))
			if details[reason] != "" {
				v.Message += ": " + details[reason]
			}
			return v, true
		}
	}
	healthy := len(names[ReasonHealthy])
	v.Reason, v.Message = ReasonHealthy, fmt.Sprintf("%d engines load the compiled parts of LMCache and vLLM", healthy)
	return v, healthy > 0
}

// outcome reads one check: the run that is over, or else why none is.
func outcome(s corev1.ContainerStatus) (reason, detail string, exit int32) {
	over := s.State.Terminated
	if over == nil && s.State.Running == nil {
		over = s.LastTerminationState.Terminated
	}
	switch {
	case over != nil && over.Message == "OK" && over.ExitCode == 0:
		return ReasonHealthy, "", 0
	case over != nil && strings.HasPrefix(over.Message, "FAIL: "):
		return ReasonFailed, strings.TrimPrefix(over.Message, "FAIL: "), over.ExitCode
	case over != nil && over.Message != "":
		return ReasonError, strings.TrimPrefix(over.Message, "ERROR: "), over.ExitCode
	case over != nil:
		return ReasonError, fmt.Sprintf("%s with exit code %d", over.Reason, over.ExitCode), over.ExitCode
	case s.State.Waiting != nil && !starting(s.State.Waiting.Reason):
		return ReasonError, s.State.Waiting.Reason, 0
	}
	return ReasonPending, "", 0
}

func starting(reason string) bool {
	return reason == "" || reason == "PodInitializing" || reason == "ContainerCreating"
}

func some(names []string) string {
	if len(names) > examples {
		return strings.Join(names[:examples], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}
