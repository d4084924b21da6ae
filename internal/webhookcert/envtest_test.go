// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhookcert_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/kubetest"
	"github.com/inferencecache/inference-cache/internal/webhook"
	"github.com/inferencecache/inference-cache/internal/webhookcert"
)

// serve runs the webhooks with the certificate of a source.
func serve(t *testing.T, cluster *kubetest.Cluster, source *webhookcert.Source) (url string) {
	t.Helper()
	handlers, err := webhook.Handlers(cluster.Scheme, webhook.Options{Reader: cluster.Client})
	must(t, err)
	mux := http.NewServeMux()
	for path, handler := range handlers {
		mux.Handle(path, handler)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	// Every call is a new handshake, so that each meets the certificate of its
	// time.
	server.SetKeepAlivesEnabled(false)
	ended := make(chan error, 1)
	go func() {
		ended <- server.Serve(tls.NewListener(listener, &tls.Config{GetCertificate: source.GetCertificate, MinVersion: tls.VersionTLS12}))
	}()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	_, port, err := net.SplitHostPort(listener.Addr().String())
	must(t, err)
	return "https://localhost:" + port
}

func TestEnvtestCertificates(t *testing.T) {
	cluster := kubetest.Start(t, "../../deploy/crds")
	cluster.Namespace(t, "ic", nil)
	cluster.Namespace(t, "team", nil)
	// The authority is as old as it may get, and its newest certificate young.
	const month = 365 * 24 * time.Hour / 12
	today := time.Now()
	now := today.Add(-41 * month)
	clock := func() time.Time { return now }
	keeper := webhookcert.NewKeeper(cluster.Client, webhookcert.Options{
		Namespace: "ic", Name: secretName, Hosts: append(webhookcert.ServiceNames("webhook-service", "ic"), "localhost"), Now: clock,
		Publish: webhookcert.IntoWebhooks(cluster.Client, webhook.MutatingName, webhook.ValidatingName),
	})
	source := webhookcert.NewSource(cluster.Client, webhookcert.SourceOptions{Namespace: "ic", Name: secretName, Now: clock})
	if keeper.Check(t.Context()) == nil {
		t.Error("published before there are configurations")
	}
	now = today.Add(-2 * month)
	if keeper.Check(t.Context()) == nil {
		t.Error("published before there are configurations")
	}
	registered := webhook.Registration(webhook.RegistrationOptions{Namespace: "ic", URL: serve(t, cluster, source)})
	must(t, cluster.Client.Create(t.Context(), registered.Mutating))
	must(t, cluster.Client.Create(t.Context(), registered.Validating))

	// asked says whether the API server reaches the webhooks: they know a rule
	// that the schema does not.
	asked := func(t *testing.T) {
		t.Helper()
		kubetest.Eventually(t, "webhooks trusted", func() error {
			tenant := &v1alpha1.CacheTenant{ObjectMeta: metav1.ObjectMeta{Name: "ct", Namespace: "team"}, Spec: v1alpha1.CacheTenantSpec{TenantID: "inferencecache.io/probe"}}
			return kubetest.Refused(cluster.Client.Create(t.Context(), tenant, client.DryRunAll), "is reserved")
		})
	}
	must(t, keeper.Check(t.Context()))
	must(t, source.Load(t.Context()))
	asked(t)

	t.Run("a bundle that was overwritten is repaired", func(t *testing.T) {
		configuration := &admissionv1.ValidatingWebhookConfiguration{}
		must(t, cluster.Client.Get(t.Context(), client.ObjectKey{Name: webhook.ValidatingName}, configuration))
		want := configuration.Webhooks[0].ClientConfig.CABundle
		for i := range configuration.Webhooks {
			configuration.Webhooks[i].ClientConfig.CABundle = nil
		}
		must(t, cluster.Client.Update(t.Context(), configuration))
		must(t, keeper.Check(t.Context()))
		must(t, cluster.Client.Get(t.Context(), client.ObjectKey{Name: webhook.ValidatingName}, configuration))
		if len(want) == 0 || !bytes.Equal(configuration.Webhooks[0].ClientConfig.CABundle, want) {
			t.Error("the bundle is not what it was")
		}
		asked(t)
	})
	t.Run("a new authority is trusted before it is used", func(t *testing.T) {
		before, _ := source.GetCertificate(nil)
		now = today
		must(t, keeper.Check(t.Context()))
		asked(t) // with the certificate of the old authority
		must(t, source.Load(t.Context()))
		if after, _ := source.GetCertificate(nil); bytes.Equal(after.Leaf.RawIssuer, before.Leaf.RawIssuer) {
			t.Error("the certificate is by the old authority")
		}
		asked(t)
	})
}

// TestEnvtestBundlesAreRepairedAtOnce: long before the next check of its own,
// the keeper brings back what an upgrade or somebody else took away.
func TestEnvtestBundlesAreRepairedAtOnce(t *testing.T) {
	cluster := kubetest.Start(t, "../../deploy/crds")
	cluster.Namespace(t, "ic", nil)
	registered := webhook.Registration(webhook.RegistrationOptions{Namespace: "ic"})
	must(t, cluster.Client.Create(t.Context(), registered.Mutating))
	must(t, cluster.Client.Create(t.Context(), registered.Validating))
	keeper := webhookcert.NewKeeper(cluster.Client, webhookcert.Options{
		Namespace: "ic", Name: secretName, Hosts: webhookcert.ServiceNames("webhook-service", "ic"), Interval: time.Hour,
		Publish: webhookcert.IntoWebhooks(cluster.Client, webhook.MutatingName, webhook.ValidatingName),
	})
	watching, err := client.NewWithWatch(cluster.Config, client.Options{Scheme: cluster.Scheme})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- keeper.Start(ctx) }()
	go func() {
		ended <- webhookcert.NewWatch(watching, webhook.MutatingName, webhook.ValidatingName, keeper.Wake, nil).Start(ctx)
	}()
	trusted := func(what string) {
		t.Helper()
		kubetest.Eventually(t, what, func() error {
			m, v := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
			if err := errors.Join(
				cluster.Client.Get(t.Context(), client.ObjectKey{Name: webhook.MutatingName}, m),
				cluster.Client.Get(t.Context(), client.ObjectKey{Name: webhook.ValidatingName}, v),
			); err != nil {
				return err
			}
			for _, w := range m.Webhooks {
				if len(w.ClientConfig.CABundle) == 0 {
					return errors.New(w.Name + " has no bundle")
				}
			}
			for _, w := range v.Webhooks {
				if len(w.ClientConfig.CABundle) == 0 {
					return errors.New(w.Name + " has no bundle")
				}
			}
			return nil
		})
	}
	trusted("first bundles")
	validating := &admissionv1.ValidatingWebhookConfiguration{}
	must(t, cluster.Client.Get(t.Context(), client.ObjectKey{Name: webhook.ValidatingName}, validating))
	for i := range validating.Webhooks {
		validating.Webhooks[i].ClientConfig.CABundle = nil
	}
	must(t, cluster.Client.Update(t.Context(), validating))
	trusted("bundles that were taken away")
	must(t, cluster.Client.Delete(t.Context(), registered.Mutating))
	again := webhook.Registration(webhook.RegistrationOptions{Namespace: "ic"})
	must(t, cluster.Client.Create(t.Context(), again.Mutating))
	trusted("bundles of a configuration that is new")
	cancel()
	must(t, errors.Join(<-ended, <-ended))
}
