// SPDX-License-Identifier: Apache-2.0

// Package adapter says what is known of each engine runtime in a cluster: which
// CacheBackends it can serve and how its engines are wired. Admission,
// reconciliation and injection all ask the same Registry.
package adapter

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// Adapter wires the engines of one runtime. Its methods do not block and may
// be called concurrently.
type Adapter interface {
	// Name and Version say how an engine was wired: a new version makes pods
	// of an older one stale.
	Name() string
	Version() int
	// Supports says whether the adapter serves the backend. The runtime is the
	// backend's.
	Supports(runtime v1alpha1.EngineRuntime, backend *v1alpha1.CacheBackend) bool
	// SupportsBinding says whether engines can use the storage; nil is none.
	SupportsBinding(binding *Binding) bool
	// InjectEngineConfig changes the pod in place so that its engine offloads.
	// It is not called for backends that only watch. The error is a *PodError
	// where the pod does not fit.
	InjectEngineConfig(pod *corev1.Pod, w Wiring) error
	// Engine gives the facts of the runtime.
	Engine() Engine
	// ReservedArgs and ReservedEnv are flags and variables that overrides must
	// leave alone.
	ReservedArgs() []string
	ReservedEnv() []string
}

// Engine is what an engine container of a runtime looks like.
type Engine struct {
	// Container is its usual name.
	Container string
	// HTTPPort is where it listens unless told otherwise.
	HTTPPort int32
	// HashScheme names its events' block hashes.
	HashScheme string
}

// ProtocolRESP is how Redis is spoken to.
const ProtocolRESP = "resp"

// Binding is the storage that engines offload to.
type Binding struct {
	// Protocol is how it is spoken to, Endpoint its host:port.
	Protocol, Endpoint string
	// Username and Password are in Secrets of the engines' namespace; nil is
	// none.
	Username, Password *corev1.SecretKeySelector
}

// Wiring is what an engine pod is wired for.
type Wiring struct {
	Backend *v1alpha1.CacheBackend
	// Container is the name of the pod's engine container.
	Container string
	// Binding is the storage beyond the pod; nil is none.
	Binding *Binding
	// Observed means that a publisher will run beside the engine.
	Observed bool
	// OrdinaryContainers means that the cluster has no native sidecars.
	OrdinaryContainers bool
}

// PodValidator is implemented by adapters with demands on engine pods.
type PodValidator interface {
	// ValidateEnginePod returns a *PodError where the pod does not fit. It
	// does not change the pod.
	ValidateEnginePod(pod *corev1.Pod, w Wiring) error
}

// KernelChecker is implemented by adapters that can check an engine's kernels
// before the engine starts.
type KernelChecker interface {
	// KernelCheckInitContainer returns the init container that checks the
	// engine of a wired pod, nil where none is wanted. The pod is not changed.
	KernelCheckInitContainer(pod *corev1.Pod, w Wiring) *corev1.Container
}

// Remover is implemented by adapters that add to pods more than arguments and
// variables of the engine.
type Remover interface {
	// Remove takes out of the pod, in place, what carries the adapter's marks
	// of ownership, so that it is wired anew.
	Remove(pod *corev1.Pod)
}

// PairLister is implemented by adapters that say what they support.
type PairLister interface {
	SupportedPairs() []Pair
}

// WatchesOnly says whether the engines of a backend are left as they are and
// only watched.
func WatchesOnly(backend *v1alpha1.CacheBackend) bool {
	switch backend.Spec.Type {
	case v1alpha1.BackendMemory, v1alpha1.BackendExternal:
		return true
	}
	return Mode(backend) == v1alpha1.ModeEventsOnly
}

// Mode is the backend's mode, Offload where none is set.
func Mode(backend *v1alpha1.CacheBackend) v1alpha1.IntegrationMode {
	if i := backend.Spec.Integration; i != nil && i.Mode != "" {
		return i.Mode
	}
	return v1alpha1.ModeOffload
}

// Type is the backend's type, LMCache where none is set.
func Type(backend *v1alpha1.CacheBackend) v1alpha1.BackendType {
	if backend.Spec.Type == "" {
		return v1alpha1.BackendLMCache
	}
	return backend.Spec.Type
}

var errOnlyWatches = errors.New("the adapter only watches engines")

// Ports of the first rank's sockets unless a backend says otherwise.
const (
	DefaultEventPort  = 5557
	DefaultReplayPort = 5600
)

// DefaultTopic is the topic of the events unless a backend says otherwise.
const DefaultTopic = "kv-events"

// EventPorts returns the ports of the first rank; replay is 0 for none. nil
// gives the defaults.
func EventPorts(e *v1alpha1.KVEventsSpec) (events, replay int32) {
	events, replay = DefaultEventPort, DefaultReplayPort
	if e != nil && e.Port != nil {
		events = *e.Port
	}
	if e != nil && e.ReplayPort != nil {
		replay = *e.ReplayPort
	}
	return events, replay
}

// IsEventPort says whether a backend's engines have a port for events or their
// replay.
func IsEventPort(backend *v1alpha1.CacheBackend, port int32) bool {
	var events *v1alpha1.KVEventsSpec
	if o := backend.Spec.Observation; o != nil {
		events = o.KVEvents
	}
	ranks := int32(1)
	if events != nil && events.DataParallelRanks != nil {
		ranks = *events.DataParallelRanks
	}
	first, replay := EventPorts(events)
	return port >= first && port < first+ranks || replay != 0 && port >= replay && port < replay+ranks
}
