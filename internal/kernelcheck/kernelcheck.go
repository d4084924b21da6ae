// SPDX-License-Identifier: Apache-2.0

// Package kernelcheck finds out, before an engine starts, whether the compiled
// parts of LMCache and vLLM in its image can be loaded, and what the checks of
// several engines say together.
package kernelcheck

import (
	_ "embed"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// ContainerName is the name of the init container; no other may have it.
const ContainerName = "lmcache-kernel-check"

// strictVariable says "1" where a fault is to keep the engine from starting.
const strictVariable = "KERNEL_CHECK_STRICT"

// gpu is the resource that engines with NVIDIA accelerators ask for.
const gpu corev1.ResourceName = "nvidia.com/gpu"

//go:embed check.py
var script string

// Wanted says whether an engine is checked.
func Wanted(mode v1alpha1.KernelCheckMode, engine *corev1.Container) bool {
	switch mode {
	case v1alpha1.KernelCheckOff:
		return false
	case v1alpha1.KernelCheckReportOnly, v1alpha1.KernelCheckStrict:
		return true
	}
	amount := engine.Resources.Limits[gpu]
	return !amount.IsZero()
}

// Container returns the check of an engine: its image, variables and mounts,
// and its accelerators, without which the driver's libraries are not there. It
// fails only if strict. A Guaranteed pod stays Guaranteed.
func Container(engine *corev1.Container, strict, guaranteed bool) corev1.Container {
	from := engine.DeepCopy()
	value := "0"
	if strict {
		value = "1"
	}
	env := slices.DeleteFunc(from.Env, func(v corev1.EnvVar) bool { return v.Name == strictVariable || v.Name == "KERNEL_CHECK_LOG" })
	return corev1.Container{
		Name: ContainerName, Image: from.Image, ImagePullPolicy: from.ImagePullPolicy, Command: []string{"python3", "-c", script},
		WorkingDir: from.WorkingDir, EnvFrom: from.EnvFrom, Env: append(env, corev1.EnvVar{Name: strictVariable, Value: value}),
		VolumeMounts: from.VolumeMounts, VolumeDevices: from.VolumeDevices, SecurityContext: from.SecurityContext,
		Resources: resources(from, guaranteed),
	}
}

// IsContainer recognises a Container.
func IsContainer(c corev1.Container) bool {
	return c.Name == ContainerName && slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == strictVariable })
}

// resources take the engine's where the check's would change the quality of
// service of the pod: an init container costs nothing up to those.
func resources(engine *corev1.Container, guaranteed bool) corev1.ResourceRequirements {
	if guaranteed {
		return engine.Resources
	}
	r := corev1.ResourceRequirements{Claims: engine.Resources.Claims, Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("256Mi"),
	}}
	if amount := engine.Resources.Limits[gpu]; !amount.IsZero() {
		r.Limits = corev1.ResourceList{gpu: amount}
		r.Requests[gpu] = amount
	}
	return r
}
