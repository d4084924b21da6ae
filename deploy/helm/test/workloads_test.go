// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const controllerName = "inference-cache-controller-manager"

// portsOf lists "name port" of a container.
func portsOf(c corev1.Container) []string {
	var ports []string
	for _, p := range c.Ports {
		ports = append(ports, p.Name+" "+itoa(p.ContainerPort))
	}
	return ports
}

func amounts(r corev1.ResourceRequirements) [4]string {
	return [4]string{
		r.Requests.Cpu().String(), r.Requests.Memory().String(), r.Limits.Cpu().String(), r.Limits.Memory().String(),
	}
}

func TestServerFacts(t *testing.T) {
	found := render(t, "")
	server := get[*appsv1.Deployment](t, found, "Deployment/inference-cache-server")
	pod := server.Spec.Template
	container := pod.Spec.Containers[0]
	wantLabels := map[string]string{"app.kubernetes.io/name": "inference-cache", "app.kubernetes.io/component": "server"}
	if diff := cmp.Diff(wantLabels, server.Spec.Selector.MatchLabels); diff != "" {
		t.Errorf("labels: %s", diff)
	}
	if diff := cmp.Diff([]string{"grpc 9090", "http 8080", "snapshot 8081"}, portsOf(container)); diff != "" {
		t.Errorf("ports: %s", diff)
	}
	if diff := cmp.Diff([4]string{"50m", "256Mi", "500m", "1Gi"}, amounts(container.Resources)); diff != "" {
		t.Errorf("resources: %s", diff)
	}
	if grace := *pod.Spec.TerminationGracePeriodSeconds; grace != 10 {
		t.Errorf("grace period %d s", grace)
	}
	for _, bound := range []string{"--shutdown-delay=5s", "--shutdown-grace=2s"} {
		if !slices.Contains(container.Args, bound) {
			t.Errorf("no %s, which the grace period is for: %s", bound, container.Args)
		}
	}
	live, ready := container.LivenessProbe, container.ReadinessProbe
	if live.HTTPGet.Path != "/healthz" || live.HTTPGet.Port.String() != "http" || live.InitialDelaySeconds != 15 || live.PeriodSeconds != 20 {
		t.Errorf("liveness %+v", live)
	}
	if ready.HTTPGet.Path != "/readyz" || ready.HTTPGet.Port.String() != "http" || ready.InitialDelaySeconds != 5 || ready.PeriodSeconds != 10 {
		t.Errorf("readiness %+v", ready)
	}
	if pod.Annotations["prometheus.io/scrape"] != "true" || pod.Annotations["prometheus.io/port"] != "8080" {
		t.Errorf("scrape annotations %v", pod.Annotations)
	}
	if pod.Spec.ServiceAccountName != "inference-cache-server" {
		t.Errorf("service account %s", pod.Spec.ServiceAccountName)
	}
	service := get[*corev1.Service](t, found, "Service/inference-cache-server")
	var ports []string
	for _, p := range service.Spec.Ports {
		ports = append(ports, p.Name+" "+itoa(p.Port)+" "+p.TargetPort.String())
	}
	if diff := cmp.Diff([]string{"grpc 9090 grpc", "http 8080 http", "snapshot 8081 snapshot"}, ports); diff != "" {
		t.Errorf("service: %s", diff)
	}
	headless := get[*corev1.Service](t, found, "Service/inference-cache-server-headless")
	if headless.Spec.ClusterIP != "None" || !headless.Spec.PublishNotReadyAddresses {
		t.Errorf("headless service %+v", headless.Spec)
	}
}

func TestControllerFacts(t *testing.T) {
	controller := get[*appsv1.Deployment](t, render(t, ""), "Deployment/inference-cache-controller-manager")
	spec := controller.Spec.Template.Spec
	if diff := cmp.Diff([]string{"metrics 8080", "probes 8081", "webhooks 9443"}, portsOf(spec.Containers[0])); diff != "" {
		t.Errorf("ports: %s", diff)
	}
	if limit := spec.Containers[0].Resources.Limits.Memory().String(); limit != "256Mi" {
		t.Errorf("memory limit %s", limit)
	}
	tokens := make(map[string]string)
	for _, v := range spec.Volumes {
		if v.Projected == nil {
			continue
		}
		token := v.Projected.Sources[0].ServiceAccountToken
		if *token.ExpirationSeconds != 3600 {
			t.Errorf("the token of %s lives %d s", v.Name, *token.ExpirationSeconds)
		}
		for _, m := range spec.Containers[0].VolumeMounts {
			if m.Name == v.Name {
				tokens[m.MountPath+"/"+token.Path] = token.Audience
			}
		}
	}
	want := map[string]string{
		"/var/run/secrets/inferencecache.io/controller-token/token": "inferencecache.io/controller",
		"/var/run/secrets/inferencecache.io/policy-token/token":     "inferencecache.io/policy",
		"/var/run/secrets/inferencecache.io/lookup-token/token":     "inferencecache.io/lookup",
	}
	if diff := cmp.Diff(want, tokens); diff != "" {
		t.Errorf("tokens: %s", diff)
	}
	for _, argument := range []string{
		"--leader-elect", "--server-discovery=endpoints",
		"--server-policy-url=https://inference-cache-server." + namespace + ".svc:8081/policy",
		"--server-probe-url=https://inference-cache-server." + namespace + ".svc:8081/probe",
		"--publisher-server-address=dns:///inference-cache-server-headless." + namespace + ".svc.cluster.local:9090",
		"--webhook-bind-address=:9443", "--webhook-cert-mode=self", "--server-cert-mode=self", "--tenant-id-scope=cluster",
		"--sidecar-mode=auto", "--repair-sidecar-image=false", "--adapters=core", "--metrics-secure=false",
		"--policy-server-grpc-address=inference-cache-server." + namespace + ".svc:9090",
	} {
		if !slices.Contains(spec.Containers[0].Args, argument) {
			t.Errorf("no %s in %v", argument, spec.Containers[0].Args)
		}
	}
}

func TestPodsAreRestricted(t *testing.T) {
	for name, values := range variants {
		for _, d := range render(t, values).deployments(t) {
			checkRestricted(t, name+": "+d.Name, d.Spec.Template.Spec)
		}
	}
}

// checkRestricted holds a pod against the restricted level of Pod Security, and
// asks for a read-only root besides.
func checkRestricted(t *testing.T, name string, spec corev1.PodSpec) {
	t.Helper()
	if spec.HostNetwork || spec.HostPID || spec.HostIPC || spec.SecurityContext == nil {
		t.Fatalf("%s: host namespaces, or no security context", name)
	}
	if s := spec.SecurityContext; !*s.RunAsNonRoot || *s.RunAsUser == 0 || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: security context of the pod %+v", name, s)
	}
	if spec.AutomountServiceAccountToken == nil {
		t.Errorf("%s: does not say whether it has a token", name)
	}
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			t.Errorf("%s: volume %s is a path of the host", name, v.Name)
		}
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		s := c.SecurityContext
		if s == nil || s.RunAsNonRoot == nil || s.ReadOnlyRootFilesystem == nil || s.AllowPrivilegeEscalation == nil ||
			s.Capabilities == nil || s.SeccompProfile == nil {
			t.Fatalf("%s: security context of %s is not complete: %+v", name, c.Name, s)
		}
		if !*s.RunAsNonRoot || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || s.Privileged != nil ||
			s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
			!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
			t.Errorf("%s: security context of %s: %+v", name, c.Name, s)
		}
		for _, p := range c.Ports {
			if p.HostPort != 0 {
				t.Errorf("%s: host port %d", name, p.HostPort)
			}
		}
		if c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s: %s has no bounds", name, c.Name)
		}
	}
}

// TestObjectsFitTogether checks that selectors hit pods, ports exist, mounts
// have volumes and volumes have objects.
func TestObjectsFitTogether(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			found := render(t, values)
			for key, object := range found {
				switch o := object.(type) {
				case *corev1.Service:
					pod := onlyPod(t, found, key, labels.SelectorFromSet(o.Spec.Selector))
					for _, p := range o.Spec.Ports {
						if !hasPort(pod, p.TargetPort.String()) {
							t.Errorf("%s: no container port %s", key, p.TargetPort.String())
						}
					}
				case *policyv1.PodDisruptionBudget:
					onlyPod(t, found, key, selector(t, o.Spec.Selector))
				case *networkingv1.NetworkPolicy:
					onlyPod(t, found, key, selector(t, &o.Spec.PodSelector))
				case *appsv1.Deployment:
					checkVolumes(t, found, o)
					budget := found["PodDisruptionBudget/"+o.Name] != nil
					if budget != (*o.Spec.Replicas >= 2) {
						t.Errorf("%s: %d replicas, disruption budget %v", o.Name, *o.Spec.Replicas, budget)
					}
				}
			}
		})
	}
}

func selector(t *testing.T, s *metav1.LabelSelector) labels.Selector {
	t.Helper()
	converted, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return converted
}

func onlyPod(t *testing.T, found objects, key string, s labels.Selector) corev1.PodSpec {
	t.Helper()
	var hit []corev1.PodSpec
	for _, d := range found.deployments(t) {
		if s.Matches(labels.Set(d.Spec.Template.Labels)) {
			hit = append(hit, d.Spec.Template.Spec)
		}
	}
	if len(hit) != 1 {
		t.Fatalf("%s selects %d Deployments", key, len(hit))
	}
	return hit[0]
}

func hasPort(pod corev1.PodSpec, name string) bool {
	return slices.ContainsFunc(pod.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
}

// issued are the Secrets that the controller, cert-manager or the user makes.
var issued = map[string]bool{"inference-cache-server-tls": true, "webhook-server-cert": true}

// givenObjects are referred to but not rendered, by the variant's own choice.
var givenObjects = map[string]bool{"Secret/gateway-admin": true}

func checkVolumes(t *testing.T, found objects, d *appsv1.Deployment) {
	t.Helper()
	spec := d.Spec.Template.Spec
	if found["ServiceAccount/"+spec.ServiceAccountName] == nil {
		t.Errorf("%s: no ServiceAccount %s", d.Name, spec.ServiceAccountName)
	}
	volumes := make(map[string]bool)
	for _, v := range spec.Volumes {
		volumes[v.Name] = true
		switch {
		case v.ConfigMap != nil && found["ConfigMap/"+v.ConfigMap.Name] == nil:
			t.Errorf("%s: no ConfigMap %s", d.Name, v.ConfigMap.Name)
		case v.Secret != nil && !issued[v.Secret.SecretName] && !givenObjects["Secret/"+v.Secret.SecretName]:
			t.Errorf("%s: no Secret %s", d.Name, v.Secret.SecretName)
		}
	}
	mounts := make(map[string]bool)
	for _, m := range spec.Containers[0].VolumeMounts {
		mounts[m.Name] = true
		used := slices.ContainsFunc(spec.Containers[0].Args, func(a string) bool { return strings.Contains(a+"/", "="+m.MountPath+"/") })
		if !used || !m.ReadOnly {
			t.Errorf("%s: mount %s is not read by any flag, or may be written", d.Name, m.MountPath)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(volumes)), slices.Sorted(maps.Keys(mounts))); diff != "" {
		t.Errorf("%s: volumes and mounts: %s", d.Name, diff)
	}
}
