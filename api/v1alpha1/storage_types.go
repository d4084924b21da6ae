// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// LMCacheTopology says where the LMCache servers of the engines run.
// +kubebuilder:validation:Enum=PodLocal;NodeLocal
type LMCacheTopology string

// LMCache topologies.
const (
	// TopologyPodLocal is one server in each engine pod.
	TopologyPodLocal LMCacheTopology = "PodLocal"
	// TopologyNodeLocal is one server for all engines of a node.
	TopologyNodeLocal LMCacheTopology = "NodeLocal"
)

// LMCacheSpec says which LMCache servers hold the engines' blocks.
// +kubebuilder:validation:XValidation:rule="has(self.podLocal) == (self.topology == 'PodLocal')",message="podLocal is set if and only if topology is PodLocal"
// +kubebuilder:validation:XValidation:rule="has(self.nodeLocal) == (self.topology == 'NodeLocal')",message="nodeLocal is set if and only if topology is NodeLocal"
type LMCacheSpec struct {
	// +required
	Topology LMCacheTopology `json:"topology"`
	// Tokens of one chunk. Default 256.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	ChunkSizeTokens *int32 `json:"chunkSizeTokens,omitempty"`
	// +optional
	PodLocal *PodLocalLMCache `json:"podLocal,omitempty"`
	// +optional
	NodeLocal *NodeLocalLMCache `json:"nodeLocal,omitempty"`
}

// PodLocalLMCache is a server in each engine pod.
type PodLocalLMCache struct {
	// +required
	Server PodLocalServer `json:"server"`
}

// PodLocalServer is a container beside the engine.
type PodLocalServer struct {
	// Image of the server, pinned by digest.
	// +kubebuilder:validation:Pattern=`^[^\s@]+@sha256:[a-f0-9]{64}$`
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Image string `json:"image"`
	// Port of the server inside the pod; not 5557 and 8080, which events and
	// health have, and not 9095, which the publisher has.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:validation:XValidation:rule="!(self in [5557, 8080])",message="ports 5557 and 8080 are taken by events and health"
	// +required
	Port int32 `json:"port"`
	// Memory for blocks.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="l1Capacity must be above 0"
	// +required
	L1Capacity resource.Quantity `json:"l1Capacity"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +required
	MaxWorkers int32 `json:"maxWorkers"`
	// A cpu request, and request and limit of memory that are at least
	// l1Capacity and 1Gi.
	// +required
	Resources corev1.ResourceRequirements `json:"resources"`
}

// NodeLocalLMCache is a server for all engines of a node.
type NodeLocalLMCache struct {
	// +required
	Server NodeLocalServer `json:"server"`
	// How long a server without engines stays.
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	// +optional
	IdleRetentionSeconds *int32 `json:"idleRetentionSeconds,omitempty"`
	// How long an engine pod waits for its server before it fails; 0 waits for
	// ever.
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	// +optional
	GateTimeoutSeconds *int32 `json:"gateTimeoutSeconds,omitempty"`
	// Overrides what the servers take over from the engines of their node.
	// +optional
	Scheduling *PodScheduling `json:"scheduling,omitempty"`
}

// NodeLocalServer is a pod on each node with engines.
// +kubebuilder:validation:XValidation:rule="self.port != self.httpPort",message="port and httpPort must differ"
type NodeLocalServer struct {
	// Image of the server, pinned by digest.
	// +kubebuilder:validation:Pattern=`^[^\s@]+@sha256:[a-f0-9]{64}$`
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Image string `json:"image"`
	// Port on the node.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	Port int32 `json:"port"`
	// Port on the node for configuration, health and metrics.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	HTTPPort int32 `json:"httpPort"`
	// Memory for blocks.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="l1Capacity must be above 0"
	// +required
	L1Capacity resource.Quantity `json:"l1Capacity"`
	// Engines that the server can serve at once.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +required
	MaxGPUWorkers int32 `json:"maxGPUWorkers"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +required
	MaxCPUWorkers int32 `json:"maxCPUWorkers"`
	// A cpu request, request and limit of memory that are at least l1Capacity
	// and 1Gi, and no GPU.
	// +required
	Resources corev1.ResourceRequirements `json:"resources"`
}

// PodScheduling says how pods that the controller creates are run.
type PodScheduling struct {
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// +listType=atomic
	// +optional
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// +optional
	SecurityContext *corev1.PodSecurityContext `json:"securityContext,omitempty"`
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// +optional
	SchedulerName string `json:"schedulerName,omitempty"`
	// +optional
	RuntimeClassName *string `json:"runtimeClassName,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
}

// WorkloadScheduling says how and where pods that the controller creates are
// run.
type WorkloadScheduling struct {
	PodScheduling `json:",inline"`
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// +listType=atomic
	// +optional
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
}

// StorageProvider is a kind of storage beyond the engines' nodes.
// +kubebuilder:validation:Enum=Redis
type StorageProvider string

// ProviderRedis is a Redis server.
const ProviderRedis StorageProvider = "Redis"

// StorageOwnership says who runs the storage.
// +kubebuilder:validation:Enum=Managed;External
type StorageOwnership string

// Ownerships of a storage.
const (
	// OwnershipManaged is a storage that the controller runs.
	OwnershipManaged StorageOwnership = "Managed"
	// OwnershipExternal is a storage that exists already.
	OwnershipExternal StorageOwnership = "External"
)

// RemoteStorageSpec is a storage behind the LMCache servers.
// +kubebuilder:validation:XValidation:rule="self.ownership != 'External' || (has(self.endpoint) && size(self.endpoint) > 0)",message="ownership External needs an endpoint"
// +kubebuilder:validation:XValidation:rule="self.ownership != 'Managed' || !has(self.endpoint) || size(self.endpoint) == 0",message="ownership Managed has no endpoint"
// +kubebuilder:validation:XValidation:rule="self.ownership != 'External' || !has(self.workload)",message="ownership External has no workload"
// +kubebuilder:validation:XValidation:rule="self.ownership != 'External' || !has(self.redis) || (!has(self.redis.image) && !has(self.redis.resources))",message="ownership External has no redis.image and no redis.resources"
type RemoteStorageSpec struct {
	// +required
	Provider StorageProvider `json:"provider"`
	// +required
	Ownership StorageOwnership `json:"ownership"`
	// host:port of an external storage.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// How a managed storage is run.
	// +optional
	Workload *WorkloadScheduling `json:"workload,omitempty"`
	// +optional
	Redis *RedisSpec `json:"redis,omitempty"`
}

// RedisSpec describes a Redis server.
type RedisSpec struct {
	// Image of a managed server. Default library/redis:7.4-alpine of the
	// default registry.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Image string `json:"image,omitempty"`
	// Resources of a managed server. Default 4Gi of memory, limited to 8Gi.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	// +optional
	Authentication *RedisAuthentication `json:"authentication,omitempty"`
	// Refused: the LMCache servers cannot speak TLS to Redis.
	// +optional
	TLS *RedisTLS `json:"tls,omitempty"`
	// Refused: the LMCache servers use database 0.
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Database *int32 `json:"database,omitempty"`
}

// RedisAuthentication says where the credentials of a Redis server are, in
// Secrets of the backend's namespace.
type RedisAuthentication struct {
	// User of an external server. Unset: the default user.
	// +optional
	Username *corev1.SecretKeySelector `json:"username,omitempty"`
	// +required
	Password *corev1.SecretKeySelector `json:"password"`
}

// RedisTLS says how a Redis server is trusted.
type RedisTLS struct {
	// +optional
	CASecret *corev1.SecretKeySelector `json:"caSecret,omitempty"`
}

// HiCacheSpec is SGLang's hierarchical cache. What is unset is left to SGLang.
// +kubebuilder:validation:XValidation:rule="has(self.sizeGB) != has(self.ratio)",message="exactly one of sizeGB and ratio is set"
type HiCacheSpec struct {
	// Host memory of each rank in GB.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	SizeGB *int32 `json:"sizeGB,omitempty"`
	// Host memory as a multiple of the accelerator's pool: a decimal above 0.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Ratio *string `json:"ratio,omitempty"`
	// +kubebuilder:validation:Enum=write_back;write_through;write_through_selective
	// +optional
	WritePolicy string `json:"writePolicy,omitempty"`
	// +kubebuilder:validation:Enum=direct;kernel;kernel_ascend
	// +optional
	IOBackend string `json:"ioBackend,omitempty"`
	// +kubebuilder:validation:Enum=layer_first;page_first;page_first_direct;page_first_kv_split;page_head
	// +optional
	MemoryLayout string `json:"memoryLayout,omitempty"`
}

// ConnectorMultiprocess is the only mode of a connector: engines reach a
// server that is a process of its own.
const ConnectorMultiprocess = "Multiprocess"

// ConnectorStatus shows whether the engines reach their servers.
type ConnectorStatus struct {
	// +optional
	Mode string `json:"mode,omitempty"`
	// +optional
	Topology          LMCacheTopology `json:"topology,omitempty"`
	MatchedEnginePods int32           `json:"matchedEnginePods"`
	ReadyEnginePods   int32           `json:"readyEnginePods"`
	DesiredServers    int32           `json:"desiredServers"`
	ReadyServers      int32           `json:"readyServers"`
	// Engine pods that have a ready server, and the others.
	CoveredEnginePods   int32 `json:"coveredEnginePods"`
	UncoveredEnginePods int32 `json:"uncoveredEnginePods"`
	// +listType=map
	// +listMapKey=name
	// +optional
	EnginePodCoverage []EnginePodCoverage `json:"enginePodCoverage,omitempty"`
}

// EnginePodCoverage says whether one engine pod has a server.
type EnginePodCoverage struct {
	Name string `json:"name"`
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	Ready    bool   `json:"ready"`
	Covered  bool   `json:"covered"`
	// +optional
	Reason string `json:"reason,omitempty"`
}

// RemoteStorageStatus is the storage that the engines are wired to.
type RemoteStorageStatus struct {
	// +optional
	Provider StorageProvider `json:"provider,omitempty"`
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	Ready    bool   `json:"ready"`
}
