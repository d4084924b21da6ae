// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"fmt"
	"path"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/commandline"
	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

// Names of what an LMCache server adds to an engine pod.
const (
	ServerContainer = "lmcache-mp-server"
	// ClientConfigContainer writes ClientFile where the server starts beside
	// the engine instead of before it.
	ClientConfigContainer = "lmcache-mp-client-config"
	ShmVolume             = "lmcache-mp-shm"
	ClientVolume          = "lmcache-mp-config"
	ClientDir             = "/var/run/inference-cache/lmcache"
	ClientFile            = ClientDir + "/client.yaml"

	serverPortName = "lmcache-mp"
	httpPortName   = "lmcache-http"
	serverVariable = "INFERENCECACHE_MP_SERVER"
	loopback       = "127.0.0.1"
	shmPath        = "/dev/shm"
	// firstHTTPPort is the server's HTTP port where the engine leaves it free.
	firstHTTPPort = 8080
)

// PublisherPort is where the publisher beside an engine serves its health and
// metrics.
const PublisherPort = 9095

// serverOverhead is what a server needs beside its blocks.
var serverOverhead = resource.MustParse("1Gi")

// ServerMemory is what a server with so much memory for blocks needs.
func ServerMemory(l1 resource.Quantity) resource.Quantity {
	sum := l1.DeepCopy()
	sum.Add(serverOverhead)
	return sum
}

// isServer recognises a server that an injection added.
func isServer(c corev1.Container) bool {
	return c.Name == ServerContainer && slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool {
		return v.Name == serverVariable && v.Value == "true"
	})
}

// removeServer takes an injected server out of a pod, with all that came along.
func removeServer(pod *corev1.Pod) {
	spec := &pod.Spec
	if !slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), isServer) {
		return
	}
	spec.InitContainers = slices.DeleteFunc(spec.InitContainers, func(c corev1.Container) bool {
		return isServer(c) || c.Name == ClientConfigContainer
	})
	spec.Containers = slices.DeleteFunc(spec.Containers, isServer)
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == ShmVolume || v.Name == ClientVolume })
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			containers[i].VolumeMounts = slices.DeleteFunc(containers[i].VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.Name == ShmVolume || m.Name == ClientVolume
			})
		}
	}
	delete(pod.Labels, v1alpha1.LabelLMCacheMetrics)
}

// checkServer wants the names, ports and shared memory of a PodLocal server to
// be free.
func (l lmcache) checkServer(pod *corev1.Pod, w Wiring, line commandline.Line) error {
	if w.Backend.Spec.LMCache.Topology != v1alpha1.TopologyPodLocal {
		return nil
	}
	server := w.Backend.Spec.LMCache.PodLocal.Server
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == ServerContainer || c.Name == ClientConfigContainer {
			return unfit(ReasonReservedNameConflict, "the pod has a container named %s", c.Name)
		}
		for _, p := range c.Ports {
			switch {
			case p.Name == serverPortName || p.Name == httpPortName:
				return unfit(ReasonReservedNameConflict, "container %q has a port named %s", c.Name, p.Name)
			case p.ContainerPort == server.Port:
				return unfit(ReasonReservedNameConflict, "container %q has port %d, which is spec.lmCache.podLocal.server.port", c.Name, p.ContainerPort)
			}
		}
	}
	for _, v := range pod.Spec.Volumes {
		if v.Name == ShmVolume || v.Name == ClientVolume {
			return unfit(ReasonReservedNameConflict, "the pod has a volume named %s", v.Name)
		}
	}
	if l.listensOn(line) == server.Port {
		return unfit(ReasonEngineArgsConflict, "the engine listens on port %d, which is spec.lmCache.podLocal.server.port", server.Port)
	}
	engine := engineOf(pod, w.Container)
	for _, m := range engine.VolumeMounts {
		if path.Clean(m.MountPath) == ClientDir {
			return unfit(ReasonReservedNameConflict, "container %q mounts volume %s at %s", engine.Name, m.Name, ClientDir)
		}
	}
	_, err := ownShm(pod, engine, server)
	return err
}

// ownShm returns the engine's own mount of shared memory, nil for none.
func ownShm(pod *corev1.Pod, engine *corev1.Container, server v1alpha1.PodLocalServer) (*corev1.VolumeMount, error) {
	i := slices.IndexFunc(engine.VolumeMounts, func(m corev1.VolumeMount) bool { return path.Clean(m.MountPath) == shmPath })
	if i < 0 {
		return nil, nil
	}
	mount := engine.VolumeMounts[i].DeepCopy()
	conflict := func(what string) error {
		return unfit(ReasonShmConflict, "container %q mounts volume %s at %s, which %s", engine.Name, mount.Name, shmPath, what)
	}
	v := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
	switch {
	case v < 0 || pod.Spec.Volumes[v].EmptyDir == nil || pod.Spec.Volumes[v].EmptyDir.Medium != corev1.StorageMediumMemory:
		return nil, conflict("is no emptyDir in memory")
	case mount.ReadOnly:
		return nil, conflict("is read-only")
	case mount.SubPathExpr != "":
		return nil, conflict("has a subPathExpr")
	}
	limit, needed := pod.Spec.Volumes[v].EmptyDir.SizeLimit, ServerMemory(server.L1Capacity)
	if limit != nil && limit.Sign() > 0 && limit.Cmp(needed) < 0 {
		return nil, conflict(fmt.Sprintf("holds %s of the %s needed", limit, &needed))
	}
	return mount, nil
}

// listensOn is where the engine serves HTTP.
func (l lmcache) listensOn(line commandline.Line) int32 {
	if port, ok := line.Number(65535, "--port"); ok {
		return port
	}
	return l.engine.HTTPPort
}

// httpPort is the server's HTTP port: the first from 8080 on that nothing else
// in the pod is known to have.
func (l lmcache) httpPort(pod *corev1.Pod, w Wiring, line commandline.Line) int32 {
	used := []int32{l.listensOn(line), w.Backend.Spec.LMCache.PodLocal.Server.Port, PublisherPort}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, p := range c.Ports {
			used = append(used, p.ContainerPort)
		}
	}
	for port := int32(firstHTTPPort); ; port++ {
		if !IsEventPort(w.Backend, port) && !slices.Contains(used, port) {
			return port
		}
	}
}

// addServer gives the engine its LMCache server: in the pod, or that of the
// node. With client the engine reads where it is from a file.
func (l lmcache) addServer(pod *corev1.Pod, w Wiring, line commandline.Line, client bool) error {
	if w.Backend.Spec.LMCache.Topology == v1alpha1.TopologyNodeLocal {
		return wireNodeLocal(pod, w, client)
	}
	engine := engineOf(pod, w.Container)
	shm, err := ownShm(pod, engine, w.Backend.Spec.LMCache.PodLocal.Server)
	if err != nil {
		return err
	}
	if shm == nil {
		size := ServerMemory(w.Backend.Spec.LMCache.PodLocal.Server.L1Capacity)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: ShmVolume, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &size},
		}})
		shm = &corev1.VolumeMount{Name: ShmVolume, MountPath: shmPath}
		engine.VolumeMounts = append(engine.VolumeMounts, *shm)
	}
	server, err := l.server(pod, w, line)
	if err != nil {
		return err
	}
	server.Resources = serverResources(&pod.Spec, server.Resources)
	server.VolumeMounts = []corev1.VolumeMount{*shm}
	if client {
		addClientFile(pod, engine, &server, w)
	}
	if w.OrdinaryContainers {
		pod.Spec.Containers = append(pod.Spec.Containers, server)
	} else {
		server.RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, server)
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[v1alpha1.LabelLMCacheMetrics] = "true"
	return nil
}

// server is the container of a PodLocal server.
func (l lmcache) server(pod *corev1.Pod, w Wiring, line commandline.Line) (corev1.Container, error) {
	spec := w.Backend.Spec.LMCache.PodLocal.Server
	http := l.httpPort(pod, w, line)
	storage, err := NodeStorage(w.Binding)
	if err != nil {
		return corev1.Container{}, err
	}
	c := corev1.Container{
		Name: ServerContainer, Image: spec.Image, Command: []string{"lmcache", "server"}, Args: serverArgs(w, http, storage),
		Ports: []corev1.ContainerPort{
			{Name: serverPortName, ContainerPort: spec.Port, Protocol: corev1.ProtocolTCP},
			{Name: httpPortName, ContainerPort: http, Protocol: corev1.ProtocolTCP},
		},
		Env:           []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}, {Name: serverVariable, Value: "true"}},
		Resources:     *spec.Resources.DeepCopy(),
		StartupProbe:  healthcheck(3, 40),
		LivenessProbe: healthcheck(10, 3),
	}
	if !FailsOpen(w.Backend) {
		c.ReadinessProbe = healthcheck(5, 3)
	}
	c.Env = append(c.Env, storage.Env()...)
	c.SecurityContext = serverSecurity(engineOf(pod, w.Container).SecurityContext)
	return c, nil
}

func serverArgs(w Wiring, http int32, storage *nodelocal.Storage) []string {
	spec := w.Backend.Spec.LMCache.PodLocal.Server
	args := []string{
		"--host", loopback, "--port", strconv.Itoa(int(spec.Port)),
		"--http-host", "0.0.0.0", "--http-port", strconv.Itoa(int(http)),
		"--chunk-size", strconv.Itoa(int(nodelocal.ChunkTokens(w.Backend.Spec.LMCache))),
		"--l1-size-gb", nodelocal.Gibibytes(spec.L1Capacity), "--eviction-policy", "LRU", "--max-workers", strconv.Itoa(int(spec.MaxWorkers)),
	}
	return append(args, storage.Args()...)
}

func healthcheck(period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthcheck", Port: intstr.FromString(httpPortName)}},
		PeriodSeconds: period, FailureThreshold: failures, TimeoutSeconds: 2,
	}
}

// serverSecurity runs the server as the engine's user, with whom it shares
// memory.
func serverSecurity(engine *corev1.SecurityContext) *corev1.SecurityContext {
	s := &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if engine != nil {
		s.RunAsUser, s.RunAsGroup, s.RunAsNonRoot = engine.RunAsUser, engine.RunAsGroup, engine.RunAsNonRoot
	}
	return s.DeepCopy()
}

// serverResources keeps the quality of service of the pod: a Guaranteed one
// stays so. A pod with resources of its own as a whole bounds the server by
// them.
func serverResources(spec *corev1.PodSpec, r corev1.ResourceRequirements) corev1.ResourceRequirements {
	if spec.Resources != nil {
		return corev1.ResourceRequirements{}
	}
	if !Guaranteed(spec) {
		return r
	}
	limits := corev1.ResourceList{}
	for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
		for name, quantity := range list {
			limits[name] = quantity // a limit, coming last, wins over the request
		}
	}
	return corev1.ResourceRequirements{Requests: limits, Limits: limits.DeepCopy()}
}

// addClientFile has the server, before it starts, write where it is to a file
// that the engine reads. A server that starts beside the engine may be late,
// so an init container writes it then.
func addClientFile(pod *corev1.Pod, engine, server *corev1.Container, w Wiring) {
	spec := w.Backend.Spec.LMCache
	write := fmt.Sprintf(`printf 'chunk_size: %d\nmp_host: "%s"\nmp_port: %d\n' > %s`, nodelocal.ChunkTokens(spec), loopback, spec.PodLocal.Server.Port, ClientFile)
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: ClientVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	engine.VolumeMounts = append(engine.VolumeMounts, corev1.VolumeMount{Name: ClientVolume, MountPath: ClientDir, ReadOnly: true})
	mount := corev1.VolumeMount{Name: ClientVolume, MountPath: ClientDir}
	if w.OrdinaryContainers {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{
			Name: ClientConfigContainer, Image: server.Image, Command: []string{"/bin/sh", "-c", write},
			Resources: server.Resources, SecurityContext: server.SecurityContext.DeepCopy(), VolumeMounts: []corev1.VolumeMount{mount},
		})
		return
	}
	server.Args = append([]string{write + ` && exec lmcache server "$@"`, ServerContainer}, server.Args...)
	server.Command = []string{"/bin/sh", "-c"}
	server.VolumeMounts = append(server.VolumeMounts, mount)
}
