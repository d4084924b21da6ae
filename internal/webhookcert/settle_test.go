// SPDX-License-Identifier: Apache-2.0

package webhookcert_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/internal/testcert"
	"github.com/inferencecache/inference-cache/internal/webhookcert"
)

const day = 24 * time.Hour

// settling gives a world a keeper whose authorities need a minute.
func settling(t *testing.T, change ...func(*webhookcert.Options)) *world {
	t.Helper()
	w := newWorld(t)
	options := webhookcert.Options{
		Namespace: "ic", Name: secretName, Hosts: webhookcert.ServiceNames("webhook-service", "ic"), Now: func() time.Time { return w.now },
		Settle: time.Minute,
		Publish: func(_ context.Context, authorities []byte) error {
			if w.fault == nil {
				w.published = bytes.Clone(authorities)
			}
			return w.fault
		},
	}
	for _, f := range change {
		f(&options)
	}
	w.keeper = webhookcert.NewKeeper(w, options)
	return w
}

func TestNewAuthorityCertifiesOnlyOnceItHasSettled(t *testing.T) {
	w := settling(t)
	must(t, w.keeper.Check(t.Context()))
	first := w.leaf(t)
	secret := w.secret(t)
	delete(secret.Data, webhookcert.KeyAuthorityKey)
	must(t, w.Update(t.Context(), secret))

	w.now = w.now.Add(time.Hour)
	if w.keeper.Check(t.Context()) == nil {
		t.Error("a check in between does not say that there is more to do")
	}
	w.trusted(t)
	if !w.leaf(t).Equal(first) || bytes.Count(w.published, []byte("BEGIN")) != 2 {
		t.Error("the old certificate does not serve while both authorities are published")
	}
	w.now = w.now.Add(59 * time.Second)
	if w.keeper.Check(t.Context()) == nil || !w.leaf(t).Equal(first) {
		t.Error("the new authority certifies too early")
	}
	w.now = w.now.Add(time.Second)
	must(t, w.keeper.Check(t.Context()))
	w.trusted(t)
	if w.leaf(t).Equal(first) {
		t.Error("the new authority never certifies")
	}
}

func TestExpiringCertificateIsReplacedWithoutPublication(t *testing.T) {
	w := settling(t)
	must(t, w.keeper.Check(t.Context()))
	first := w.leaf(t)
	w.fault = errors.New("no configuration")
	w.now = first.NotAfter.Add(-31 * day)
	if w.keeper.Check(t.Context()) == nil || !w.leaf(t).Equal(first) {
		t.Error("a certificate that is good for a month was replaced by one that nobody may trust")
	}
	w.now = first.NotAfter.Add(-29 * day)
	if w.keeper.Check(t.Context()) == nil {
		t.Error("the failed publication was not told of")
	}
	if w.leaf(t).Equal(first) {
		t.Error("the certificate runs out")
	}
	w.trusted(t)
}

// A leader whose clock is ahead issues what nobody else takes yet.
func TestCertificateOfTheFutureIsReplacedAtOnce(t *testing.T) {
	for name, ahead := range map[string]func(*world){
		"with its authority": func(*world) {},
		"of an authority that is valid": func(w *world) {
			must(t, w.keeper.Check(t.Context()))
			secret := w.secret(t)
			secret.Data[corev1.TLSCertKey] = []byte("nothing")
			must(t, w.Update(t.Context(), secret))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := settling(t)
			ahead(w)
			right := w.now
			w.now = right.Add(2 * day)
			must(t, w.keeper.Check(t.Context()))
			w.now = right
			must(t, w.keeper.Check(t.Context()))
			w.trusted(t)
			w.lasts(t)
		})
	}
}

func TestAuthorityKeyInASecretOfItsOwn(t *testing.T) {
	apart := func(o *webhookcert.Options) { o.KeyName = "key" }
	keys := func(t *testing.T, w *world) *corev1.Secret {
		t.Helper()
		secret := &corev1.Secret{}
		must(t, w.Get(t.Context(), client.ObjectKey{Namespace: "ic", Name: "key"}, secret))
		return secret
	}
	for name, harm := range map[string]func(t *testing.T, w *world){
		"nothing":          func(*testing.T, *world) {},
		"the key is gone":  func(t *testing.T, w *world) { must(t, w.Delete(t.Context(), keys(t, w))) },
		"the pair is gone": func(t *testing.T, w *world) { must(t, w.Delete(t.Context(), w.secret(t))) },
		"only the key is new": func(t *testing.T, w *world) { // as a check leaves it that breaks off
			other := settling(t, apart)
			must(t, other.keeper.Check(t.Context()))
			secret := keys(t, w)
			secret.Data = keys(t, other).Data
			must(t, w.Update(t.Context(), secret))
		},
		"a key beside the pair": func(t *testing.T, w *world) {
			secret := w.secret(t)
			secret.Data[webhookcert.KeyAuthorityKey] = keys(t, w).Data[webhookcert.KeyAuthorityKey]
			must(t, w.Update(t.Context(), secret))
			must(t, w.Delete(t.Context(), keys(t, w)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := settling(t, apart)
			must(t, w.keeper.Check(t.Context()))
			harm(t, w)
			_ = w.keeper.Check(t.Context())
			w.now = w.now.Add(time.Minute)
			must(t, w.keeper.Check(t.Context()))
			w.trusted(t)
			if _, there := w.secret(t).Data[webhookcert.KeyAuthorityKey]; there {
				t.Error("the key of the authority is where servers mount it")
			}
			secret := keys(t, w)
			if len(secret.Data) != 1 || secret.Type != corev1.SecretTypeOpaque {
				t.Errorf("the Secret of the key is %s with %d members", secret.Type, len(secret.Data))
			}
			version := secret.ResourceVersion
			must(t, w.keeper.Check(t.Context()))
			if keys(t, w).ResourceVersion != version {
				t.Error("a check without need wrote the key")
			}
		})
	}
}

// What a chart made by itself goes on serving, and is trusted beside what
// follows it.
func TestPairOfSomebodyElseIsTakenOver(t *testing.T) {
	w := settling(t, func(o *webhookcert.Options) { o.KeyName = "key" })
	must(t, w.keeper.Check(t.Context()))
	first := w.leaf(t)
	must(t, w.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ic", Name: "key"}}))
	_ = w.keeper.Check(t.Context())
	w.trusted(t)
	if !w.leaf(t).Equal(first) || bytes.Count(w.published, []byte("BEGIN")) != 2 {
		t.Error("the pair that was there does not go on serving beside the new authority")
	}
}

func TestFilesComeLateAndChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		files := webhookcert.NewFiles(dir, webhookcert.SourceOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- files.Start(ctx) }()
		time.Sleep(time.Minute)
		if err := files.Ready(nil); !errors.Is(err, webhookcert.ErrNoCertificate) {
			t.Errorf("ready says %v without files", err)
		}
		certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
		key, cert := somePair(t, "a")
		must(t, os.WriteFile(certFile, cert, 0o600))
		time.Sleep(2 * time.Second)
		if files.Ready(nil) == nil {
			t.Error("ready without a key")
		}
		must(t, os.WriteFile(keyFile, key, 0o600))
		time.Sleep(2 * time.Second)
		pair, err := files.GetCertificate(nil)
		must(t, err)
		if !slices.Equal(pair.Leaf.DNSNames, []string{"a"}) {
			t.Errorf("the certificate is for %v", pair.Leaf.DNSNames)
		}
		key, cert = somePair(t, "b")
		must(t, os.WriteFile(keyFile, key, 0o600))
		must(t, os.WriteFile(certFile, cert, 0o600))
		time.Sleep(11 * time.Second)
		if pair, err = files.GetCertificate(nil); err != nil || !slices.Equal(pair.Leaf.DNSNames, []string{"b"}) {
			t.Errorf("the certificate is still for %v", pair.Leaf.DNSNames)
		}
		cancel()
		must(t, <-ended)
	})
}

func somePair(t *testing.T, name string) (key, cert []byte) {
	t.Helper()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "c"), filepath.Join(dir, "k")
	testcert.Write(t, testcert.NewAuthority(t).Issue(t, name), certFile, keyFile)
	var err error
	key, err = os.ReadFile(keyFile)
	must(t, err)
	cert, err = os.ReadFile(certFile)
	must(t, err)
	return key, cert
}

func TestAuthoritiesAreCertificatesAndNothingElse(t *testing.T) {
	key, cert := somePair(t, "a")
	got, err := webhookcert.Authorities(slices.Concat([]byte("who reads this?\n"), key, cert))
	must(t, err)
	if !bytes.Equal(got, cert) {
		t.Errorf("%q", got)
	}
	for name, text := range map[string][]byte{"nothing": nil, "a key": key, "text": []byte("ca")} {
		if got, err := webhookcert.Authorities(text); err == nil {
			t.Errorf("%s is %q", name, got)
		}
	}
}
