// SPDX-License-Identifier: Apache-2.0

package webhookcert

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
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
	// KeyName is the Secret of the authority's key, for a Secret that more
	// read than should certify. Default Name.
	KeyName string
	// Hosts are the names in the certificate.
	Hosts []string
	// Publish is called at every check.
	Publish Publisher
	// Interval is the time between two checks. Default 1 min.
	Interval time.Duration
	// Settle is how long a new authority must have been published before it
	// certifies anything, while the certificate in use serves. Default 0.
	Settle time.Duration
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

	// published are the authorities that were published last, settled when
	// they have been for long enough. Only Check uses them.
	published []byte
	settled   time.Time

	wake chan struct{}
}

// NewKeeper returns a keeper. The client must not cache.
func NewKeeper(c client.Client, o Options) *Keeper {
	if o.Interval <= 0 {
		o.Interval = time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Keeper{client: c, options: o, wake: make(chan struct{}, 1)}
}

// urgent is how long before its end a certificate is replaced even though its
// authority cannot be published.
const urgent = 30 * 24 * time.Hour

// errUnsettled means that a new authority is not relied on yet.
var errUnsettled = errors.New("a new authority is being published")

const (
	// retryAfter is the time to the next check after one that failed.
	retryAfter = 10 * time.Second
	// wakeDelay is the time from a Wake to its check: several are one.
	wakeDelay = time.Second
)

// Wake has Start check soon. It does not block.
func (k *Keeper) Wake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Start checks until ctx ends.
func (k *Keeper) Start(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	soon := true // the next check is at most wakeDelay away
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
			if !soon {
				soon = true
				timer.Reset(wakeDelay)
			}
			continue
		case <-timer.C:
		}
		soon = false
		next := k.options.Interval
		err := k.Check(ctx)
		switch {
		case errors.Is(err, errUnsettled):
			next = min(next, max(k.settled.Sub(k.options.Now()), time.Second))
		case err != nil && ctx.Err() == nil:
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
	secret, err := k.read(ctx, k.options.Name, corev1.SecretTypeTLS)
	if err != nil {
		return err
	}
	keys := secret
	if k.options.KeyName != "" && k.options.KeyName != k.options.Name {
		if keys, err = k.read(ctx, k.options.KeyName, corev1.SecretTypeOpaque); err != nil {
			return err
		}
	}
	now := k.options.Now()
	certs, signer, usable := authorities(secret, keys, now)
	if !usable || spent(signer.cert, now) {
		if certs, signer, err = k.addAuthority(ctx, secret, keys, certs, now); err != nil {
			return err
		}
	}
	unpublished := k.publish(ctx, bundle(certs), now)
	switch {
	case k.leafServes(secret, signer, now):
		return unpublished
	case unpublished != nil && k.leafValid(secret, certs, now, now.Add(urgent)):
		return unpublished
	case unpublished == nil && now.Before(k.settled) && k.leafValid(secret, certs, now, now.Add(k.options.Settle)):
		return errUnsettled
	}
	cert, key, err := newLeaf(signer, k.options.Hosts, now)
	if err != nil {
		return err
	}
	secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey] = cert, key
	k.options.Logger.Info("issued a certificate", "secret", k.options.Name)
	return errors.Join(unpublished, k.write(ctx, secret))
}

func (k *Keeper) publish(ctx context.Context, authorities []byte, now time.Time) error {
	if err := k.options.Publish(ctx, authorities); err != nil {
		return fmt.Errorf("publish the authorities: %w", err)
	}
	if !bytes.Equal(k.published, authorities) {
		k.published, k.settled = authorities, now.Add(k.options.Settle)
	}
	return nil
}

// leafValid says whether the certificate in use can serve until a time: it is
// by an authority that counts.
func (k *Keeper) leafValid(secret *corev1.Secret, certs []*x509.Certificate, now, until time.Time) bool {
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil || early(pair.Leaf, now) || !until.Before(pair.Leaf.NotAfter) || !slices.Equal(pair.Leaf.DNSNames, k.options.Hosts) {
		return false
	}
	return slices.ContainsFunc(certs, func(c *x509.Certificate) bool { return pair.Leaf.CheckSignatureFrom(c) == nil })
}

// read returns a Secret, without a version when there is none yet.
func (k *Keeper) read(ctx context.Context, name string, kind corev1.SecretType) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := k.client.Get(ctx, client.ObjectKey{Namespace: k.options.Namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		secret.ObjectMeta = metav1.ObjectMeta{Namespace: k.options.Namespace, Name: name}
		secret.Type = kind
	} else if err != nil {
		return nil, fmt.Errorf("read the Secret %s: %w", name, err)
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	return secret, nil
}

// write stores a Secret; with somebody else's change in between it fails, and
// the next check starts from that.
func (k *Keeper) write(ctx context.Context, secret *corev1.Secret) error {
	var err error
	if secret.ResourceVersion != "" {
		err = k.client.Update(ctx, secret)
	} else {
		err = k.client.Create(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("write the Secret %s: %w", secret.Name, err)
	}
	return nil
}

// authorities reads the authorities that still count, newest first, and the
// newest with its key.
func authorities(secret, keys *corev1.Secret, now time.Time) (certs []*x509.Certificate, newest *authority, usable bool) {
	certs, err := parseBundle(secret.Data[KeyAuthorities])
	if err != nil {
		return nil, nil, false
	}
	first := certs[0]
	certs = slices.DeleteFunc(certs, func(c *x509.Certificate) bool { return !c.IsCA || now.After(c.NotAfter) })
	key, err := parseKey(keys.Data[KeyAuthorityKey])
	if err != nil || len(certs) == 0 || certs[0] != first || early(first, now) {
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
func (k *Keeper) addAuthority(ctx context.Context, secret, keys *corev1.Secret, older []*x509.Certificate, now time.Time) ([]*x509.Certificate, *authority, error) {
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
	secret.Data[KeyAuthorities], keys.Data[KeyAuthorityKey] = bundle(certs), key
	a := &authority{certs[0], signer}
	if _, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err != nil {
		if secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey], err = newLeaf(a, k.options.Hosts, now); err != nil {
			return nil, nil, err
		}
	}
	k.options.Logger.Info("created an authority", "secret", k.options.Name, "older", len(older))
	// The key goes first: without its authority it is made anew.
	if keys != secret {
		delete(secret.Data, KeyAuthorityKey)
		if err := k.write(ctx, keys); err != nil {
			return nil, nil, err
		}
	}
	return certs, a, k.write(ctx, secret)
}

// leafServes says whether the certificate is by the newest authority, for the
// right names, and not spent.
func (k *Keeper) leafServes(secret *corev1.Secret, signer *authority, now time.Time) bool {
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil || early(pair.Leaf, now) || spent(pair.Leaf, now) || pair.Leaf.CheckSignatureFrom(signer.cert) != nil {
		return false
	}
	return slices.Equal(pair.Leaf.DNSNames, k.options.Hosts) && bytes.Equal(pair.Leaf.RawIssuer, signer.cert.RawSubject)
}
