// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package inject_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/inject"
	"github.com/inferencecache/inference-cache/internal/kubetest"
)

func TestEnvtestTiers(t *testing.T) {
	for mode, change := range map[string]func(*inject.Options){"native sidecars": allAdapters, "ordinary containers": ordinary} {
		t.Run(mode, func(t *testing.T) {
			o := options()
			change(&o)
			cluster, _ := startWith(t, o)
			for name, kind := range map[string]tier{
				"lmcache": {both, podLocal, nil, nil}, "redis": {both, withRedis, nil, nil}, "hicache": {both[1:], hiCache, nil, nil},
			} {
				for _, runtime := range kind.runtimes {
					checkRestricted(t, cluster, runtime, name, kind.change)
				}
			}
			cluster.Namespace(t, "open", map[string]string{"pod-security.kubernetes.io/enforce": "privileged"})
			for name, kind := range tiers {
				for _, runtime := range kind.runtimes {
					checkAdmitted(t, cluster, runtime, name, kind.change)
				}
			}
		})
	}
}

// Engines that are wired to a tier inside their pod stay fit for a namespace
// with restricted pods, and keep their quality of service.
func checkRestricted(t *testing.T, cluster *kubetest.Cluster, runtime v1alpha1.EngineRuntime, name string, change func(*v1alpha1.CacheBackend)) {
	t.Helper()
	domain := name + "-" + map[v1alpha1.EngineRuntime]string{vllm: "vllm", sglang: "sglang"}[runtime]
	backend := newBackend(runtime, change, named(domain))
	backend.UID, backend.Generation = "", 0
	backend.Spec.EngineSelector.MatchLabels[v1alpha1.LabelCacheDomain] = domain
	must(t, cluster.Client.Create(t.Context(), backend))
	for shape, change := range map[string]func(*corev1.Pod){"usual": func(*corev1.Pod) {}, "guaranteed": shapes["guaranteed"]} {
		pod := restricted(newPod(runtime, change))
		pod.Labels[v1alpha1.LabelCacheDomain] = domain
		must(t, cluster.Client.Create(t.Context(), pod))
		if pod.Annotations[v1alpha1.AnnotationInjectedByUID] != string(backend.UID) {
			t.Errorf("%s, %s: not wired: %v", domain, shape, pod.Annotations)
			continue
		}
		served := slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool { return c.Name == adapter.ServerContainer })
		if served != (backend.Spec.LMCache != nil) || served != (pod.Labels[v1alpha1.LabelLMCacheMetrics] == "true") {
			t.Errorf("%s, %s: server %t, labels %v", domain, shape, served, pod.Labels)
		}
		if shape == "guaranteed" && pod.Status.QOSClass != corev1.PodQOSGuaranteed {
			t.Errorf("%s: a guaranteed pod became %s", domain, pod.Status.QOSClass)
		}
	}
}

// checkAdmitted wants every pod that the API server takes to be taken by it
// with what injection makes of it, too.
func checkAdmitted(t *testing.T, cluster *kubetest.Cluster, runtime v1alpha1.EngineRuntime, name string, change func(*v1alpha1.CacheBackend)) {
	t.Helper()
	domain := name + map[v1alpha1.EngineRuntime]string{vllm: "vllm", sglang: "sglang"}[runtime]
	backend := newBackend(runtime, named(domain))
	if change != nil {
		change(backend)
	}
	backend.UID, backend.Generation, backend.Namespace = "", 0, "open"
	backend.Spec.EngineSelector.MatchLabels[v1alpha1.LabelCacheDomain] = domain
	must(t, cluster.Client.Create(t.Context(), backend))
	pods := maps.Clone(oddPods)
	maps.Copy(pods, shapes)
	for name, change := range pods {
		pod := newPod(runtime, change)
		pod.Namespace, pod.Spec.ServiceAccountName = "open", "default"
		pod.Labels[v1alpha1.LabelCacheDomain] = "nobody"
		if err := cluster.Client.Create(t.Context(), pod.DeepCopy(), client.DryRunAll); err != nil {
			t.Errorf("%s is no pod: %v", name, err)
			continue
		}
		pod.Labels[v1alpha1.LabelCacheDomain] = domain
		if err := cluster.Client.Create(t.Context(), pod, client.DryRunAll); err != nil {
			t.Errorf("%s: %s: %v", domain, name, err)
		}
		if name == "one-container" && !injected(pod) {
			t.Errorf("%s: not wired: %v", domain, pod.Annotations)
		}
	}
}

// oddPods are pods with what may be in the way of more containers.
var oddPods = map[string]func(*corev1.Pod){
	"ports of the host": func(p *corev1.Pod) {
		p.Spec.HostNetwork, p.Spec.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet
		port(corev1.ContainerPort{ContainerPort: 8001})(p)
		sibling(corev1.Container{Name: "proxy", Image: "proxy:1", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}})(p)
	},
	"a sibling with the port of the server": sibling(corev1.Container{Name: "proxy", Image: "proxy:1", Ports: []corev1.ContainerPort{{Name: "lmcache-mp", ContainerPort: 5555}}}),
	"resources of the pod as a whole": func(p *corev1.Pod) {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: list, Limits: list}
	},
	"huge pages": func(p *corev1.Pod) {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("8Gi"), "hugepages-2Mi": resource.MustParse("2Gi")}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	},
	"native sidecars of its own": func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "mesh", Image: "mesh:1", RestartPolicy: ptr(corev1.ContainerRestartPolicyAlways)}, {Name: "download", Image: "tools:1"}}
	},
	"a deadline": func(p *corev1.Pod) {
		p.Spec.RestartPolicy, p.Spec.ActiveDeadlineSeconds = corev1.RestartPolicyOnFailure, ptr(int64(60))
	},
	"no token": func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = ptr(false) },
	"a user namespace and an identity": func(p *corev1.Pod) {
		p.Spec.HostUsers = ptr(false)
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr(int64(1000)), RunAsNonRoot: ptr(true), FSGroup: ptr(int64(2000))}
	},
	"the operating system Linux":   func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Linux} },
	"the operating system Windows": func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} },
	"one process namespace":        func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = ptr(true) },
	"the node's processes":         func(p *corev1.Pod) { p.Spec.HostPID, p.Spec.HostIPC = true, true },
	"a resize policy": func(p *corev1.Pod) {
		p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}}
	},
	"a claim of a device": func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr("gpu")}}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	},
	"a volume with the publisher's name": func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: inject.VolumeName}} },
	"a block device and a subpath": func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "raw", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "raw"}}}, {Name: "models"}}
		c := &p.Spec.Containers[0]
		c.VolumeDevices = []corev1.VolumeDevice{{Name: "raw", DevicePath: "/dev/xda"}}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "models", MountPath: "/models", SubPathExpr: "$(POD)"}}
		c.Env = []corev1.EnvVar{{Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
	},
	"probes and hooks": func(p *corev1.Pod) {
		get := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromInt32(8001)}}
		c := &p.Spec.Containers[0]
		c.StartupProbe, c.LivenessProbe = &corev1.Probe{ProbeHandler: get}, &corev1.Probe{ProbeHandler: get, TerminationGracePeriodSeconds: ptr(int64(5))}
		c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}}}
	},
	"rules for restarts": func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].RestartPolicy = ptr(corev1.ContainerRestartPolicyNever)
		p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action:    corev1.ContainerRestartRuleActionRestart,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
		}}
	},
	"an engine that ends by another signal": func(p *corev1.Pod) {
		p.Spec.OS = &corev1.PodOS{Name: corev1.Linux}
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{StopSignal: ptr(corev1.SIGINT)}
	},
	"an image volume": func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "weights", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "weights:1"}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "weights", MountPath: "/weights"}}
	},
	"shared memory of its own":       shm("21Gi", nil),
	"a scheduling gate":              func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "queue.test/gate"}} },
	"annotations to the brim":        func(p *corev1.Pod) { p.Annotations = map[string]string{"mine": strings.Repeat("x", 256<<10-4)} },
	"annotations almost to the brim": func(p *corev1.Pod) { p.Annotations = map[string]string{"mine": strings.Repeat("x", 256<<10-300)} },
	"many containers": func(p *corev1.Pod) {
		for i := range 60 {
			sibling(corev1.Container{Name: fmt.Sprint("c-", i), Image: "mine:1"})(p)
		}
	},
}
