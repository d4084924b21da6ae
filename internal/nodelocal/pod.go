// SPDX-License-Identifier: Apache-2.0

package nodelocal

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// renderVersion changes with what is rendered, so that servers of an older
// version are replaced.
const renderVersion = 1

// Order is a server to be created.
type Order struct {
	Backend *v1alpha1.CacheBackend
	Node    string
	// Hash is the ConfigHash of backend and storage.
	Hash    string
	Storage *Storage // nil for none
	// Engine is the pod of an engine on the node: its tolerations and the like
	// are taken over. nil takes over nothing.
	Engine *corev1.PodSpec
	// Failures is how many servers ended here before.
	Failures int
}

// Pod renders the server of a node.
func Pod(o Order) *corev1.Pod {
	b := o.Backend
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.Namespace, Name: ServerName(b.Name, o.Node),
			Labels: map[string]string{
				v1alpha1.LabelLMCacheNodeServer: "true", v1alpha1.LabelLMCacheMetrics: "true",
				v1alpha1.LabelCacheBackendUID:  string(b.UID),
				"app.kubernetes.io/name":       "cachebackend",
				"app.kubernetes.io/component":  "lmcache-node-server",
				"app.kubernetes.io/managed-by": "inference-cache-controller",
			},
			Annotations: map[string]string{
				v1alpha1.AnnotationNodeLocalOwner: Owner(b), v1alpha1.AnnotationNodeLocalOwnerUID: string(b.UID),
				v1alpha1.AnnotationNodeLocalGeneration: strconv.FormatInt(b.Generation, 10),
				v1alpha1.AnnotationNodeLocalTargetNode: o.Node, v1alpha1.AnnotationNodeLocalShmName: ShmName(b),
				v1alpha1.AnnotationNodeLocalConfigHash: o.Hash,
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(b, v1alpha1.GroupVersion.WithKind("CacheBackend"))},
		},
		Spec: corev1.PodSpec{
			HostNetwork: true, DNSPolicy: corev1.DNSClusterFirstWithHostNet, RestartPolicy: corev1.RestartPolicyAlways,
			AutomountServiceAccountToken: ptr(false), EnableServiceLinks: ptr(false), TerminationGracePeriodSeconds: ptr(int64(30)),
			Affinity: onNode(o.Node), Containers: []corev1.Container{serverContainer(o)}, Volumes: []corev1.Volume{HostVolume(b)},
		},
	}
	if o.Failures > 0 {
		pod.Annotations[v1alpha1.AnnotationNodeLocalFailures] = strconv.Itoa(o.Failures)
	}
	inherit(&pod.Spec, o.Engine)
	schedule(&pod.Spec, b.Spec.LMCache.NodeLocal.Scheduling)
	return pod
}

// onNode leaves a pod to the scheduler, which checks host ports, but with one
// choice.
func onNode(node string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node},
		}}}},
	}}}
}

// HostVolume is the folder that server and engines share.
func HostVolume(b *v1alpha1.CacheBackend) corev1.Volume {
	return corev1.Volume{Name: ShmVolume, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
		Path: HostPath(b), Type: ptr(corev1.HostPathDirectoryOrCreate),
	}}}
}

// IsHostVolume recognises a HostVolume, whatever its backend.
func IsHostVolume(v corev1.Volume) bool {
	return v.Name == ShmVolume && v.HostPath != nil && strings.HasPrefix(v.HostPath.Path, hostFolder)
}

// NodeIP is the variable with the address of the pod's node.
func NodeIP() corev1.EnvVar {
	return corev1.EnvVar{Name: NodeIPVariable, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
		APIVersion: "v1", FieldPath: "status.hostIP",
	}}}
}

func serverContainer(o Order) corev1.Container {
	server := o.Backend.Spec.LMCache.NodeLocal.Server
	check := func(period, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthcheck", Port: intstr.FromInt32(server.HTTPPort)}},
			PeriodSeconds: period, FailureThreshold: failures, TimeoutSeconds: 2,
		}
	}
	return corev1.Container{
		Name: ServerContainer, Image: server.Image, Command: []string{"lmcache", "server"}, Args: serverArgs(o),
		Env: append([]corev1.EnvVar{NodeIP(), {Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}, {Name: "INFERENCECACHE_MP_SERVER", Value: "true"}}, o.Storage.Env()...),
		Ports: []corev1.ContainerPort{
			{Name: "lmcache-mp", ContainerPort: server.Port, HostPort: server.Port, Protocol: corev1.ProtocolTCP},
			{Name: "lmcache-http", ContainerPort: server.HTTPPort, HostPort: server.HTTPPort, Protocol: corev1.ProtocolTCP},
		},
		Resources:    *server.Resources.DeepCopy(),
		StartupProbe: check(3, 40), ReadinessProbe: check(5, 3), LivenessProbe: check(10, 3),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: ShmVolume, MountPath: ShmMount}},
	}
}

func serverArgs(o Order) []string {
	server := o.Backend.Spec.LMCache.NodeLocal.Server
	number := func(n int32) string { return strconv.Itoa(int(n)) }
	const address = "$(" + NodeIPVariable + ")"
	args := []string{
		"--instance-id", InstanceID(o.Backend, o.Hash), "--shm-name", ShmName(o.Backend),
		"--host", address, "--port", number(server.Port), "--http-host", address, "--http-port", number(server.HTTPPort),
		"--chunk-size", number(ChunkTokens(o.Backend.Spec.LMCache)), "--l1-size-gb", Gibibytes(server.L1Capacity), "--eviction-policy", "LRU",
		"--max-gpu-workers", number(server.MaxGPUWorkers), "--max-cpu-workers", number(server.MaxCPUWorkers),
	}
	return append(args, o.Storage.Args()...)
}

// inherit takes over from an engine what lets a pod run where it runs.
func inherit(spec, engine *corev1.PodSpec) {
	if engine == nil {
		return
	}
	for _, toleration := range engine.Tolerations {
		spec.Tolerations = append(spec.Tolerations, *toleration.DeepCopy())
	}
	spec.ImagePullSecrets = slices.Clone(engine.ImagePullSecrets)
	spec.PriorityClassName, spec.SchedulerName = engine.PriorityClassName, engine.SchedulerName
	if engine.RuntimeClassName != nil {
		spec.RuntimeClassName = ptr(*engine.RuntimeClassName)
	}
}

// schedule applies what the backend says about its servers.
func schedule(spec *corev1.PodSpec, s *v1alpha1.PodScheduling) {
	if s == nil {
		return
	}
	for _, toleration := range s.Tolerations {
		if !slices.ContainsFunc(spec.Tolerations, func(t corev1.Toleration) bool { return t.MatchToleration(&toleration) }) {
			spec.Tolerations = append(spec.Tolerations, *toleration.DeepCopy())
		}
	}
	for _, secret := range s.ImagePullSecrets {
		if !slices.Contains(spec.ImagePullSecrets, secret) {
			spec.ImagePullSecrets = append(spec.ImagePullSecrets, secret)
		}
	}
	override(&spec.ServiceAccountName, s.ServiceAccountName)
	override(&spec.PriorityClassName, s.PriorityClassName)
	override(&spec.SchedulerName, s.SchedulerName)
	if s.SecurityContext != nil {
		spec.SecurityContext = s.SecurityContext.DeepCopy()
	}
	if s.RuntimeClassName != nil {
		spec.RuntimeClassName = ptr(*s.RuntimeClassName)
	}
	if s.TerminationGracePeriodSeconds != nil {
		spec.TerminationGracePeriodSeconds = ptr(*s.TerminationGracePeriodSeconds)
	}
}

func override(field *string, value string) {
	if value != "" {
		*field = value
	}
}

func ptr[T any](v T) *T { return &v }
