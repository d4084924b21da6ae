// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EngineRuntime is the kind of engine.
// +kubebuilder:validation:Enum=VLLM;SGLang
type EngineRuntime string

// Engine runtimes.
const (
	RuntimeVLLM   EngineRuntime = "VLLM"
	RuntimeSGLang EngineRuntime = "SGLang"
)

// BackendType is where the engines keep KV blocks beyond the accelerator.
// +kubebuilder:validation:Enum=LMCache;SGLangHiCache;Memory;External
type BackendType string

// Backend types.
const (
	// BackendLMCache offloads through LMCache; with integration.mode
	// EventsOnly it only watches.
	BackendLMCache BackendType = "LMCache"
	// BackendSGLangHiCache offloads through SGLang's hierarchical cache.
	BackendSGLangHiCache BackendType = "SGLangHiCache"
	// BackendMemory is engine memory only: the engines are watched.
	BackendMemory BackendType = "Memory"
	// BackendExternal is the engines of observation.externalReplicas only.
	BackendExternal BackendType = "External"
)

// IntegrationMode says how much of the engine pods is changed.
// +kubebuilder:validation:Enum=Offload;EventsOnly
type IntegrationMode string

// Integration modes.
const (
	ModeOffload    IntegrationMode = "Offload"
	ModeEventsOnly IntegrationMode = "EventsOnly"
)

// IntegrationRole is what the engines do with the offloaded blocks.
// +kubebuilder:validation:Enum=ReadOnly;WriteOnly;ReadWrite
type IntegrationRole string

// Integration roles; only ReadWrite is admitted.
const (
	RoleReadOnly  IntegrationRole = "ReadOnly"
	RoleWriteOnly IntegrationRole = "WriteOnly"
	RoleReadWrite IntegrationRole = "ReadWrite"
)

// EventTransport says who listens on the sockets between engine and
// publisher.
// +kubebuilder:validation:Enum=Loopback;Wildcard
type EventTransport string

// Event transports.
const (
	// TransportLoopback keeps the events inside the pod.
	TransportLoopback EventTransport = "Loopback"
	// TransportWildcard has the engine listen on all addresses.
	TransportWildcard EventTransport = "Wildcard"
)

// CacheBackendSpec says which engines take part and how they are wired.
type CacheBackendSpec struct {
	// +required
	Runtime EngineRuntime `json:"runtime"`
	// +kubebuilder:default=LMCache
	// +optional
	Type BackendType `json:"type,omitempty"`
	// +optional
	Integration *BackendIntegration `json:"integration,omitempty"`
	// Engine pods of this namespace that take part.
	// +optional
	EngineSelector *EngineSelector `json:"engineSelector,omitempty"`
	// +optional
	Observation *BackendObservation `json:"observation,omitempty"`
	// Lets an endpoint lie in another namespace.
	// +optional
	AllowCrossNamespace bool `json:"allowCrossNamespace,omitempty"`
	// Servers of type LMCache; required with mode Offload.
	// +optional
	LMCache *LMCacheSpec `json:"lmCache,omitempty"`
	// Storage behind the LMCache servers. Unset: their memory only.
	// +optional
	RemoteStorage *RemoteStorageSpec `json:"remoteStorage,omitempty"`
	// Required with type SGLangHiCache.
	// +optional
	HiCache *HiCacheSpec `json:"hiCache,omitempty"`
}

// BackendIntegration says how the engine pods are changed.
type BackendIntegration struct {
	// Offload wires a storage tier into the engines; EventsOnly leaves them as
	// they are and only watches.
	// +kubebuilder:default=Offload
	// +optional
	Mode IntegrationMode `json:"mode,omitempty"`
	// +kubebuilder:default=ReadWrite
	// +optional
	Role IntegrationRole `json:"role,omitempty"`
	// Engines serve without the storage tier when it fails.
	// +kubebuilder:default=true
	// +optional
	FailOpen *bool `json:"failOpen,omitempty"`
	// Changes what the integration adds to the engine container.
	// +optional
	EngineOverrides *EngineOverrides `json:"engineOverrides,omitempty"`
}

// EngineOverrides changes what the integration adds to the engine container.
type EngineOverrides struct {
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`
	// Flags that are not added.
	// +listType=atomic
	// +optional
	SuppressArgs []string `json:"suppressArgs,omitempty"`
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`
	// Variables that are not added.
	// +listType=atomic
	// +optional
	SuppressEnv []string `json:"suppressEnv,omitempty"`
}

// EngineSelector selects engine pods.
type EngineSelector struct {
	// Exactly the label inferencecache.io/cache-domain; its value is unique
	// among the CacheBackends of the namespace.
	// +optional
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
}

// BackendObservation says how the engines are watched.
type BackendObservation struct {
	// Model that the engines serve; without it no publisher is injected.
	// +optional
	ModelID string `json:"modelID,omitempty"`
	// How long to wait for the first KV event before Ready says so; 0 or less
	// is 5m.
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('2562047h')",message="a duration such as 5m is expected"
	// +optional
	FirstEventTimeout *metav1.Duration `json:"firstEventTimeout,omitempty"`
	// +optional
	KVEvents *KVEventsSpec `json:"kvEvents,omitempty"`
	// +optional
	EngineMetrics *EngineMetricsSpec `json:"engineMetrics,omitempty"`
	// Resources of the injected publisher. Unset: requests 10m and 64Mi,
	// limits 500m and 256Mi.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// Engines that the pod webhook does not see.
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=replicaID
	// +optional
	ExternalReplicas []ExternalReplica `json:"externalReplicas,omitempty"`
}

// KVEventsSpec says where the engines' events are found.
type KVEventsSpec struct {
	// Adds --kv-events-config to engines that have none.
	// +optional
	Inject bool `json:"inject,omitempty"`
	// Port of the first rank's event socket. Default 5557.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port *int32 `json:"port,omitempty"`
	// Port of the first rank's replay socket, 0 for none. Default 5600.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	// +optional
	ReplayPort *int32 `json:"replayPort,omitempty"`
	// Default "kv-events".
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Topic *string `json:"topic,omitempty"`
	// Default Loopback with inject, else Wildcard.
	// +optional
	Transport EventTransport `json:"transport,omitempty"`
	// Data-parallel ranks of one pod. Unset: from the engine's arguments.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	// +optional
	DataParallelRanks *int32 `json:"dataParallelRanks,omitempty"`
	// Names of adapters that events give by number.
	// +listType=map
	// +listMapKey=id
	// +optional
	LoRAAdapterNames []LoRAAdapterName `json:"loraAdapterNames,omitempty"`
}

// LoRAAdapterName names an adapter that events give by number.
type LoRAAdapterName struct {
	ID int64 `json:"id"`
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// EngineMetricsSpec says where the engine's metrics are found.
type EngineMetricsSpec struct {
	// Unset: from the engine's arguments, else the runtime's port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port *int32 `json:"port,omitempty"`
	// Default "/metrics".
	// +optional
	Path string `json:"path,omitempty"`
}

// ExternalReplica is an engine outside the cluster's webhook.
type ExternalReplica struct {
	// Id it reports under.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ReplicaID string `json:"replicaID"`
}

// IndexParticipation is what the index knows of a backend's engines.
type IndexParticipation struct {
	// Distinct prefixes over all engines.
	PrefixCount int64 `json:"prefixCount"`
	// Newest event of any engine. While events keep coming it is up to 4 polls,
	// 2 minutes at most, behind.
	// +optional
	LastEventAt *metav1.Time `json:"lastEventAt,omitempty"`
	// Share of prompt tokens found in the cache, weighted by prefixes: a
	// decimal from 0 to 1.
	// +optional
	HitRate *string `json:"hitRate,omitempty"`
	// Share of queried tokens found in the storage tier: a decimal from 0 to 1.
	// +optional
	T2HitRate *string `json:"t2HitRate,omitempty"`
	// Replicas with a row in the index: one of an engine, or of each of its
	// data-parallel ranks.
	// +optional
	ReportingReplicas *int32 `json:"reportingReplicas,omitempty"`
	// Replicas there should be: all ranks of the engine pods and the external
	// replicas.
	// +optional
	ExpectedReplicas *int32 `json:"expectedReplicas,omitempty"`
}

// InjectionStatus counts the engine pods by how they were injected.
type InjectionStatus struct {
	// Configuration that new pods are wired with.
	// +optional
	ConfigHash string `json:"configHash,omitempty"`
	// +optional
	SidecarImage string `json:"sidecarImage,omitempty"`
	InjectedPods int32  `json:"injectedPods"`
	// Injected with an older configuration; they keep serving.
	StalePods int32 `json:"stalePods"`
	// Not injected for a reason given below.
	SkippedPods int32 `json:"skippedPods"`
	// Never seen by the webhook.
	UnseenPods int32 `json:"unseenPods"`
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=reason
	// +optional
	Skipped []SkippedPods `json:"skipped,omitempty"`
	// +optional
	Breaker *InjectionBreaker `json:"breaker,omitempty"`
}

// SkippedPods counts pods that were not injected for one reason.
type SkippedPods struct {
	Reason     string `json:"reason"`
	Count      int32  `json:"count"`
	ExamplePod string `json:"examplePod,omitempty"`
}

// InjectionBreaker holds the publisher back from new pods after it kept some
// from starting.
type InjectionBreaker struct {
	Open bool `json:"open"`
	// +optional
	Reason string `json:"reason,omitempty"`
	// Since when it is open, or closed again.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// When the last pod was created that was wired on trial while it is open.
	// +optional
	LastTrialAt *metav1.Time `json:"lastTrialAt,omitempty"`
	// Image and configuration that it is about.
	// +optional
	Image string `json:"image,omitempty"`
	// +optional
	ConfigHash string `json:"configHash,omitempty"`
}

// CacheBackendStatus shows whether the engines are wired and report.
type CacheBackendStatus struct {
	// Generation that the conditions are about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Pods that carry the selector's label. Unset without a selector.
	// +optional
	MatchedEnginePods *int32 `json:"matchedEnginePods,omitempty"`
	// +optional
	EngineSelectorMessage string `json:"engineSelectorMessage,omitempty"`
	// +optional
	FailOpen *bool `json:"failOpen,omitempty"`
	// Written once.
	// +optional
	FirstKVEventObservedAt *metav1.Time `json:"firstKVEventObservedAt,omitempty"`
	// Start of the wait for the first event.
	// +optional
	FirstAvailableAt *metav1.Time `json:"firstAvailableAt,omitempty"`
	// +optional
	IndexParticipation *IndexParticipation `json:"indexParticipation,omitempty"`
	// +optional
	Injection *InjectionStatus `json:"injection,omitempty"`
	// +optional
	Connector *ConnectorStatus `json:"connector,omitempty"`
	// +optional
	RemoteStorage *RemoteStorageStatus `json:"remoteStorage,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CacheBackend says which engines of its namespace take part.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=cachebackends,shortName=cb
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Matched",type=integer,JSONPath=`.status.matchedEnginePods`
// +kubebuilder:printcolumn:name="Remote",type=string,JSONPath=`.status.remoteStorage.endpoint`
// +kubebuilder:printcolumn:name="Prefixes",type=integer,JSONPath=`.status.indexParticipation.prefixCount`
// +kubebuilder:printcolumn:name="LastEvent",type=date,JSONPath=`.status.indexParticipation.lastEventAt`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.integration.mode`,priority=1
// +kubebuilder:printcolumn:name="Injected",type=integer,JSONPath=`.status.injection.injectedPods`,priority=1
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
type CacheBackend struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   CacheBackendSpec   `json:"spec"`
	Status CacheBackendStatus `json:"status,omitempty"`
}

// CacheBackendList is a list of CacheBackends.
// +kubebuilder:object:root=true
type CacheBackendList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CacheBackend `json:"items"`
}
