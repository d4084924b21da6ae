// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// Labels of the objects of managed storages.
const (
	labelName      = "app.kubernetes.io/name"
	labelInstance  = "app.kubernetes.io/instance"
	labelManagedBy = "app.kubernetes.io/managed-by"

	nameValue      = "cachebackend"
	managedByValue = "inference-cache-controller"
)

// SelectorLabels are on every object of a managed storage.
func SelectorLabels() map[string]string {
	return map[string]string{labelName: nameValue, labelManagedBy: managedByValue}
}

func labelsOf(backend *v1alpha1.CacheBackend) map[string]string {
	labels := SelectorLabels()
	labels[labelInstance] = backend.Name
	return labels
}

func podLabels(backend *v1alpha1.CacheBackend) map[string]string {
	return map[string]string{labelName: nameValue, labelInstance: backend.Name}
}

// Objects is what runs a managed storage, all owned by its backend.
type Objects struct {
	// Policy lets the backend's engines in and nobody else; nil where engines
	// cannot be told by their labels.
	Policy     *networkingv1.NetworkPolicy
	Service    *corev1.Service
	Deployment *appsv1.Deployment
}

// Objects renders the managed storage of a backend. The error says what of the
// backend does not fit.
func (r *Registry) Objects(backend *v1alpha1.CacheBackend) (*Objects, error) {
	if faults := validation.IsDNS1035Label(backend.Name); len(faults) > 0 {
		return nil, fmt.Errorf("metadata.name: a managed storage has a Service of this name: %s", strings.Join(faults, "; "))
	}
	provider, err := r.For(backend.Spec.RemoteStorage)
	if err != nil {
		return nil, err
	}
	rendered, err := provider.Render(backend)
	if err != nil {
		return nil, err
	}
	o := &Objects{
		Service: &corev1.Service{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
			ObjectMeta: metaOf(backend, backend.Name), Spec: rendered.Service,
		},
		Deployment: &appsv1.Deployment{
			TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metaOf(backend, backend.Name),
		},
	}
	o.Service.Spec.Selector = podLabels(backend)
	replicas := int32(1)
	o.Deployment.Spec.Replicas = &replicas
	o.Deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: podLabels(backend)}
	o.Deployment.Spec.Template.Labels, o.Deployment.Spec.Template.Spec = labelsOf(backend), rendered.Pod
	if !onHostNetwork(backend) {
		o.Policy = policy(backend, rendered)
	}
	return o, nil
}

// PolicyName is the name of the NetworkPolicy of a backend's storage.
func PolicyName(backend *v1alpha1.CacheBackend) string { return backend.Name + "-storage" }

// onHostNetwork says whether the storage is reached from the nodes' addresses,
// which no pod selector matches.
func onHostNetwork(backend *v1alpha1.CacheBackend) bool {
	return backend.Spec.LMCache != nil && backend.Spec.LMCache.Topology == v1alpha1.TopologyNodeLocal
}

// policy lets the engines of the backend in. Without a selector there are none.
func policy(backend *v1alpha1.CacheBackend, rendered Rendered) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metaOf(backend, PolicyName(backend)),
	}
	p.Spec.PodSelector.MatchLabels = podLabels(backend)
	p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	if backend.Spec.EngineSelector == nil || len(backend.Spec.EngineSelector.MatchLabels) == 0 {
		return p
	}
	protocol, port := corev1.ProtocolTCP, intstr.FromInt32(rendered.Service.Ports[0].Port)
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: backend.Spec.EngineSelector.MatchLabels}}},
		Ports: []networkingv1.NetworkPolicyPort{{Protocol: &protocol, Port: &port}},
	}}
	return p
}

func metaOf(backend *v1alpha1.CacheBackend, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: backend.Namespace, Name: name, Labels: labelsOf(backend),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(backend, v1alpha1.GroupVersion.WithKind("CacheBackend"))},
	}
}

// podSpec runs one container under Pod Security "restricted", scheduled as the
// user says.
func podSpec(c corev1.Container, workload *v1alpha1.WorkloadScheduling, user int64) corev1.PodSpec {
	no, yes := false, true
	c.SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	spec := corev1.PodSpec{
		Containers: []corev1.Container{c}, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	if workload == nil {
		return spec
	}
	w := workload.DeepCopy()
	spec.Tolerations, spec.ImagePullSecrets, spec.ServiceAccountName = w.Tolerations, w.ImagePullSecrets, w.ServiceAccountName
	spec.PriorityClassName, spec.SchedulerName, spec.RuntimeClassName = w.PriorityClassName, w.SchedulerName, w.RuntimeClassName
	spec.TerminationGracePeriodSeconds = w.TerminationGracePeriodSeconds
	spec.NodeSelector, spec.Affinity, spec.TopologySpreadConstraints = w.NodeSelector, w.Affinity, w.TopologySpreadConstraints
	if w.SecurityContext != nil {
		spec.SecurityContext = restricted(w.SecurityContext, spec.SecurityContext)
	}
	return spec
}

// restricted is the user's security context with what it leaves open taken
// from the defaults.
func restricted(given, defaults *corev1.PodSecurityContext) *corev1.PodSecurityContext {
	out := *given
	if out.RunAsNonRoot == nil {
		out.RunAsNonRoot = defaults.RunAsNonRoot
	}
	if out.RunAsUser == nil {
		out.RunAsUser = defaults.RunAsUser
	}
	if out.RunAsGroup == nil {
		out.RunAsGroup = defaults.RunAsGroup
	}
	if out.SeccompProfile == nil {
		out.SeccompProfile = defaults.SeccompProfile
	}
	return &out
}
