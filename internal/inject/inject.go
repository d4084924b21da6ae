// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

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
	// Bindings resolves the storage of backends. Default: those with one are
	// skipped.
	Bindings BindingResolver
	// PodSecurity returns the Pod Security level that a namespace enforces,
	// empty for none. Default: none is enforced.
	PodSecurity func(namespace string) (string, error)
}

func (o Options) withDefaults() Options {
	if o.Registry == nil {
		o.Registry = adapter.Core()
	}
	if o.Bindings == nil {
		o.Bindings = noBindings
	}
	if o.PodSecurity == nil {
		o.PodSecurity = func(string) (string, error) { return "", nil }
	}
	return o
}

// BindingResolver returns the storage that a backend's engines are to use. It
// is nil without an error for a backend that has none, and for one whose
// storage is not there yet. It must not block.
type BindingResolver func(*v1alpha1.CacheBackend) (*adapter.Binding, error)

// noBindings resolves only backends without a storage.
func noBindings(backend *v1alpha1.CacheBackend) (*adapter.Binding, error) {
	if backend.Spec.RemoteStorage != nil {
		return nil, errors.New("the controller resolves no storage")
	}
	return nil, nil
}

// Pod returns a pod wired for a backend, or, with the reason in annotations,
// as it was. Stamps that the pod brings are not kept. The pod given is not
// changed.
func Pod(pod *corev1.Pod, backend *v1alpha1.CacheBackend, o Options) (*corev1.Pod, Outcome) {
	o = o.withDefaults()
	wired := pod.DeepCopy()
	if stampedBy(pod, backend) {
		remove(wired)
	}
	if a, ok := o.Registry.For(backend); ok {
		if remover, ok := a.(adapter.Remover); ok {
			remover.Remove(wired)
		}
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
	w := adapter.Wiring{
		Backend: backend, Container: e.container.Name, OrdinaryContainers: o.OrdinaryContainer,
		Observed: observationOf(backend).ModelID != "" && o.Image != "",
	}
	if adapter.WatchesOnly(backend) {
		if !w.Observed {
			return unobserved(backend, o), nil
		}
	} else if outcome, err := offload(pod, a, &w, o); outcome.Reason != "" || err != nil {
		return outcome, err
	}
	hash, err := ConfigHash(backend, a, w.Binding)
	if err != nil {
		return Outcome{}, err
	}
	e = engineNamed(spec, w.Container, a.Engine())
	var s sockets
	var warnings []string
	if w.Observed {
		if outcome := metricsPortTaken(spec, e); outcome.Reason != "" {
			return outcome, nil
		}
		if s, warnings, err = configure(spec, e, backend); err != nil {
			return Outcome{}, err
		}
		if outcome := eventPortTaken(spec, e, s, backend); outcome.Reason != "" {
			return outcome, nil
		}
	}
	checkKernels(pod, a, w)
	if w.Observed {
		addSidecar(spec, e, s, backend, o)
	}
	if err := stamp(pod, backend, hash, warnings); err != nil {
		return Outcome{}, err
	}
	return Outcome{Result: Injected, Warnings: warnings}, nil
}

// preconditions finds the engine in a pod that can be wired.
func preconditions(spec *corev1.PodSpec, facts adapter.Engine) (engine, Outcome) {
	if system := systemOf(spec); system != string(corev1.Linux) {
		return engine{}, skip(ReasonOSUnsupported, fmt.Sprintf("the pod is for %s; the publisher runs on linux", system))
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

// systemOf is the operating system that a pod says it is for, linux if it says
// nothing.
func systemOf(spec *corev1.PodSpec) string {
	if spec.OS != nil {
		return string(spec.OS.Name)
	}
	return cmp.Or(spec.NodeSelector[corev1.LabelOSStable], string(corev1.Linux))
}

func unobserved(backend *v1alpha1.CacheBackend, o Options) Outcome {
	if o.Image == "" {
		return skip(ReasonSubscriberImageUnset, "the controller has no --kvevent-subscriber-image")
	}
	return skip(ReasonModelIDUnset, fmt.Sprintf("CacheBackend %s has no spec.observation.modelID", backend.Name))
}

// offload wires the engine to its storage tier and says in w to which.
func offload(pod *corev1.Pod, a adapter.Adapter, w *adapter.Wiring, o Options) (Outcome, error) {
	find := func(pod *corev1.Pod) *corev1.Container {
		i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == w.Container })
		return &pod.Spec.Containers[i]
	}
	var overrides *v1alpha1.EngineOverrides
	if i := w.Backend.Spec.Integration; i != nil {
		overrides = i.EngineOverrides
	}
	if validator, ok := a.(adapter.PodValidator); ok {
		asStarted := pod.DeepCopy() // what the overrides add must fit too
		applyOverrides(find(asStarted), *find(pod), overrides)
		if err := validator.ValidateEnginePod(asStarted, *w); err != nil {
			return Outcome{}, err
		}
	}
	if outcome, err := admitted(pod, w.Backend, o); outcome.Reason != "" || err != nil {
		return outcome, err
	}
	binding, err := o.Bindings(w.Backend)
	switch {
	case err != nil:
		return skip(ReasonEndpointUnresolved, fmt.Sprintf("the storage of CacheBackend %s: %v", w.Backend.Name, err)), nil
	case !a.SupportsBinding(binding):
		return skip(ReasonBindingUnsupported, unbound(a, binding)), nil
	}
	w.Binding = binding
	was := *find(pod).DeepCopy()
	if err := a.InjectEngineConfig(pod, *w); err != nil {
		return Outcome{}, err
	}
	applyOverrides(find(pod), was, overrides)
	return Outcome{}, nil
}

func unbound(a adapter.Adapter, binding *adapter.Binding) string {
	if binding == nil {
		return a.Name() + " needs a storage"
	}
	return fmt.Sprintf("%s cannot use a storage that speaks %s", a.Name(), binding.Protocol)
}

// configure has the engine publish its events. It returns where they are, and
// warnings.
func configure(spec *corev1.PodSpec, e engine, backend *v1alpha1.CacheBackend) (s sockets, warnings []string, err error) {
	s, warning, err := configureEvents(e, observationOf(backend).KVEvents)
	if err != nil {
		return s, nil, err
	}
	if warning != "" {
		warnings = append(warnings, warning)
	}
	warnings = append(warnings, e.warnings()...)
	if spec.HostNetwork {
		warnings = append(warnings, WarnHostNetwork)
	}
	return s, warnings, nil
}

// checkKernels adds the check that runs before the engine.
func checkKernels(pod *corev1.Pod, a adapter.Adapter, w adapter.Wiring) {
	checker, ok := a.(adapter.KernelChecker)
	if !ok {
		return
	}
	if check := checker.KernelCheckInitContainer(pod, w); check != nil {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, *check)
	}
}

// addSidecar adds the publisher.
func addSidecar(spec *corev1.PodSpec, e engine, s sockets, backend *v1alpha1.CacheBackend, o Options) {
	sidecar := renderSidecar(spec, e, s, backend, o)
	spec.Volumes = append(spec.Volumes, ingestVolume())
	if o.OrdinaryContainer {
		spec.Containers = append(spec.Containers, sidecar)
	} else {
		spec.InitContainers = append(spec.InitContainers, sidecar)
	}
}
