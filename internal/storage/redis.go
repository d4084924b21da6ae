// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
)

const (
	// DefaultRedisImage is fully qualified: not every runtime completes names.
	DefaultRedisImage = "docker.io/library/redis:7.4-alpine"
	// RedisContainer and RedisPort are those of a managed server.
	RedisContainer       = "redis-l2"
	RedisPort      int32 = 6379

	redisPortName = "redis"
	// redisUser is the user of the default image, and any other may be set.
	redisUser int64 = 999
	// defaultMaxMemory is what Redis keeps when its memory has no limit.
	defaultMaxMemory int64 = 8 << 30
)

// redis is a Redis server that forgets what it holds when it restarts.
type redis struct{}

var _ Provider = redis{}

func (redis) Supports(storage *v1alpha1.RemoteStorageSpec) bool {
	return storage.Provider == v1alpha1.ProviderRedis
}

func (redis) Protocol() string { return adapter.ProtocolRESP }

func (redis) Render(backend *v1alpha1.CacheBackend) (Rendered, error) {
	spec := backend.Spec.RemoteStorage.Redis
	if spec == nil {
		spec = &v1alpha1.RedisSpec{}
	}
	return Rendered{
		Component: RedisContainer,
		Pod:       podSpec(redisServer(spec), backend.Spec.RemoteStorage.Workload, redisUser),
		Service: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP,
			Ports: []corev1.ServicePort{{
				Name: redisPortName, Port: RedisPort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString(redisPortName),
			}},
		},
	}, nil
}

func redisServer(spec *v1alpha1.RedisSpec) corev1.Container {
	c := corev1.Container{
		Name: RedisContainer, Image: spec.Image, Resources: redisResources(spec.Resources),
		Command: []string{"redis-server"},
		Ports:   []corev1.ContainerPort{{Name: redisPortName, ContainerPort: RedisPort, Protocol: corev1.ProtocolTCP}},
	}
	if c.Image == "" {
		c.Image = DefaultRedisImage
	}
	c.Args = []string{
		"--save", "", "--appendonly", "no", "--protected-mode", "no",
		"--maxmemory", strconv.FormatInt(maxMemory(c.Resources), 10), "--maxmemory-policy", "allkeys-lru",
	}
	open := corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString(redisPortName)}}
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: open, InitialDelaySeconds: 3, PeriodSeconds: 10, FailureThreshold: 6}
	c.LivenessProbe = &corev1.Probe{ProbeHandler: open, InitialDelaySeconds: 15, PeriodSeconds: 20, TimeoutSeconds: 5, FailureThreshold: 6}
	if auth := spec.Authentication; auth != nil && auth.Password != nil {
		for _, name := range []string{"REDIS_PASSWORD", "REDISCLI_AUTH"} {
			c.Env = append(c.Env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: auth.Password.DeepCopy()}})
		}
		c.Args = append(c.Args, "--requirepass", "$(REDIS_PASSWORD)")
		c.ReadinessProbe.ProbeHandler = corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"redis-cli", "ping"}}}
		c.ReadinessProbe.TimeoutSeconds = 5
	}
	return c
}

func redisResources(given *corev1.ResourceRequirements) corev1.ResourceRequirements {
	if given != nil {
		return *given.DeepCopy()
	}
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("8Gi")},
	}
}

// maxMemory leaves a fifth of the limit to buffers and fragmentation.
func maxMemory(resources corev1.ResourceRequirements) int64 {
	limit, ok := resources.Limits[corev1.ResourceMemory]
	if !ok || limit.Value() <= 0 {
		return defaultMaxMemory
	}
	return limit.Value() - limit.Value()/5
}
