// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

func itoa(n int32) string { return strconv.Itoa(int(n)) }

// TestChartMakesNoSecrets: what is rendered twice is the same, without a cluster
// too.
func TestChartMakesNoSecrets(t *testing.T) {
	for name, values := range variants {
		first, err := templates(t, values)
		if err != nil {
			t.Fatal(err)
		}
		second, err := templates(t, values)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("%s: two renderings differ: %s", name, diff)
		}
		for key := range render(t, values) {
			if strings.HasPrefix(key, "Secret/") {
				t.Errorf("%s: the chart renders %s", name, key)
			}
		}
	}
}

// TestControllerDoesNotWaitForWhatItIssues: the volume with the servers'
// authority holds the controller up only where somebody else issues it.
func TestControllerDoesNotWaitForWhatItIssues(t *testing.T) {
	for mode, wantOptional := range map[string]bool{"self": true, "secret": false, "cert-manager": false} {
		found := render(t, gatewayOn+"tls: {mode: "+mode+"}")
		for _, d := range found.deployments(t) {
			for _, v := range d.Spec.Template.Spec.Volumes {
				if v.Secret == nil || v.Secret.SecretName != "inference-cache-server-tls" {
					continue
				}
				optional := v.Secret.Optional != nil && *v.Secret.Optional
				if optional != (wantOptional && d.Name == controllerName) {
					t.Errorf("%s: the volume of %s is optional: %t", mode, d.Name, optional)
				}
			}
		}
	}
}

func TestTLSModes(t *testing.T) {
	for mode, want := range map[string][]string{
		"self":         nil,
		"secret":       nil,
		"cert-manager": {"Certificate/inference-cache-server", "Certificate/inference-cache-server-ca", "Issuer/inference-cache-server-ca", "Issuer/inference-cache-server-selfsigned"},
		"off":          nil,
	} {
		t.Run(mode, func(t *testing.T) {
			found := render(t, gatewayOn+"tls: {mode: \""+mode+"\"}")
			var objects []string
			for key := range found {
				kind, _, _ := strings.Cut(key, "/")
				if slices.Contains([]string{"Secret", "Certificate", "Issuer"}, kind) {
					objects = append(objects, key)
				}
			}
			slices.Sort(objects)
			if diff := cmp.Diff(want, objects); diff != "" {
				t.Error(diff)
			}
			for _, d := range found.deployments(t) {
				args := strings.Join(d.Spec.Template.Spec.Containers[0].Args, " ")
				secure := strings.Contains(args, "--tls-cert-file=/") || strings.Contains(args, "--server-ca-file=/") || strings.Contains(args, "--server-cert-mode=self")
				if secure != (mode != "off") {
					t.Errorf("%s with %s", d.Name, args)
				}
				if strings.Contains(strings.ReplaceAll(args, "--insecure-token-transport=false", ""), "--insecure") && mode != "off" {
					t.Errorf("%s gives up safety: %s", d.Name, args)
				}
				if issues := strings.Contains(args, "--server-cert-mode=self"); d.Name == controllerName && issues != (mode == "self") {
					t.Errorf("the controller with %s", args)
				}
			}
		})
	}
}

func TestServerAsksForCredentials(t *testing.T) {
	args := get[*appsv1.Deployment](t, render(t, ""), "Deployment/inference-cache-server").Spec.Template.Spec.Containers[0].Args
	for _, want := range []string{
		"--grpc-auth=required",
		"--allowed-controller-sa=system:serviceaccount:" + namespace + ":inference-cache-controller-manager",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("no %s in %v", want, args)
		}
	}
}

func TestReadersOfTenants(t *testing.T) {
	values := gatewayOn + "server: {tenantReaders: [{caller: \"system:serviceaccount:a:b\", tenants: [a, c]}]}"
	tenants := get[*corev1.ConfigMap](t, render(t, values), "ConfigMap/inference-cache-server-tenants").Data["tenants"]
	want := "# caller tenants\nsystem:serviceaccount:a:b a,c\nsystem:serviceaccount:" + namespace + ":inference-cache-gateway team-a\n"
	if diff := cmp.Diff(want, tenants); diff != "" {
		t.Error(diff)
	}
}

// admits says who reaches a port: "all", or the sources' labels.
func admits(policy *networkingv1.NetworkPolicy, port int) []string {
	var from []string
	for _, rule := range policy.Spec.Ingress {
		if !slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool { return p.Port.IntValue() == port }) {
			continue
		}
		if len(rule.From) == 0 {
			from = append(from, "all")
		}
		for _, peer := range rule.From {
			if peer.NamespaceSelector != nil {
				from = append(from, "namespaces "+labelText(peer.NamespaceSelector.MatchLabels))
			}
			if peer.PodSelector != nil {
				from = append(from, "pods "+labelText(peer.PodSelector.MatchLabels))
			}
		}
	}
	return from
}

func labelText(labels map[string]string) string {
	var all []string
	for key, value := range labels {
		all = append(all, key+"="+value)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

func TestNetworkPolicies(t *testing.T) {
	const server, controller = "NetworkPolicy/inference-cache-server-snapshot", "NetworkPolicy/inference-cache-controller"
	controllerPods := []string{"pods app.kubernetes.io/component=controller,app.kubernetes.io/name=inference-cache"}
	everyone := []string{"all"}
	type reach map[int][]string
	for name, tc := range map[string]struct {
		values string
		server reach
	}{
		"defaults": {"", reach{8080: everyone, 9090: everyone, 8081: controllerPods}},
		"restricted gRPC": {"networkPolicy: {restrictGRPC: true}", reach{
			8080: everyone, 8081: controllerPods,
			9090: {"namespaces inferencecache.io/clients=true", "pods app.kubernetes.io/name=inference-cache"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			found := render(t, tc.values)
			policy := get[*networkingv1.NetworkPolicy](t, found, server)
			for port, want := range tc.server {
				if diff := cmp.Diff(want, admits(policy, port)); diff != "" {
					t.Errorf("server, port %d: %s", port, diff)
				}
			}
			for _, port := range []int{8080, 8081, 9443} {
				if diff := cmp.Diff(everyone, admits(get[*networkingv1.NetworkPolicy](t, found, controller), port)); diff != "" {
					t.Errorf("controller, port %d: %s", port, diff)
				}
			}
		})
	}
	if found := render(t, "networkPolicy: {enabled: false}"); found[server] != nil || found[controller] != nil {
		t.Error("networkPolicy.enabled is false, and there are policies")
	}
}
