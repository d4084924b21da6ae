// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

// NodeStorage is what the LMCache servers on the nodes offload to; nil for
// nil.
func NodeStorage(binding *Binding) (*nodelocal.Storage, error) {
	if binding == nil {
		return nil, nil
	}
	host, text, err := net.SplitHostPort(binding.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("endpoint of the storage: %w", err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("endpoint of the storage: port %q: %w", text, err)
	}
	return &nodelocal.Storage{Protocol: binding.Protocol, Host: host, Port: int32(port), Username: binding.Username, Password: binding.Password}, nil
}

// wireNodeLocal has the engine share memory with the LMCache server of its
// node, and wait for that server before it starts. With clientFile the wait
// leaves nodelocal.ConfigFile for the engine.
func wireNodeLocal(pod *corev1.Pod, w Wiring, clientFile bool) error {
	storage, err := NodeStorage(w.Binding)
	if err != nil {
		return err
	}
	hash, err := nodelocal.ConfigHash(w.Backend, storage)
	if err != nil {
		return err
	}
	spec := &pod.Spec
	engine := &spec.Containers[slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == w.Container })]
	if err := nodeLocalConflict(spec, engine); err != nil {
		return err
	}
	gate, err := nodelocal.Gate(w.Backend, nodelocal.GateOptions{Hash: hash, ClientFile: clientFile, Guaranteed: Guaranteed(spec)})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(engine.Env, func(v corev1.EnvVar) bool { return v.Name == nodelocal.NodeIPVariable }) {
		// Ahead of the user's, which may refer to it.
		engine.Env = slices.Insert(engine.Env, 0, nodelocal.NodeIP())
	}
	engine.VolumeMounts = append(engine.VolumeMounts, corev1.VolumeMount{Name: nodelocal.ShmVolume, MountPath: nodelocal.ShmMount})
	spec.Volumes = append(spec.Volumes, nodelocal.HostVolume(w.Backend))
	if clientFile {
		engine.VolumeMounts = append(engine.VolumeMounts, corev1.VolumeMount{Name: nodelocal.ConfigVolume, MountPath: nodelocal.ConfigDir, ReadOnly: true})
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: nodelocal.ConfigVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	spec.InitContainers = append(spec.InitContainers, gate)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[v1alpha1.AnnotationInjectedServerHash] = hash
	return nil
}

// nodeLocalConflict says what of the user's is where ours would be.
func nodeLocalConflict(spec *corev1.PodSpec, engine *corev1.Container) error {
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if c.Name == nodelocal.GateContainer {
			return unfit(ReasonReservedNameConflict, "the pod has a container named %s", c.Name)
		}
	}
	for _, v := range spec.Volumes {
		if v.Name == nodelocal.ShmVolume || v.Name == nodelocal.ConfigVolume {
			return unfit(ReasonReservedNameConflict, "the pod has a volume named %s", v.Name)
		}
	}
	for _, m := range engine.VolumeMounts {
		switch p := path.Clean(m.MountPath); {
		case p == nodelocal.ShmMount || strings.HasPrefix(p, nodelocal.ShmMount+"/"):
			return unfit(ReasonShmConflict, "container %q mounts volume %s at %s, where the memory of the node's LMCache server goes", engine.Name, m.Name, p)
		case p == nodelocal.ConfigDir:
			return unfit(ReasonReservedNameConflict, "container %q mounts volume %s at %s", engine.Name, m.Name, p)
		}
	}
	for _, v := range engine.Env {
		if v.Name == nodelocal.NodeIPVariable && !equality.Semantic.DeepEqual(v, nodelocal.NodeIP()) {
			return unfit(ReasonReservedNameConflict, "container %q sets %s itself", engine.Name, v.Name)
		}
	}
	return nil
}

// unwireNodeLocal takes out what wireNodeLocal added to a pod earlier.
func unwireNodeLocal(pod *corev1.Pod) {
	spec := &pod.Spec
	gated := slices.ContainsFunc(spec.InitContainers, nodelocal.IsGate)
	spec.InitContainers = slices.DeleteFunc(spec.InitContainers, nodelocal.IsGate)
	ours := map[string]bool{}
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool {
		mine := nodelocal.IsHostVolume(v) || gated && v.Name == nodelocal.ConfigVolume && v.EmptyDir != nil
		ours[v.Name] = ours[v.Name] || mine
		return mine
	})
	for i := range spec.Containers {
		c := &spec.Containers[i]
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return ours[m.Name] })
	}
	delete(pod.Annotations, v1alpha1.AnnotationInjectedServerHash)
}

// Guaranteed says whether every container of a pod asks for exactly what it
// may use.
func Guaranteed(spec *corev1.PodSpec) bool {
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			limit, limited := c.Resources.Limits[name]
			request, requested := c.Resources.Requests[name]
			if !limited || limit.IsZero() || requested && request.Cmp(limit) != 0 {
				return false
			}
		}
	}
	return true
}
