// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/internal/commandline"
)

// remove takes an earlier injection out again, so that it is done anew. What
// only has the name of ours stays: stamps can be forged.
func remove(pod *corev1.Pod) {
	pod.Spec.InitContainers = slices.DeleteFunc(pod.Spec.InitContainers, isSidecar)
	pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, isSidecar)
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, isIngestVolume)
}

// isSidecar recognises a publisher that an injection added, by all that sets
// one apart from a publisher that the user brings.
func isSidecar(c corev1.Container) bool {
	mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == VolumeName && m.MountPath == MountPath })
	if c.Name != SidecarName || len(c.Command) > 0 || !mounted {
		return false
	}
	for _, argument := range []string{replicaArgument, tenantArgument, podArgument, tokenArgument, stayArgument} {
		if !slices.Contains(c.Args, argument) {
			return false
		}
	}
	return true
}

// isIngestVolume recognises the volume of an injected publisher.
func isIngestVolume(v corev1.Volume) bool {
	return v.Name == VolumeName && v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
		return s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == ingestAudience
	})
}

// isSubscriber recognises a publisher that the user brings, by flags that only
// publishers have.
func isSubscriber(c corev1.Container) bool {
	line := commandline.Of(&c)
	words := slices.Concat(line.Words, slices.Concat(line.Commands...))
	has := func(flag string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return w == flag || strings.HasPrefix(w, flag+"=") })
	}
	return has("--engine-endpoint") && has("--server")
}
