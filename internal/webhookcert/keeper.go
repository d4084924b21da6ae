// SPDX-License-Identifier: Apache-2.0

package webhookcert

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Keys of the Secret: the authorities that count, newest first, the key of the
// newest, and the certificate with its key.
const (
	KeyAuthorities  = "ca.crt"
	KeyAuthorityKey = "ca.key"
)

// Publisher makes authorities, PEM, trusted wherever they must be. It returns
// nil only when they are.
type Publisher func(ctx context.Context, authorities []byte) error

// Options of a Keeper. Namespace, Name, Hosts and Publish are required.
type Options struct {
	// Namespace and Name are the Secret's.
	Namespace, Name string
	// Hosts are the names in the certificate.
	Hosts []string
	// Publish is called at every check.
	Publish Publisher
	// Interval is the time between two checks. Default 5 min.
	Interval time.Duration
	// Now is the time. Default time.Now.
	Now func() time.Time
	// Logger is silent when nil.
	Logger *slog.Logger
}

// Keeper keeps a Secret and what trusts it in order. One Keeper works at a
// time.
type Keeper struct {
	client  client.Client
	options Options
}

// NewKeeper returns a keeper. The client must not cache.
func NewKeeper(c client.Client, o Options) *Keeper {
	if o.Interval <= 0 {
		o.Interval = 5 * time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Keeper{c, o}
}

// retryAfter is the time to the next check after one that failed.
const retryAfter = 10 * time.Second

// Start checks until ctx ends.
func (k *Keeper) Start(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		next := k.options.Interval
		if err := k.Check(ctx); err != nil && ctx.Err() == nil {
			k.options.Logger.Error("certificate check failed", "secret", k.options.Name, "error", err)
			next = min(next, retryAfter)
		}
		timer.Reset(next)
	}
}

// NeedLeaderElection says that only the elected leader runs a Keeper.
func (k *Keeper) NeedLeaderElection() bool { return true }

// Check creates, renews and publishes what has to be. Each step is stored
// before the next, so that a check that breaks off is taken up by another.
func (k *Keeper) Check(ctx context.Context) error {
	secret, found, err := k.read(ctx)
	if err != nil {
		return err
	}
	now := k.options.Now()
	certs, signer, usable := k.authorities(secret, now)
	if !usable || spent(signer.cert, now) {
		if certs, signer, err = k.addAuthority(ctx, secret, found, certs, now); err != nil {
			return err
		}
	}
	if err := k.options.Publish(ctx, bundle(certs)); err != nil {
		return fmt.Errorf("publish the authorities: %w", err)
	}
	if k.leafServes(secret, signer, now) {
		return nil
	}
	cert, key, err := newLeaf(signer, k.options.Hosts, now)
	if err != nil {
		return err
	}
	secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey] = cert, key
	k.options.Logger.Info("issued a certificate", "secret", k.options.Name)
	return k.write(ctx, secret, true)
}

func (k *Keeper) read(ctx context.Context) (secret *corev1.Secret, found bool, err error) {
	secret = &corev1.Secret{}
	err = k.client.Get(ctx, client.ObjectKey{Namespace: k.options.Namespace, Name: k.options.Name}, secret)
	if apierrors.IsNotFound(err) {
		secret.ObjectMeta = metav1.ObjectMeta{Namespace: k.options.Namespace, Name: k.options.Name}
		secret.Type = corev1.SecretTypeTLS
	} else if err != nil {
		return nil, false, fmt.Errorf("read the Secret %s: %w", k.options.Name, err)
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	return secret, err == nil, nil
}

// write stores the Secret; with somebody else's change in between it fails,
// and the next check starts from that.
func (k *Keeper) write(ctx context.Context, secret *corev1.Secret, found bool) error {
	var err error
	if found {
		err = k.client.Update(ctx, secret)
	} else {
		err = k.client.Create(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("write the Secret %s: %w", k.options.Name, err)
	}
	return nil
}

// authorities reads the authorities that still count, newest first, and the
// newest with its key.
func (k *Keeper) authorities(secret *corev1.Secret, now time.Time) (certs []*x509.Certificate, newest *authority, usable bool) {
	certs, err := parseBundle(secret.Data[KeyAuthorities])
	if err != nil {
		return nil, nil, false
	}
	first := certs[0]
	certs = slices.DeleteFunc(certs, func(c *x509.Certificate) bool { return !c.IsCA || now.After(c.NotAfter) })
	key, err := parseKey(secret.Data[KeyAuthorityKey])
	if err != nil || len(certs) == 0 || certs[0] != first {
		return certs, nil, false
	}
	if public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(first.PublicKey) {
		return certs, nil, false
	}
	return certs, &authority{first, key}, true
}

// addAuthority puts a new authority before the older ones and stores both. A
// Secret without a certificate that serves gets one at once, since nothing
// rests on it yet.
func (k *Keeper) addAuthority(ctx context.Context, secret *corev1.Secret, found bool, older []*x509.Certificate, now time.Time) ([]*x509.Certificate, *authority, error) {
	cert, key, err := newAuthority(now)
	if err != nil {
		return nil, nil, err
	}
	parsed, err := parseBundle(cert)
	if err != nil {
		return nil, nil, err
	}
	signer, err := parseKey(key)
	if err != nil {
		return nil, nil, err
	}
	certs := append(parsed, older...)
	secret.Data[KeyAuthorities], secret.Data[KeyAuthorityKey] = bundle(certs), key
	a := &authority{certs[0], signer}
	if _, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err != nil {
		if secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey], err = newLeaf(a, k.options.Hosts, now); err != nil {
			return nil, nil, err
		}
	}
	k.options.Logger.Info("created an authority", "secret", k.options.Name, "older", len(older))
	return certs, a, k.write(ctx, secret, found)
}

// leafServes says whether the certificate is by the newest authority, for the
// right names, and not spent.
func (k *Keeper) leafServes(secret *corev1.Secret, signer *authority, now time.Time) bool {
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil || spent(pair.Leaf, now) || pair.Leaf.CheckSignatureFrom(signer.cert) != nil {
		return false
	}
	return slices.Equal(pair.Leaf.DNSNames, k.options.Hosts) && bytes.Equal(pair.Leaf.RawIssuer, signer.cert.RawSubject)
}
