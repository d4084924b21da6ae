// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package main

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/inject"
	"github.com/inferencecache/inference-cache/internal/kubetest"
	"github.com/inferencecache/inference-cache/internal/testcert"
)

// A controller comes before everything it needs: it lives, is not ready before
// it can answer, and takes up its work as the rest appears.
func TestEnvtestControllerAnswersTheAPIServer(t *testing.T) {
	h := startHooked(t)
	definition := &unstructured.Unstructured{}
	text, err := os.ReadFile("../../deploy/crds/inferencecache.io_cachebackends.yaml")
	must(t, err)
	must(t, yaml.Unmarshal(text, &definition.Object))
	must(t, h.Client.Delete(t.Context(), definition.DeepCopy()))
	gone := schema.GroupVersionKind{Group: v1alpha1.Group, Version: "v1alpha1", Kind: "CacheBackend"}
	kubetest.Eventually(t, "the kind is gone", func() error {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gone)
		if err := h.Client.List(t.Context(), list); !apierrors.IsNotFound(err) {
			return fmt.Errorf("listing says %w", err)
		}
		return nil
	})
	before := goleak.IgnoreCurrent()
	s, _, stop := h.run(t, "--leader-elect", "--server-cert-mode=self")
	h.front.to(t, s.webhooks)
	kubetest.Eventually(t, "alive, and not ready for want of the kind", func() error {
		_, alive := page(t, s.health, "/healthz")
		if _, err := page(t, s.health, "/readyz/webhooks"); alive != nil || err != nil {
			return errors.Join(alive, err)
		}
		if _, err := page(t, s.health, "/readyz"); err == nil {
			return errors.New("ready")
		}
		return nil
	})
	must(t, h.Client.Create(t.Context(), definition))
	s.awaitReady(t)
	h.register(t, nil)
	kubetest.Eventually(t, "backends are checked", func() error {
		wrong := &v1alpha1.CacheBackend{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "wrong"}}
		wrong.Spec.Runtime = v1alpha1.RuntimeVLLM
		return kubetest.Refused(h.Client.Create(t.Context(), wrong, client.DryRunAll), "not supported; supported are")
	})
	h.backend(t, "team")
	h.awaitInjection(t, "team")

	t.Run("a second policy in a namespace is refused", func(t *testing.T) {
		policy := &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "first"}}
		must(t, h.Client.Create(t.Context(), policy))
		second := &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "second"}}
		if err := kubetest.Refused(h.Client.Create(t.Context(), second), "first"); err != nil {
			t.Error(err)
		}
	})
	t.Run("the publisher is a native sidecar that knows its servers", func(t *testing.T) {
		pod, err := h.inject(t.Context(), "team", true)
		must(t, err)
		sidecar := pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1]
		if sidecar.RestartPolicy == nil || *sidecar.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			t.Errorf("restart policy %v", sidecar.RestartPolicy)
		}
		for _, want := range []string{"--server=inference-cache-server.inference-cache-system.svc.cluster.local:9090", "--server-ca-file=" + inject.MountPath + "/ca.crt"} {
			if !slices.Contains(sidecar.Args, want) {
				t.Errorf("%s is not among %v", want, sidecar.Args)
			}
		}
	})
	t.Run("the Secrets hold what they should", h.testSecrets)
	t.Run("one page has all metrics", func(t *testing.T) {
		if _, err := h.inject(t.Context(), "team", false); err != nil { // dry runs are not counted
			t.Fatal(err)
		}
		kubetest.Eventually(t, "every metric", func() error {
			text, err := page(t, s.metrics, "/metrics")
			for _, want := range []string{
				`inferencecache_webhook_requests_total{reason="Invalid",result="denied",webhook="vcachepolicy"} 1`,
				`inferencecache_injection_total{reason="kv-events-config-missing",result="injected"} 1`, `inferencecache_build_info{`, `controller_runtime_reconcile_total{controller="serverca"`,
				`inferencecache_controller_server_ca_namespaces{state="current"} 1`, `inferencecache_tls_not_after_timestamp_seconds{listener="webhooks"} `,
			} {
				if !strings.Contains(text, want) {
					err = errors.Join(err, fmt.Errorf("no %s", want))
				}
			}
			return err
		})
	})
	t.Run("namespaces with a backend have the servers' authority", h.testCopies)
	stop()
	if _, err := page(t, s.health, "/healthz"); err == nil {
		t.Error("it listens after its end")
	}
	// The client library may leave this behind when its reader ends between
	// two events.
	if err := goleak.Find(before, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop")); err != nil {
		t.Error(err)
	}
}

func (h *hooked) testSecrets(t *testing.T) {
	servers := make([]string, 0, 4)
	for _, service := range []string{"inference-cache-server", "inference-cache-server-headless"} {
		servers = append(servers, service+".inference-cache-system.svc", service+".inference-cache-system.svc.cluster.local")
	}
	for name, tc := range map[string]struct {
		kind  corev1.SecretType
		keys  []string
		hosts []string
	}{
		controller.WebhookSecret: {corev1.SecretTypeTLS, []string{"ca.crt", "ca.key", "tls.crt", "tls.key"},
			[]string{"webhook-service.inference-cache-system.svc", "webhook-service.inference-cache-system.svc.cluster.local"}},
		controller.ServerSecret:    {corev1.SecretTypeTLS, []string{"ca.crt", "tls.crt", "tls.key"}, servers},
		controller.ServerKeySecret: {corev1.SecretTypeOpaque, []string{"ca.key"}, nil},
	} {
		secret := h.secret(t, name)
		if got := slices.Sorted(maps.Keys(secret.Data)); secret.Type != tc.kind || !slices.Equal(got, tc.keys) {
			t.Errorf("%s is a %s with %v, want %s with %v", name, secret.Type, got, tc.kind, tc.keys)
		}
		if tc.hosts == nil {
			continue
		}
		block, _ := pem.Decode(secret.Data["tls.crt"])
		leaf, err := x509.ParseCertificate(block.Bytes)
		must(t, err)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(secret.Data["ca.crt"])
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: tc.hosts[0]}); err != nil || !slices.Equal(leaf.DNSNames, tc.hosts) {
			t.Errorf("%s is for %v, %v", name, leaf.DNSNames, err)
		}
	}
}

// testCopies expects a backend in the namespace team.
func (h *hooked) testCopies(t *testing.T) {
	authority := func() string { return string(h.secret(t, controller.ServerSecret).Data["ca.crt"]) }
	key := func(namespace string) client.ObjectKey {
		return client.ObjectKey{Namespace: namespace, Name: inject.CAConfigMap}
	}
	await := func(what, namespace string, check func(*corev1.ConfigMap, error) bool) {
		t.Helper()
		kubetest.Eventually(t, what, func() error {
			copied := &corev1.ConfigMap{}
			err := h.Client.Get(t.Context(), key(namespace), copied)
			if check(copied, err) {
				return nil
			}
			return fmt.Errorf("there is %q, %w", copied.Data["ca.crt"], err)
		})
	}
	current := func(c *corev1.ConfigMap, err error) bool {
		return err == nil && maps.Equal(c.Data, map[string]string{"ca.crt": authority()})
	}
	await("the namespace has a copy", "team", current)
	edited := &corev1.ConfigMap{}
	must(t, h.Client.Get(t.Context(), key("team"), edited))
	edited.Data = map[string]string{"ca.crt": "nonsense", "more": "x"}
	must(t, h.Client.Update(t.Context(), edited))
	await("an edited copy is repaired", "team", current)
	must(t, h.Client.Delete(t.Context(), edited))
	await("a deleted copy is made anew", "team", current)

	secret := h.secret(t, controller.ServerSecret)
	another, err := os.ReadFile(testcert.NewAuthority(t).File)
	must(t, err)
	secret.Data["ca.crt"] = slices.Concat(another, secret.Data["ca.crt"])
	must(t, h.Client.Update(t.Context(), secret))
	await("a new authority is copied beside the old one", "team", current)

	h.Namespace(t, "other", nil)
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: inject.CAConfigMap}, Data: map[string]string{"ca.crt": "theirs"}}
	must(t, h.Client.Create(t.Context(), foreign))
	h.backend(t, "other")
	kubetest.Eventually(t, "an event about the ConfigMap of somebody else", func() error {
		var events eventsv1.EventList
		must(t, h.Client.List(t.Context(), &events, client.InNamespace("other")))
		for _, e := range events.Items {
			if e.Reason == controller.ReasonServerCAConflict && e.Regarding.Name == inject.CAConfigMap {
				return nil
			}
		}
		return errors.New("none")
	})
	await("which is left alone", "other", func(c *corev1.ConfigMap, err error) bool { return err == nil && c.Data["ca.crt"] == "theirs" })
	must(t, h.Client.Delete(t.Context(), foreign))
	await("and replaced once it is gone", "other", current)
	for _, namespace := range []string{"team", "other"} {
		must(t, h.Client.DeleteAllOf(t.Context(), &v1alpha1.CacheBackend{}, client.InNamespace(namespace)))
		await("the copy goes with the last backend", namespace, func(_ *corev1.ConfigMap, err error) bool { return apierrors.IsNotFound(err) })
	}
}

// Two controllers answer. When the leader dies the other goes on, becomes the
// leader, and changes the authority without one pod going by.
func TestEnvtestAdmissionOutlivesTheLeader(t *testing.T) {
	h := startHooked(t)
	h.register(t, nil)
	leader, args := h.arguments(t, "--leader-elect")
	process := exec.Command(os.Args[0], args...)
	process.Env = append(os.Environ(), asProgram+"=1")
	must(t, process.Start())
	killed := false
	kill := func() {
		if !killed {
			killed = true
			_ = process.Process.Kill()
			_ = process.Wait()
		}
	}
	t.Cleanup(kill)
	kubetest.Eventually(t, "somebody leads", func() error {
		return h.Client.Get(t.Context(), client.ObjectKey{Namespace: installNamespace, Name: controller.LeaderLock}, &coordinationv1.Lease{})
	})
	leader.awaitReady(t)
	other, _, _ := h.run(t, "--leader-elect")
	other.awaitReady(t)
	h.front.to(t, leader.webhooks)
	kubetest.Eventually(t, "backends are admitted", func() error {
		return h.Client.Create(t.Context(), &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"}}, client.DryRunAll)
	})
	h.backend(t, "team")
	h.awaitInjection(t, "team")
	h.front.to(t, other.webhooks)
	h.awaitInjection(t, "team")
	h.front.to(t, leader.webhooks, other.webhooks)
	h.awaitInjection(t, "team")

	// Without its key the authority cannot certify; the next leader replaces
	// it at once.
	before := h.secret(t, controller.WebhookSecret)
	broken := before.DeepCopy()
	delete(broken.Data, "ca.key")
	must(t, h.Client.Update(t.Context(), broken))
	kill()
	kubetest.Eventually(t, "the policy is admitted without the leader", func() error {
		return h.Client.Create(t.Context(), &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"}}, client.DryRunAll)
	})
	h.awaitInjection(t, "team")

	pods, deadline := 0, time.Now().Add(3*time.Minute)
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for after := 0; after < 20; pods++ {
		if time.Now().After(deadline) {
			t.Fatal("the certificate is still by the old authority")
		}
		h.front.cut(t)
		<-ticker.C
		if _, err := h.inject(t.Context(), "team", true); err != nil {
			t.Fatalf("pod %d: %v", pods, err)
		}
		if servesNew(t, other.webhooks, before.Data["ca.crt"]) {
			after++
		}
	}
	t.Logf("%d pods in a row were injected", pods)
	secret := h.secret(t, controller.WebhookSecret)
	if !strings.HasSuffix(string(secret.Data["ca.crt"]), string(before.Data["ca.crt"])) || len(secret.Data["ca.crt"]) <= len(before.Data["ca.crt"]) {
		t.Error("the old authority does not follow the new one")
	}
	for name, bundle := range h.bundles(t) {
		if string(bundle) != string(secret.Data["ca.crt"]) {
			t.Errorf("%s does not trust what the Secret says", name)
		}
	}
}

// Somebody else's certificate comes late and changes; nobody writes a Secret
// or a bundle. Metrics over TLS are for those who may get them.
func TestEnvtestCertificateFromFiles(t *testing.T) {
	h := startHooked(t)
	issuer := testcert.NewAuthority(t)
	authority, err := os.ReadFile(issuer.File)
	must(t, err)
	h.register(t, authority)
	dir := t.TempDir()
	s, _, _ := h.run(t, "--webhook-cert-mode=files", "--webhook-cert-dir="+dir, "--metrics-secure", "--enable-http2")
	h.front.to(t, s.webhooks)
	kubetest.Eventually(t, "alive", func() error { _, err := page(t, s.health, "/healthz"); return err })
	if _, err := page(t, s.health, "/readyz"); err == nil {
		t.Error("ready without a certificate")
	}
	put := func() {
		pair := issuer.Issue(t, "webhook-service."+installNamespace+".svc")
		testcert.Write(t, pair, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	}
	put()
	s.awaitReady(t)
	kubetest.Eventually(t, "backends are admitted", func() error {
		return h.Client.Create(t.Context(), &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"}}, client.DryRunAll)
	})
	h.backend(t, "team")
	h.awaitInjection(t, "team")
	before := handshake(t, s.webhooks, "h2")
	put()
	kubetest.Eventually(t, "the new certificate is served", func() error {
		if after := handshake(t, s.webhooks, "http/1.1"); after.Equal(before) {
			return errors.New("still the first one")
		}
		return nil
	})
	h.front.cut(t)
	h.awaitInjection(t, "team")
	h.testMetricsReaders(t, s)
	err = h.Client.Get(t.Context(), client.ObjectKey{Namespace: installNamespace, Name: controller.WebhookSecret}, &corev1.Secret{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the Secret: %v", err)
	}
	for name, bundle := range h.bundles(t) {
		if string(bundle) != string(authority) {
			t.Errorf("%s trusts another authority", name)
		}
	}
}
