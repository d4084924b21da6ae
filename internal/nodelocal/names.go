// SPDX-License-Identifier: Apache-2.0

package nodelocal

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// Names of what is added to pods.
const (
	// ServerContainer is the container of a server's pod.
	ServerContainer = "lmcache-mp-server"
	// GateContainer is the init container that has an engine wait.
	GateContainer = "lmcache-node-local-gate"
	// ShmVolume is the node's folder that server and engines share.
	ShmVolume = "lmcache-node-local-shm"
	// ConfigVolume holds the file that the gate writes for SGLang.
	ConfigVolume = "lmcache-node-local-config"
	// ConfigDir is where ConfigVolume is mounted, ConfigFile the file in it.
	ConfigDir  = "/var/run/inference-cache/lmcache-node"
	ConfigFile = ConfigDir + "/client.yaml"
	// NodeIPVariable is the variable with the address of the node.
	NodeIPVariable = "INFERENCECACHE_NODE_IP"
	// ShmMount is where ShmVolume is mounted.
	ShmMount = "/dev/shm"
)

const (
	// hostFolder holds a folder for each backend on a node.
	hostFolder = "/dev/shm/inference-cache/"
	// maxPodName is how long the name of a pod may be.
	maxPodName = 253
	// nodeDigits is how many hexadecimal digits stand for a node.
	nodeDigits = 12
	// DefaultChunkTokens is the size of a chunk unless a backend says
	// otherwise.
	DefaultChunkTokens = 256
	// DefaultGateSeconds is how long a gate waits unless a backend says
	// otherwise.
	DefaultGateSeconds = 600
	// DefaultIdleSeconds is how long a server without engines stays unless a
	// backend says otherwise.
	DefaultIdleSeconds = 300
)

// Applies says whether a backend asks for servers on the nodes.
func Applies(b *v1alpha1.CacheBackend) bool {
	return b.Spec.LMCache != nil && b.Spec.LMCache.Topology == v1alpha1.TopologyNodeLocal && b.Spec.LMCache.NodeLocal != nil
}

// ServerName is the name of a backend's server on a node: the backend's name
// and 12 hexadecimal digits. A name too long for both is cut, and the digits
// stand for all of it.
func ServerName(backend, node string) string {
	if len(backend)+1+nodeDigits <= maxPodName {
		return backend + "-" + digits(node)
	}
	short := strings.TrimRight(backend[:maxPodName-1-nodeDigits], ".-")
	return short + "-" + digits(backend+"/"+node)
}

func digits(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:nodeDigits]
}

// ShmName is the shared memory of the servers of a backend.
func ShmName(b *v1alpha1.CacheBackend) string {
	return "lmcache_l1_pool_inferencecache_" + string(b.UID)
}

// HostPath is the folder of a node that server and engines of a backend share.
func HostPath(b *v1alpha1.CacheBackend) string { return hostFolder + string(b.UID) }

// Owner is <namespace>/<name> of a backend.
func Owner(b *v1alpha1.CacheBackend) string { return b.Namespace + "/" + b.Name }

// InstanceID is what a server of a configuration calls itself.
func InstanceID(b *v1alpha1.CacheBackend, hash string) string {
	return Owner(b) + "@" + string(b.UID) + "#" + hash
}

// ConfigHash names everything that the servers of a backend rest on: 16
// hexadecimal digits. Engines of one hash cannot use a server of another. How
// pods are scheduled and how long they stay is not in it.
func ConfigHash(b *v1alpha1.CacheBackend, storage *Storage) (string, error) {
	server := b.Spec.LMCache.NodeLocal.Server
	text, err := json.Marshal(struct {
		Version   int                         `json:"version"`
		Image     string                      `json:"image"`
		Port      int32                       `json:"port"`
		HTTPPort  int32                       `json:"httpPort"`
		L1        string                      `json:"l1"`
		GPU       int32                       `json:"gpuWorkers"`
		CPU       int32                       `json:"cpuWorkers"`
		Chunk     int32                       `json:"chunkTokens"`
		Resources corev1.ResourceRequirements `json:"resources"`
		Storage   *Storage                    `json:"storage"`
	}{
		renderVersion, server.Image, server.Port, server.HTTPPort, Gibibytes(server.L1Capacity), server.MaxGPUWorkers, server.MaxCPUWorkers,
		ChunkTokens(b.Spec.LMCache), server.Resources, storage,
	})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), nil
}

// ChunkTokens is the tokens of one chunk of an LMCache server, wherever it
// runs.
func ChunkTokens(l *v1alpha1.LMCacheSpec) int32 {
	if l != nil && l.ChunkSizeTokens != nil {
		return *l.ChunkSizeTokens
	}
	return DefaultChunkTokens
}
