// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/commandline"
)

// ranksFlag is how an injected publisher is told how many ranks there are.
const ranksFlag = "--data-parallel-ranks"

// declaredRanks is how many ranks a backend declares; 0 is unknown.
func declaredRanks(b *v1alpha1.CacheBackend) int32 {
	if b == nil || b.Spec.Observation == nil || b.Spec.Observation.KVEvents == nil || b.Spec.Observation.KVEvents.DataParallelRanks == nil {
		return 0
	}
	return *b.Spec.Observation.KVEvents.DataParallelRanks
}

// knownRanks is how many ranks a pod has, before any of them reports: what its
// publisher was told, else its backend declares, else its engine's flags ask
// for; 0 is unknown.
func knownRanks(pod *corev1.Pod, b *v1alpha1.CacheBackend) int32 {
	return firstAbove0(publisherRanks(pod), declaredRanks(b), engineRanks(pod))
}

func firstAbove0(all ...int32) int32 {
	for _, n := range all {
		if n > 0 {
			return n
		}
	}
	return 0
}

// publisherRanks is how many ranks the injected publisher of a pod reports; 0
// is unknown.
func publisherRanks(pod *corev1.Pod) int32 {
	for _, all := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range all {
			if all[i].Name == sidecarContainer {
				n, _ := commandline.Of(&all[i]).Number(adapter.MaxRanks, ranksFlag)
				return n
			}
		}
	}
	return 0
}

// engineRanks is how many ranks the flags of a pod's engine ask for; 0 is
// unknown. The engine is the container with a runtime's name, or the only one
// that is not ours.
func engineRanks(pod *corev1.Pod) int32 {
	var engine *corev1.Container
	others := 0
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if adapter.NamesEngine(c.Name) {
			return adapter.Ranks(commandline.Of(c))
		}
		if !besides[c.Name] {
			engine, others = c, others+1
		}
	}
	if others != 1 {
		return 0
	}
	return adapter.Ranks(commandline.Of(engine))
}

// keptContainers returns what the controller reads of a pod's containers: the
// publisher's image, and of publisher and engine the numbers of ranks.
func keptContainers(pod *corev1.Pod) (inits, containers []corev1.Container) {
	published, served := publisherRanks(pod), engineRanks(pod)
	keep := func(all []corev1.Container) (kept []corev1.Container) {
		for _, c := range all {
			if c.Name != sidecarContainer {
				continue
			}
			k := corev1.Container{Name: c.Name, Image: c.Image}
			if published > 0 {
				k.Args = []string{fmt.Sprintf("%s=%d", ranksFlag, published)}
			}
			kept = append(kept, k)
		}
		return kept
	}
	inits, containers = keep(pod.Spec.InitContainers), keep(pod.Spec.Containers)
	if served > 1 {
		containers = append(containers, corev1.Container{Name: "engine", Args: []string{fmt.Sprintf("--data-parallel-size=%d", served)}})
	}
	return inits, containers
}
