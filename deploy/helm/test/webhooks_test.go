// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/inferencecache/inference-cache/internal/webhook"
)

const (
	mutatingKey   = "MutatingWebhookConfiguration/" + webhook.MutatingName
	validatingKey = "ValidatingWebhookConfiguration/" + webhook.ValidatingName
	policyKey     = "ValidatingAdmissionPolicy/" + webhook.StampPolicyName
	bindingKey    = "ValidatingAdmissionPolicyBinding/" + webhook.StampPolicyName
)

// TestWebhooksAreThoseOfTheController compares the registration with what the
// controller serves.
func TestWebhooksAreThoseOfTheController(t *testing.T) {
	found := render(t, "")
	want := webhook.Registration(webhook.RegistrationOptions{Namespace: namespace})
	mutating := get[*admissionv1.MutatingWebhookConfiguration](t, found, mutatingKey)
	if diff := cmp.Diff(want.Mutating.Webhooks, mutating.Webhooks); diff != "" {
		t.Errorf("mutating: %s", diff)
	}
	validating := get[*admissionv1.ValidatingWebhookConfiguration](t, found, validatingKey)
	if diff := cmp.Diff(want.Validating.Webhooks, validating.Webhooks); diff != "" {
		t.Errorf("validating: %s", diff)
	}
	policy := get[*admissionv1.ValidatingAdmissionPolicy](t, found, policyKey)
	if diff := cmp.Diff(want.StampPolicy.Spec, policy.Spec); diff != "" {
		t.Errorf("policy: %s", diff)
	}
	binding := get[*admissionv1.ValidatingAdmissionPolicyBinding](t, found, bindingKey)
	if diff := cmp.Diff(want.StampBinding.Spec, binding.Spec); diff != "" {
		t.Errorf("binding: %s", diff)
	}
	for _, annotations := range []map[string]string{mutating.Annotations, validating.Annotations} {
		if len(annotations) > 0 {
			t.Errorf("annotations %v", annotations)
		}
	}
}

func TestWebhooksAreReachable(t *testing.T) {
	found := render(t, "")
	service := get[*corev1.Service](t, found, "Service/"+webhook.ServiceName)
	if p := service.Spec.Ports[0]; len(service.Spec.Ports) != 1 || p.Port != 443 || p.TargetPort.String() != "webhooks" {
		t.Errorf("ports %+v", service.Spec.Ports)
	}
	if service.Spec.PublishNotReadyAddresses {
		t.Error("controllers without a certificate are asked")
	}
	container := get[*appsv1.Deployment](t, found, "Deployment/"+controllerName).Spec.Template.Spec.Containers[0]
	port := corev1.ContainerPort{Name: "webhooks", ContainerPort: webhook.ServerPort, Protocol: corev1.ProtocolTCP}
	if !slices.Contains(container.Ports, port) {
		t.Errorf("no %+v in %+v", port, container.Ports)
	}
}

// names lists the entries of the mutating configuration.
func names(t *testing.T, found objects) []string {
	t.Helper()
	var all []string
	for _, w := range get[*admissionv1.MutatingWebhookConfiguration](t, found, mutatingKey).Webhooks {
		all = append(all, w.Name)
	}
	return all
}

func TestWebhooksByClusterAndValues(t *testing.T) {
	all := names(t, render(t, ""))
	without := func(gone ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(gone, name) })
	}
	const inject, strip = "mpod.inferencecache.io", "mpodstamps.inferencecache.io"
	for name, tc := range map[string]struct {
		values, version string
		want            []string
		policy          bool
	}{
		"Kubernetes 1.30":                       {"", "v1.30.0", all, true},
		"a build of a vendor":                   {"", "v1.30.4-gke.100", all, true},
		"before the policy":                     {"", "v1.29.9", all, false},
		"before the policy, which is asked for": {"webhook: {stampPolicy: always}", "v1.29.9", all, true},
		"a policy that is not wanted":           {"webhook: {stampPolicy: never}", "v1.31.0", all, false},
		"before match conditions":               {"", "v1.27.3", without(strip), false},
		"no injection":                          {"injection: {enabled: false}", "v1.30.0", without(inject, strip), true},
	} {
		t.Run(name, func(t *testing.T) {
			found := renderFor(t, tc.values, tc.version)
			if diff := cmp.Diff(tc.want, names(t, found)); diff != "" {
				t.Errorf("entries: %s", diff)
			}
			if (found[policyKey] != nil) != tc.policy || (found[bindingKey] != nil) != tc.policy {
				t.Errorf("policy %t, binding %t, want %t", found[policyKey] != nil, found[bindingKey] != nil, tc.policy)
			}
		})
	}
}

func TestWebhookCertificatesOfCertManager(t *testing.T) {
	found := render(t, "webhook: {certMode: cert-manager}")
	const inject = "cert-manager.io/inject-ca-from"
	for _, object := range []metav1.Object{
		get[*admissionv1.MutatingWebhookConfiguration](t, found, mutatingKey),
		get[*admissionv1.ValidatingWebhookConfiguration](t, found, validatingKey),
	} {
		if got := object.GetAnnotations()[inject]; got != namespace+"/serving-cert" {
			t.Errorf("%s gets its authority from %q", object.GetName(), got)
		}
	}
	certificate := get[*unstructured.Unstructured](t, found, "Certificate/serving-cert").Object["spec"].(map[string]any)
	if certificate["secretName"] != "webhook-server-cert" {
		t.Errorf("the certificate goes to %v", certificate["secretName"])
	}
	want := []any{"webhook-service." + namespace + ".svc", "webhook-service." + namespace + ".svc.cluster.local"}
	if diff := cmp.Diff(want, certificate["dnsNames"]); diff != "" {
		t.Errorf("names: %s", diff)
	}
	issuer := certificate["issuerRef"].(map[string]any)
	if found["Issuer/selfsigned-issuer"] == nil || issuer["name"] != "selfsigned-issuer" {
		t.Errorf("issued by %v", issuer)
	}
	args := get[*appsv1.Deployment](t, found, "Deployment/"+controllerName).Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "--webhook-cert-mode=files") {
		t.Errorf("the controller writes bundles itself: %v", args)
	}
}
