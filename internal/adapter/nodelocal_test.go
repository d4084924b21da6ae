// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

func nodeWiring() Wiring {
	b := &v1alpha1.CacheBackend{}
	b.Namespace, b.Name, b.UID = "team", "cache", "4c1f"
	b.Spec.LMCache = &v1alpha1.LMCacheSpec{Topology: v1alpha1.TopologyNodeLocal, NodeLocal: &v1alpha1.NodeLocalLMCache{Server: v1alpha1.NodeLocalServer{
		Image: "ic.test/lmcache@sha256:" + strings.Repeat("a", 64), Port: 6555, HTTPPort: 6556, L1Capacity: resource.MustParse("60Gi"), MaxGPUWorkers: 8, MaxCPUWorkers: 4,
	}}}
	return Wiring{Backend: b, Container: "vllm", Binding: &Binding{Protocol: ProtocolRESP, Endpoint: "redis.team.svc.cluster.local:6379"}}
}

func nodePod(edits ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Spec.Containers = []corev1.Container{{Name: "proxy"}, {Name: "vllm", Env: []corev1.EnvVar{{Name: "OWN", Value: "at $(INFERENCECACHE_NODE_IP)"}}}}
	for _, edit := range edits {
		edit(pod)
	}
	return pod
}

func TestNodeLocalWiring(t *testing.T) {
	for name, client := range map[string]bool{"address in the arguments": false, "address in a file": true} {
		t.Run(name, func(t *testing.T) {
			was, pod := nodePod(), nodePod()
			if err := wireNodeLocal(pod, nodeWiring(), client); err != nil {
				t.Fatal(err)
			}
			engine := pod.Spec.Containers[1]
			mounts := map[string]string{}
			for _, m := range engine.VolumeMounts {
				mounts[m.MountPath] = m.Name
			}
			want := map[string]string{"/dev/shm": nodelocal.ShmVolume}
			if client {
				want[nodelocal.ConfigDir] = nodelocal.ConfigVolume
			}
			if diff := cmp.Diff(want, mounts); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
			if engine.Env[0].Name != nodelocal.NodeIPVariable || engine.Env[0].ValueFrom.FieldRef.FieldPath != "status.hostIP" || engine.Env[1].Name != "OWN" {
				t.Errorf("variables %+v", engine.Env)
			}
			if host := pod.Spec.Volumes[0].HostPath; host == nil || host.Path != "/dev/shm/inference-cache/4c1f" || *host.Type != corev1.HostPathDirectoryOrCreate {
				t.Errorf("volumes %+v", pod.Spec.Volumes)
			}
			gate := pod.Spec.InitContainers[0]
			hash := pod.Annotations[v1alpha1.AnnotationInjectedServerHash]
			if gate.Name != nodelocal.GateContainer || len(hash) != 16 || !strings.Contains(gate.Env[1].Value, "team/cache@4c1f#"+hash) {
				t.Errorf("hash %q, gate %+v", hash, gate.Env)
			}
			if writes := strings.Contains(gate.Env[1].Value, `"client":"/var/run/inference-cache/lmcache-node/client.yaml"`); writes != client {
				t.Errorf("gate %s", gate.Env[1].Value)
			}
			again := pod.DeepCopy()
			unwireNodeLocal(again)
			if err := wireNodeLocal(again, nodeWiring(), client); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(pod, again); diff != "" {
				t.Errorf("twice is not once:\n%s", diff)
			}
			unwireNodeLocal(pod)
			pod.Spec.Containers[1].Env = pod.Spec.Containers[1].Env[1:]
			if diff := cmp.Diff(was.Spec.Containers[0], pod.Spec.Containers[0]); diff != "" || len(pod.Spec.Volumes)+len(pod.Spec.InitContainers)+len(pod.Annotations) > 0 {
				t.Errorf("something stays: %+v", pod)
			}
		})
	}
}

func TestNodeLocalWiringRefusesPods(t *testing.T) {
	engine := func(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[1] }
	for name, tc := range map[string]struct {
		edit func(*corev1.Pod)
		want string
	}{
		"shared memory of its own": {func(p *corev1.Pod) {
			engine(p).VolumeMounts = []corev1.VolumeMount{{Name: "dshm", MountPath: "/dev/shm/"}}
		}, "shm-conflict"},
		"a mount inside the shared memory": {func(p *corev1.Pod) {
			engine(p).VolumeMounts = []corev1.VolumeMount{{Name: "x", MountPath: "/dev/shm/x"}}
		}, "shm-conflict"},
		"a mount where the configuration goes": {func(p *corev1.Pod) {
			engine(p).VolumeMounts = []corev1.VolumeMount{{Name: "x", MountPath: nodelocal.ConfigDir}}
		}, "reserved-name-conflict"},
		"a container of the gate's name": {func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: nodelocal.GateContainer}} }, "reserved-name-conflict"},
		"a volume of ours":               {func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: nodelocal.ShmVolume}} }, "reserved-name-conflict"},
		"another address of the node": {func(p *corev1.Pod) {
			engine(p).Env = []corev1.EnvVar{{Name: nodelocal.NodeIPVariable, Value: "10.0.0.1"}}
		}, "reserved-name-conflict"},
		"the same address of the node": {func(p *corev1.Pod) { engine(p).Env = []corev1.EnvVar{nodelocal.NodeIP()} }, ""},
		"a mount elsewhere": {func(p *corev1.Pod) {
			engine(p).VolumeMounts = []corev1.VolumeMount{{Name: "x", MountPath: "/dev/shmem"}}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := wireNodeLocal(nodePod(tc.edit), nodeWiring(), true)
			var unfit *PodError
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (!errors.As(err, &unfit) || unfit.Reason != tc.want):
				t.Errorf("error %v, want %s", err, tc.want)
			}
		})
	}
}

func TestNodeStorage(t *testing.T) {
	for endpoint, want := range map[string]*nodelocal.Storage{
		"redis:6379": {Protocol: "resp", Host: "redis", Port: 6379}, "[::1]:1": {Protocol: "resp", Host: "::1", Port: 1}, "redis": nil, "redis:x": nil, "redis:65536": nil,
	} {
		got, err := NodeStorage(&Binding{Protocol: "resp", Endpoint: endpoint})
		if (err == nil) != (want != nil) || want != nil && *got != *want {
			t.Errorf("%s: %+v, %v", endpoint, got, err)
		}
	}
	if got, err := NodeStorage(nil); got != nil || err != nil {
		t.Errorf("no binding is %+v, %v", got, err)
	}
}
