// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
)

// Options say what is injected. The zero value injects no publisher.
type Options struct {
	// Image of the publisher, whose entry point takes the publisher's flags.
	// Default none: pods of backends that only watch are skipped.
	Image string
	// Servers that publishers report to: host:port, or dns:///host:port for
	// all behind a name.
	Servers []string
	// ServerName is the name in the servers' certificates. Default the host.
	ServerName string
	// PlainText means that the servers speak no TLS. Default false.
	PlainText bool
	// OrdinaryContainer is for clusters older than Kubernetes 1.29. Default
	// false: a native sidecar.
	OrdinaryContainer bool
	// Registry finds adapters. Default adapter.Core.
	Registry *adapter.Registry
}

// Pod returns a pod wired for a backend, or, with the reason in annotations,
// as it was. Stamps that the pod brings are not kept. The pod given is not
// changed.
func Pod(pod *corev1.Pod, backend *v1alpha1.CacheBackend, o Options) (*corev1.Pod, Outcome) {
	if o.Registry == nil {
		o.Registry = adapter.Core()
	}
	wired := pod.DeepCopy()
	if stampedBy(pod, backend) {
		remove(wired)
	}
	Strip(wired)
	outcome, err := wire(wired, backend, o)
	if err != nil {
		outcome = Outcome{Result: Failed, Reason: ReasonInternalError, Message: err.Error()}
		var unfit *adapter.PodError
		if errors.As(err, &unfit) {
			outcome = skip(unfit.Reason, unfit.Error())
		}
	}
	if outcome.Result == Injected {
		return wired, outcome
	}
	return refuse(pod, backend, outcome), outcome
}

// refuse returns a pod as it was but for forged stamps and the reason.
func refuse(pod *corev1.Pod, backend *v1alpha1.CacheBackend, outcome Outcome) *corev1.Pod {
	untouched := pod.DeepCopy()
	Strip(untouched)
	explain(untouched, backend, outcome)
	return untouched
}

// remove takes an earlier injection out again, so that it is done anew.
func remove(pod *corev1.Pod) {
	ours := func(c corev1.Container) bool { return c.Name == SidecarName }
	pod.Spec.InitContainers = slices.DeleteFunc(pod.Spec.InitContainers, ours)
	pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, ours)
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == VolumeName })
}

// wire changes the pod in place. On any result but Injected the caller throws
// it away.
func wire(pod *corev1.Pod, backend *v1alpha1.CacheBackend, o Options) (Outcome, error) {
	spec := &pod.Spec
	a, ok := o.Registry.For(backend)
	switch {
	case !ok:
		return skip(ReasonAdapterUnsupported, o.Registry.Unsupported(backend)), nil
	case adapter.Type(backend) == v1alpha1.BackendExternal:
		return skip(ReasonAdapterUnsupported, "a backend of type External only knows the replicas it lists"), nil
	}
	if _, static := pod.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return skip(ReasonAdapterUnsupported, "a static pod has no service account to be known by"), nil
	}
	e, outcome := preconditions(spec, a.Engine())
	if outcome.Reason != "" {
		return outcome, nil
	}
	watches, observed := adapter.WatchesOnly(backend), observationOf(backend).ModelID != "" && o.Image != ""
	if watches && !observed {
		return unobserved(backend, o), nil
	}
	hash, err := ConfigHash(backend, a)
	if err != nil {
		return Outcome{}, err
	}
	if validator, ok := a.(adapter.PodValidator); ok {
		if err := validator.ValidateEnginePod(pod, backend); err != nil {
			return Outcome{}, err
		}
	}
	if !watches {
		if outcome, err := offload(spec, e.container.Name, a, backend); outcome.Reason != "" || err != nil {
			return outcome, err
		}
		e, _ = findEngine(spec, a.Engine())
	}
	var warnings []string
	if observed {
		if warnings, err = observe(spec, e, backend, o); err != nil {
			return Outcome{}, err
		}
	}
	stamp(pod, backend, hash, warnings)
	return Outcome{Result: Injected, Warnings: warnings}, nil
}

// preconditions finds the engine in a pod that can be wired.
func preconditions(spec *corev1.PodSpec, facts adapter.Engine) (engine, Outcome) {
	if spec.OS != nil && spec.OS.Name != corev1.Linux {
		return engine{}, skip(ReasonOSUnsupported, fmt.Sprintf("the pod is for %s; the publisher runs on linux", spec.OS.Name))
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if c.Name == SidecarName || c.Name != facts.Container && isSubscriber(c) {
			return engine{}, skip(ReasonSidecarPresent, fmt.Sprintf("container %q is a publisher already; its reports are taken as they are", c.Name))
		}
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == metricsName }) {
			return engine{}, skip(ReasonReservedNameConflict, fmt.Sprintf("container %q has a port named %s", c.Name, metricsName))
		}
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == VolumeName }) {
			return engine{}, skip(ReasonReservedNameConflict, fmt.Sprintf("container %q mounts a volume named %s", c.Name, VolumeName))
		}
	}
	if slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == VolumeName }) {
		return engine{}, skip(ReasonReservedNameConflict, "the pod has a volume named "+VolumeName)
	}
	e, ok := findEngine(spec, facts)
	if !ok {
		return engine{}, skip(ReasonEngineContainerNotFound,
			fmt.Sprintf("no container is named %q, and there is not exactly one", facts.Container))
	}
	return e, Outcome{}
}

// isSubscriber recognises a publisher that the user brings, by flags that only
// publishers have.
func isSubscriber(c corev1.Container) bool {
	words := slices.Concat(c.Command, c.Args)
	has := func(flag string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return w == flag || strings.HasPrefix(w, flag+"=") })
	}
	return has("--engine-endpoint") && has("--server")
}

func unobserved(backend *v1alpha1.CacheBackend, o Options) Outcome {
	if o.Image == "" {
		return skip(ReasonSubscriberImageUnset, "the controller has no --kvevent-subscriber-image")
	}
	return skip(ReasonModelIDUnset, fmt.Sprintf("CacheBackend %s has no spec.observation.modelID", backend.Name))
}

// offload wires the engine to its storage tier.
func offload(spec *corev1.PodSpec, name string, a adapter.Adapter, backend *v1alpha1.CacheBackend) (Outcome, error) {
	if !a.SupportsBinding(nil) {
		return skip(ReasonBindingUnsupported, a.Name()+" needs a storage"), nil
	}
	find := func() *corev1.Container {
		i := slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == name })
		return &spec.Containers[i]
	}
	was := *find().DeepCopy()
	if err := a.InjectEngineConfig(spec, nil, backend); err != nil {
		return Outcome{}, err
	}
	if backend.Spec.Integration != nil {
		applyOverrides(find(), was, backend.Spec.Integration.EngineOverrides)
	}
	return Outcome{}, nil
}

// observe adds the publisher and returns what it warns of.
func observe(spec *corev1.PodSpec, e engine, backend *v1alpha1.CacheBackend, o Options) (warnings []string, err error) {
	s, warning, err := configureEvents(e, observationOf(backend).KVEvents)
	if err != nil {
		return nil, err
	}
	if warning != "" {
		warnings = append(warnings, warning)
	}
	warnings = append(warnings, e.warnings()...)
	if spec.HostNetwork {
		warnings = append(warnings, WarnHostNetwork)
	}
	sidecar := renderSidecar(spec, e, s, backend, o)
	spec.Volumes = append(spec.Volumes, ingestVolume())
	if o.OrdinaryContainer {
		spec.Containers = append(spec.Containers, sidecar)
	} else {
		spec.InitContainers = append(spec.InitContainers, sidecar)
	}
	return warnings, nil
}
