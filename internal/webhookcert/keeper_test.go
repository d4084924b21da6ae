// SPDX-License-Identifier: Apache-2.0

package webhookcert_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/inferencecache/inference-cache/internal/webhookcert"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secretName = "webhook-server-cert"

// world is a cluster, a clock and what was published last.
type world struct {
	client.Client
	keeper    *webhookcert.Keeper
	source    *webhookcert.Source
	now       time.Time
	published []byte
	fault     error // of the next publications
}

func newWorld(t *testing.T) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	w := &world{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	clock := func() time.Time { return w.now }
	w.keeper = webhookcert.NewKeeper(w, webhookcert.Options{
		Namespace: "ic", Name: secretName, Hosts: webhookcert.ServiceNames("webhook-service", "ic"), Now: clock,
		Publish: func(_ context.Context, authorities []byte) error {
			if w.fault == nil {
				w.published = bytes.Clone(authorities)
			}
			return w.fault
		},
	})
	w.source = webhookcert.NewSource(w, webhookcert.SourceOptions{Namespace: "ic", Name: secretName, Now: clock})
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	must(t, w.Get(t.Context(), client.ObjectKey{Namespace: "ic", Name: secretName}, secret))
	return secret
}

// leaf is the certificate that replicas serve.
func (w *world) leaf(t *testing.T) *x509.Certificate {
	t.Helper()
	must(t, w.source.Load(t.Context()))
	must(t, w.source.Ready(nil))
	pair, err := w.source.GetCertificate(nil)
	must(t, err)
	return pair.Leaf
}

// trusted checks what the API server would.
func (w *world) trusted(t *testing.T) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.published)
	if _, err := w.leaf(t).Verify(x509.VerifyOptions{Roots: roots, DNSName: "webhook-service.ic.svc", CurrentTime: w.now}); err != nil {
		t.Errorf("%s: the API server does not trust the webhook: %v", w.now.Format(time.DateOnly), err)
	}
}

// lasts sees that another check has no reason to write the Secret.
func (w *world) lasts(t *testing.T) {
	t.Helper()
	before := w.secret(t)
	must(t, w.keeper.Check(t.Context()))
	if w.secret(t).ResourceVersion != before.ResourceVersion {
		t.Error("a check without need wrote the Secret")
	}
}

func TestFirstCertificate(t *testing.T) {
	w := newWorld(t)
	if err := w.source.Load(t.Context()); err == nil {
		t.Error("a certificate was loaded before there is one")
	}
	if err := w.source.Ready(nil); !errors.Is(err, webhookcert.ErrNoCertificate) {
		t.Errorf("ready says %v without a certificate", err)
	}
	must(t, w.keeper.Check(t.Context()))
	w.trusted(t)
	leaf := w.leaf(t)
	if got := leaf.NotAfter.Sub(w.now); got != 365*24*time.Hour {
		t.Errorf("the certificate lives %s", got)
	}
	if key, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		t.Errorf("the key is a %T", leaf.PublicKey)
	}
	want := []string{"webhook-service.ic.svc", "webhook-service.ic.svc.cluster.local"}
	if !slices.Equal(leaf.DNSNames, want) || leaf.IsCA {
		t.Errorf("the certificate is for %v, authority %t", leaf.DNSNames, leaf.IsCA)
	}
	w.lasts(t)
}

// Over 12 years of checks every other week there is no moment at which the certificate
// served is not trusted, whichever publications fail.
func TestRotationNeverBreaksTrust(t *testing.T) {
	for name, fails := range map[string]func(step int) bool{
		"every publication succeeds":   func(int) bool { return false },
		"every third one fails":        func(step int) bool { return step%3 == 1 },
		"a quarter of each year fails": func(step int) bool { return step > 0 && step%26 < 6 },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			leaves, authorities := map[string]bool{}, map[string]bool{}
			for step := range 12 * 26 {
				if w.fault = nil; fails(step) {
					w.fault = errors.New("the API server is away")
				}
				if err := w.keeper.Check(t.Context()); (err != nil) != (w.fault != nil) {
					t.Fatal(err)
				}
				w.trusted(t)
				leaf := w.leaf(t)
				leaves[leaf.SerialNumber.String()], authorities[string(leaf.RawIssuer)] = true, true
				w.now = w.now.Add(14 * 24 * time.Hour)
			}
			if len(leaves) < 17 || len(leaves) > 24 || len(authorities) < 3 || len(authorities) > 5 {
				t.Errorf("%d certificates of %d authorities in 12 years", len(leaves), len(authorities))
			}
			if count := bytes.Count(w.published, []byte("BEGIN")); count > 3 {
				t.Errorf("%d authorities are still trusted", count)
			}
		})
	}
}

func TestRepairs(t *testing.T) {
	for name, harm := range map[string]func(*corev1.Secret){
		"no certificate":           func(s *corev1.Secret) { delete(s.Data, corev1.TLSCertKey) },
		"another key":              func(s *corev1.Secret) { s.Data[corev1.TLSPrivateKeyKey] = s.Data[webhookcert.KeyAuthorityKey] },
		"no authority":             func(s *corev1.Secret) { delete(s.Data, webhookcert.KeyAuthorities) },
		"an authority without key": func(s *corev1.Secret) { delete(s.Data, webhookcert.KeyAuthorityKey) },
		"another authority's key":  func(s *corev1.Secret) { s.Data[webhookcert.KeyAuthorityKey] = s.Data[corev1.TLSPrivateKeyKey] },
		"nonsense": func(s *corev1.Secret) {
			s.Data[webhookcert.KeyAuthorities] = []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
		},
		"nothing": func(s *corev1.Secret) { s.Data = nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			must(t, w.keeper.Check(t.Context()))
			secret := w.secret(t)
			harm(secret)
			must(t, w.Update(t.Context(), secret))
			must(t, w.keeper.Check(t.Context()))
			w.trusted(t)
			w.lasts(t)
		})
	}
}

func TestOtherHostsGetAnotherCertificate(t *testing.T) {
	w := newWorld(t)
	must(t, w.keeper.Check(t.Context()))
	moved := webhookcert.NewKeeper(w, webhookcert.Options{
		Namespace: "ic", Name: secretName, Hosts: []string{"other.ic.svc"}, Now: func() time.Time { return w.now },
		Publish: func(context.Context, []byte) error { return nil },
	})
	must(t, moved.Check(t.Context()))
	if got := w.leaf(t).DNSNames; !slices.Equal(got, []string{"other.ic.svc"}) {
		t.Errorf("the certificate is for %v", got)
	}
}

func TestSourceIsNotReadyWithASpentCertificate(t *testing.T) {
	w := newWorld(t)
	must(t, w.keeper.Check(t.Context()))
	w.leaf(t)
	w.now = w.now.Add(366 * 24 * time.Hour)
	if err := w.source.Ready(nil); !errors.Is(err, webhookcert.ErrNoCertificate) {
		t.Errorf("ready says %v with a certificate that has expired", err)
	}
}

func TestSourceKeepsWhatItHas(t *testing.T) {
	w := newWorld(t)
	must(t, w.keeper.Check(t.Context()))
	want := w.leaf(t)
	secret := w.secret(t)
	secret.Data[corev1.TLSCertKey] = []byte("nonsense")
	must(t, w.Update(t.Context(), secret))
	if w.source.Load(t.Context()) == nil {
		t.Error("nonsense was loaded")
	}
	if pair, err := w.source.GetCertificate(&tls.ClientHelloInfo{}); err != nil || !pair.Leaf.Equal(want) {
		t.Errorf("the certificate in use is gone: %v", err)
	}
}

func TestKeeperAndSourceWorkByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		var published atomic.Int32
		keeper := webhookcert.NewKeeper(w, webhookcert.Options{
			Namespace: "ic", Name: secretName, Hosts: []string{"a.ic.svc"},
			Publish: func(context.Context, []byte) error { published.Add(1); return nil },
		})
		source := webhookcert.NewSource(w, webhookcert.SourceOptions{Namespace: "ic", Name: secretName})
		ended := make(chan error, 2)
		go func() { ended <- keeper.Start(ctx) }()
		go func() { ended <- source.Start(ctx) }()
		time.Sleep(11 * time.Second)
		must(t, source.Ready(nil))
		must(t, w.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ic", Name: secretName}}))
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := published.Load(); got != 2 {
			t.Errorf("published %d times in a minute and a bit, want 2", got)
		}
		must(t, w.Get(ctx, client.ObjectKey{Namespace: "ic", Name: secretName}, new(corev1.Secret)))
		cancel()
		must(t, errors.Join(<-ended, <-ended))
	})
}

func TestKeeperWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		var published atomic.Int32
		keeper := webhookcert.NewKeeper(w, webhookcert.Options{
			Namespace: "ic", Name: secretName, Hosts: []string{"a.ic.svc"}, Interval: time.Hour,
			Publish: func(context.Context, []byte) error { published.Add(1); return nil },
		})
		ended := make(chan error, 1)
		go func() { ended <- keeper.Start(ctx) }()
		synctest.Wait()
		// However many there are, and as long as they come, there is a check.
		for range 25 {
			keeper.Wake()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		if got := published.Load(); got != 4 {
			t.Errorf("published %d times, want the first and three for 2.5 seconds of wakes", got)
		}
		cancel()
		must(t, <-ended)
	})
}

func TestWebhooksAreRepaired(t *testing.T) {
	w := newWorld(t)
	publish := webhookcert.IntoWebhooks(w, "m", "v")
	if publish(t.Context(), []byte("ca")) == nil {
		t.Error("published into configurations that are missing")
	}
	mutating := &admissionv1.MutatingWebhookConfiguration{Webhooks: []admissionv1.MutatingWebhook{{Name: "a"}, {Name: "b"}}}
	validating := &admissionv1.ValidatingWebhookConfiguration{Webhooks: []admissionv1.ValidatingWebhook{{Name: "c"}}}
	mutating.Name, validating.Name = "m", "v"
	must(t, w.Create(t.Context(), mutating))
	must(t, w.Create(t.Context(), validating))
	must(t, publish(t.Context(), []byte("ca")))
	read := func() (versions []string) {
		for _, o := range []client.Object{mutating, validating} {
			must(t, w.Get(t.Context(), client.ObjectKeyFromObject(o), o))
			versions = append(versions, o.GetResourceVersion())
		}
		return versions
	}
	before := read()
	for _, got := range [][]byte{mutating.Webhooks[0].ClientConfig.CABundle, mutating.Webhooks[1].ClientConfig.CABundle, validating.Webhooks[0].ClientConfig.CABundle} {
		if string(got) != "ca" {
			t.Errorf("the bundle is %q", got)
		}
	}
	must(t, publish(t.Context(), []byte("ca")))
	if !slices.Equal(read(), before) {
		t.Error("a repair without need wrote")
	}
}
