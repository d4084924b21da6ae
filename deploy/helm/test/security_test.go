// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
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

func TestChartMakesAPairThatVerifies(t *testing.T) {
	secret := get[*corev1.Secret](t, render(t, ""), "Secret/inference-cache-server-tls")
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := pair.PrivateKey.(*ecdsa.PrivateKey); !ok {
		t.Errorf("key %T", pair.PrivateKey)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(secret.Data["ca.crt"]) {
		t.Fatal("ca.crt holds no certificate")
	}
	for _, service := range []string{"inference-cache-server", "inference-cache-server-headless"} {
		for _, domain := range []string{".svc", ".svc.cluster.local"} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: service + "." + namespace + domain}); err != nil {
				t.Error(err)
			}
		}
	}
	if len(secret.Data) != 3 {
		t.Errorf("the Secret holds %d files; the key of the authority must not be kept", len(secret.Data))
	}
}

func TestTLSModes(t *testing.T) {
	for mode, want := range map[string][]string{
		"chart":        {"Secret/inference-cache-server-tls"},
		"secret":       nil,
		"cert-manager": {"Certificate/inference-cache-server", "Certificate/inference-cache-server-ca", "Issuer/inference-cache-server-ca", "Issuer/selfsigned-issuer"},
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
				secure := strings.Contains(args, "--tls-cert-file=") || strings.Contains(args, "--server-ca-file=")
				if secure != (mode != "off") {
					t.Errorf("%s with %s", d.Name, args)
				}
				if strings.Contains(args, "--insecure") && mode != "off" {
					t.Errorf("%s gives up safety: %s", d.Name, args)
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
			for _, port := range []int{8080, 8081} {
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
