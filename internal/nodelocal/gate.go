// SPDX-License-Identifier: Apache-2.0

package nodelocal

import (
	_ "embed"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

//go:embed gate.py
var gateScript string

// gateVariable tells the gate what to wait for.
const gateVariable = "INFERENCECACHE_GATE"

// GateOptions say how an engine waits.
type GateOptions struct {
	// Hash is the ConfigHash of the server that the engine needs.
	Hash string
	// ClientFile has the gate write a client configuration to ConfigFile.
	ClientFile bool
	// Guaranteed keeps the quality of service of a Guaranteed pod.
	Guaranteed bool
}

// gateWish is what the gate's script reads. The sections are those of the
// server's /config.
type gateWish struct {
	MP struct {
		InstanceID string `json:"instance_id"`
		ShmName    string `json:"shm_name"`
		Port       int32  `json:"port"`
		ChunkSize  int32  `json:"chunk_size"`
		GPUWorkers int32  `json:"max_gpu_workers"`
		CPUWorkers int32  `json:"max_cpu_workers"`
	} `json:"mp"`
	HTTP struct {
		Port int32 `json:"http_port"`
	} `json:"http"`
	Seconds int32  `json:"seconds"`
	Client  string `json:"client"`
}

// GateSeconds is how long an engine waits for its server; 0 is for ever.
func GateSeconds(n *v1alpha1.NodeLocalLMCache) int32 {
	if n.GateTimeoutSeconds != nil {
		return *n.GateTimeoutSeconds
	}
	return DefaultGateSeconds
}

// Gate is the init container that ends well once the server of the pod's node
// is the one that the engine needs, and badly after the backend's time limit.
func Gate(b *v1alpha1.CacheBackend, o GateOptions) (corev1.Container, error) {
	server := b.Spec.LMCache.NodeLocal.Server
	wish := gateWish{Seconds: GateSeconds(b.Spec.LMCache.NodeLocal)}
	wish.MP.InstanceID, wish.MP.ShmName = InstanceID(b, o.Hash), ShmName(b)
	wish.MP.Port, wish.HTTP.Port, wish.MP.ChunkSize = server.Port, server.HTTPPort, ChunkTokens(b.Spec.LMCache)
	wish.MP.GPUWorkers, wish.MP.CPUWorkers = server.MaxGPUWorkers, server.MaxCPUWorkers
	var mounts []corev1.VolumeMount
	if o.ClientFile {
		wish.Client = ConfigFile
		mounts = []corev1.VolumeMount{{Name: ConfigVolume, MountPath: ConfigDir}}
	}
	text, err := json.Marshal(wish)
	if err != nil {
		return corev1.Container{}, err
	}
	return corev1.Container{
		Name: GateContainer, Image: server.Image, Command: []string{"python3", "-c", gateScript},
		Env:       []corev1.EnvVar{NodeIP(), {Name: gateVariable, Value: string(text)}},
		Resources: gateResources(o.Guaranteed),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr(false), ReadOnlyRootFilesystem: ptr(true),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		VolumeMounts: mounts,
	}, nil
}

// IsGate recognises a Gate, whatever it waits for.
func IsGate(c corev1.Container) bool {
	return c.Name == GateContainer && slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == gateVariable })
}

func gateResources(guaranteed bool) corev1.ResourceRequirements {
	list := func(cpu, memory string) corev1.ResourceList {
		l := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		if cpu != "" {
			l[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		return l
	}
	if guaranteed {
		return corev1.ResourceRequirements{Requests: list("100m", "128Mi"), Limits: list("100m", "128Mi")}
	}
	return corev1.ResourceRequirements{Requests: list("10m", "32Mi"), Limits: list("", "128Mi")}
}
