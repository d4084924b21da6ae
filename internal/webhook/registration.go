// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// Names of what Registration returns.
const (
	MutatingName    = "inference-cache-mutating-webhook-configuration"
	ValidatingName  = "inference-cache-validating-webhook-configuration"
	StampPolicyName = "inference-cache-stamps"
	// ServiceName is the Service in front of the webhooks, which listen on
	// ServerPort.
	ServiceName = "webhook-service"
	ServerPort  = 9443
)

// Paths of the pod webhooks: PodPath injects, StampsPath only takes forged
// stamps off pods that ask for no injection.
const (
	PodPath    = "/mutate--v1-pod"
	StampsPath = "/mutate--v1-pod-stamps"
)

// timeoutSeconds is how long the API server waits for an answer.
const timeoutSeconds int32 = 3

// RegistrationOptions say how the API server reaches the webhooks.
type RegistrationOptions struct {
	// Namespace the controller is installed in; its pods are left alone.
	// Required.
	Namespace string
	// URL is the base of the webhooks. Default: ServiceName in Namespace.
	URL string
	// CABundle verifies them, PEM. Default none: filled in later.
	CABundle []byte
}

// Registered are the objects that make the API server ask.
type Registered struct {
	Mutating   *admissionv1.MutatingWebhookConfiguration
	Validating *admissionv1.ValidatingWebhookConfiguration
	// StampPolicy and its binding keep the stamps of pods from being changed
	// later. They need Kubernetes 1.30.
	StampPolicy  *admissionv1.ValidatingAdmissionPolicy
	StampBinding *admissionv1.ValidatingAdmissionPolicyBinding
}

// Registration returns the objects that register every webhook.
func Registration(o RegistrationOptions) Registered {
	mutating := &admissionv1.MutatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: MutatingName},
		Webhooks:   o.podWebhooks(),
	}
	validating := &admissionv1.ValidatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: ValidatingName},
	}
	for _, kind := range defaultedKinds {
		mutating.Webhooks = append(mutating.Webhooks, admissionv1.MutatingWebhook{
			Name: "m" + kind + "." + v1alpha1.Group, ClientConfig: o.client(DefaultPath(kind)), Rules: resourceRule(kind),
			FailurePolicy: ptr(admissionv1.Fail), SideEffects: ptr(admissionv1.SideEffectClassNone),
			TimeoutSeconds: ptr(timeoutSeconds), AdmissionReviewVersions: []string{"v1"},
		})
	}
	for _, kind := range validatedKinds {
		validating.Webhooks = append(validating.Webhooks, admissionv1.ValidatingWebhook{
			Name: "v" + kind + "." + v1alpha1.Group, ClientConfig: o.client(ValidatePath(kind)), Rules: resourceRule(kind),
			FailurePolicy: ptr(admissionv1.Fail), SideEffects: ptr(admissionv1.SideEffectClassNone),
			TimeoutSeconds: ptr(timeoutSeconds), AdmissionReviewVersions: []string{"v1"},
		})
	}
	return Registered{mutating, validating, stampPolicy(), stampBinding()}
}

func (o RegistrationOptions) client(path string) admissionv1.WebhookClientConfig {
	config := admissionv1.WebhookClientConfig{CABundle: o.CABundle}
	if o.URL != "" {
		config.URL = ptr(strings.TrimSuffix(o.URL, "/") + path)
		return config
	}
	config.Service = &admissionv1.ServiceReference{Namespace: o.Namespace, Name: ServiceName, Path: &path, Port: ptr(int32(443))}
	return config
}

func resourceRule(kind string) []admissionv1.RuleWithOperations {
	plural := kind + "s"
	if stem, ok := strings.CutSuffix(kind, "y"); ok {
		plural = stem + "ies"
	}
	return []admissionv1.RuleWithOperations{{
		Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		Rule: admissionv1.Rule{
			APIGroups: []string{v1alpha1.Group}, APIVersions: []string{v1alpha1.GroupVersion.Version},
			Resources: []string{plural}, Scope: ptr(admissionv1.NamespacedScope),
		},
	}}
}

// podWebhooks ask about pods that carry a cache domain, and about those that
// carry stamps without one. Neither ever keeps a pod from being created
// because it cannot be asked.
func (o RegistrationOptions) podWebhooks() []admissionv1.MutatingWebhook {
	base := admissionv1.MutatingWebhook{
		Rules: []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule: admissionv1.Rule{
				APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: ptr(admissionv1.NamespacedScope),
			},
		}},
		NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn,
				Values: []string{"kube-system", "kube-public", "kube-node-lease", o.Namespace}},
			{Key: v1alpha1.LabelInjection, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"disabled"}},
		}},
		FailurePolicy: ptr(admissionv1.Ignore), SideEffects: ptr(admissionv1.SideEffectClassNone),
		TimeoutSeconds: ptr(timeoutSeconds), AdmissionReviewVersions: []string{"v1"},
	}
	domain := func(operator metav1.LabelSelectorOperator) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: v1alpha1.LabelCacheDomain, Operator: operator},
		}}
	}
	inject, strip := base, *base.DeepCopy()
	inject.Name, inject.ClientConfig = "mpod."+v1alpha1.Group, o.client(PodPath)
	inject.ObjectSelector = domain(metav1.LabelSelectorOpExists)
	strip.Name, strip.ClientConfig = "mpodstamps."+v1alpha1.Group, o.client(StampsPath)
	strip.ObjectSelector = domain(metav1.LabelSelectorOpDoesNotExist)
	strip.MatchConditions = []admissionv1.MatchCondition{{
		Name: "carries-stamps", Expression: "has(object.metadata.annotations) && " + stampList() + ".exists(k, k in object.metadata.annotations)",
	}}
	return []admissionv1.MutatingWebhook{inject, strip}
}

// stampList is the stamps as a list of the Common Expression Language.
func stampList() string {
	quoted := make([]string, 0, len(v1alpha1.StampAnnotations()))
	for _, name := range v1alpha1.StampAnnotations() {
		quoted = append(quoted, "'"+name+"'")
	}
	slices.Sort(quoted)
	return "[" + strings.Join(quoted, ", ") + "]"
}

// stampPolicy refuses changes of stamps. Evaluation errors let the change
// pass: readers of a stamp check it against the live backend anyhow.
func stampPolicy() *admissionv1.ValidatingAdmissionPolicy {
	const value = "has(%[1]s.metadata.annotations) && k in %[1]s.metadata.annotations ? [%[1]s.metadata.annotations[k]] : []"
	same := fmt.Sprintf("%s.all(k, (%s) == (%s))", stampList(), fmt.Sprintf(value, "object"), fmt.Sprintf(value, "oldObject"))
	return &admissionv1.ValidatingAdmissionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingAdmissionPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: StampPolicyName},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: ptr(admissionv1.Ignore),
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Update},
					Rule: admissionv1.Rule{
						APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods", "pods/status"},
						Scope: ptr(admissionv1.NamespacedScope),
					},
				},
			}}},
			Validations: []admissionv1.Validation{{
				Expression: same, Reason: ptr(metav1.StatusReasonForbidden),
				Message: "annotations of inferencecache.io that say how a pod was injected are written when it is created and never change",
			}},
		},
	}
}

func stampBinding() *admissionv1.ValidatingAdmissionPolicyBinding {
	return &admissionv1.ValidatingAdmissionPolicyBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingAdmissionPolicyBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: StampPolicyName},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: StampPolicyName, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
}

func ptr[T any](v T) *T { return &v }
