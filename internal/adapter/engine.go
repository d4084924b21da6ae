// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/commandline"
)

// failOpenVariable tells an engine whether to serve without its storage tier.
const failOpenVariable = "INFERENCECACHE_FAIL_OPEN"

// engineOf is the engine container of a pod.
func engineOf(pod *corev1.Pod, name string) *corev1.Container {
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == name })
	return &pod.Spec.Containers[i]
}

// readable returns the command line of an engine that flags can be added to.
func readable(pod *corev1.Pod, w Wiring) (commandline.Line, error) {
	line := commandline.Of(engineOf(pod, w.Container))
	if line.Opaque {
		return line, unfit(ReasonEngineArgsConflict,
			"container %q starts the engine through a shell or its image alone: no flag can be added; give command or args", w.Container)
	}
	return line, nil
}

// checkSwitch wants a switch to be given without a value or not at all.
func checkSwitch(line commandline.Line, name string) error {
	if !line.Bare(name) {
		return unfit(ReasonEngineArgsConflict, "%s is given a value; it takes none", name)
	}
	return nil
}

// checkAbsent wants flags not to be given.
func checkAbsent(line commandline.Line, why string, names ...string) error {
	for _, name := range names {
		if line.Count(name) > 0 {
			return unfit(ReasonEngineArgsConflict, "%s %s", name, why)
		}
	}
	return nil
}

// checkOnce wants a flag at most once, and with a value.
func checkOnce(line commandline.Line, name string) error {
	switch n := line.Count(name); {
	case n > 1:
		return unfit(ReasonEngineArgsConflict, "%s is given %d times", name, n)
	case n != len(line.Values(name)):
		return unfit(ReasonEngineArgsConflict, "%s is given without a value", name)
	case line.HasPrefix(name + "."):
		return unfit(ReasonEngineArgsConflict, "a member of %s is given as a flag of its own", name)
	}
	return nil
}

// checkVariable wants a variable to have one value or to be absent.
func checkVariable(c *corev1.Container, name, value string) error {
	for _, variable := range c.Env {
		if variable.Name == name && (variable.ValueFrom != nil || variable.Value != value) {
			return unfit(ReasonEngineArgsConflict, "container %q sets %s to something else than %s", c.Name, name, value)
		}
	}
	return nil
}

func setSwitch(c *corev1.Container, line commandline.Line, name string) {
	if !line.Has(name) {
		c.Args = append(c.Args, name)
	}
}

// setVariable gives a variable of ours its value.
func setVariable(c *corev1.Container, variable corev1.EnvVar) {
	i := slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == variable.Name })
	if i < 0 {
		c.Env = append(c.Env, variable)
		return
	}
	c.Env[i] = variable
}

func setFailOpen(c *corev1.Container, backend *v1alpha1.CacheBackend) {
	value := "false"
	if FailsOpen(backend) {
		value = "true"
	}
	setVariable(c, corev1.EnvVar{Name: failOpenVariable, Value: value})
}

// FailsOpen says whether engines serve without their storage tier.
func FailsOpen(backend *v1alpha1.CacheBackend) bool {
	i := backend.Spec.Integration
	return i == nil || i.FailOpen == nil || *i.FailOpen
}

func ptr[T any](v T) *T { return &v }
