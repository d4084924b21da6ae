// SPDX-License-Identifier: Apache-2.0

package webhookcert

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrNoCertificate marks a replica that has nothing to serve with yet.
var ErrNoCertificate = errors.New("no valid certificate yet")

// awaiting is the time between two looks while there is no certificate.
const awaiting = time.Second

// Certificates are what handshakes are made with: a Source or Files.
type Certificates interface {
	// GetCertificate is for tls.Config.
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Ready is a readiness check: nil with a certificate that is valid now.
	Ready(*http.Request) error
	// Start follows where the certificate comes from until ctx ends.
	Start(context.Context) error
	// NeedLeaderElection says that every replica follows it.
	NeedLeaderElection() bool
}

var (
	_ Certificates = (*Source)(nil)
	_ Certificates = (*Files)(nil)
)

// SourceOptions of a Source. Namespace and Name are required.
type SourceOptions struct {
	// Namespace and Name are the Secret's.
	Namespace, Name string
	// Interval is the time between two looks at it, at most 1 s while there is
	// no certificate. Default 10 s.
	Interval time.Duration
	// Now is the time. Default time.Now.
	Now func() time.Time
	// Logger is silent when nil.
	Logger *slog.Logger
}

// Source is the certificate of a Secret for handshakes. It is safe for
// concurrent use.
type Source struct {
	follower
	reader client.Reader
}

// NewSource returns a source without a certificate. The reader must not cache.
func NewSource(reader client.Reader, o SourceOptions) *Source {
	return &Source{newFollower(o), reader}
}

// Start follows the Secret until ctx ends. While the Secret cannot be used,
// the last certificate stays in use.
func (s *Source) Start(ctx context.Context) error { return s.follow(ctx, s.options.Name, s.Load) }

// Load reads the Secret once.
func (s *Source) Load(ctx context.Context) error {
	var secret corev1.Secret
	if err := s.reader.Get(ctx, client.ObjectKey{Namespace: s.options.Namespace, Name: s.options.Name}, &secret); err != nil {
		return fmt.Errorf("read the Secret %s: %w", s.options.Name, err)
	}
	if !s.use(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]) {
		return fmt.Errorf("the Secret %s holds no certificate with its key", s.options.Name)
	}
	return nil
}

// follower holds the certificate that was read last.
type follower struct {
	options SourceOptions
	current *atomic.Pointer[loaded]
}

type loaded struct {
	pair tls.Certificate
	text []byte
}

func newFollower(o SourceOptions) follower {
	if o.Interval <= 0 {
		o.Interval = 10 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return follower{o, new(atomic.Pointer[loaded])}
}

// follow loads until ctx ends. It tells of each failure once.
func (f *follower) follow(ctx context.Context, where string, load func(context.Context) error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	told := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		failure := ""
		if err := load(ctx); err != nil && ctx.Err() == nil {
			if failure = err.Error(); failure != told {
				f.options.Logger.Warn("no new certificate", "from", where, "error", err)
			}
		}
		told = failure
		next := f.options.Interval
		if f.current.Load() == nil {
			next = min(next, awaiting)
		}
		timer.Reset(next)
	}
}

// use takes over a certificate unless it is the one in use. It returns false
// for what is none.
func (f *follower) use(cert, key []byte) bool {
	if current := f.current.Load(); current != nil && bytes.Equal(current.text, cert) {
		return true
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return false
	}
	f.current.Store(&loaded{pair, bytes.Clone(cert)})
	return true
}

// NeedLeaderElection says that every replica follows.
func (f *follower) NeedLeaderElection() bool { return false }

// GetCertificate is for tls.Config.
func (f *follower) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	current := f.current.Load()
	if current == nil {
		return nil, ErrNoCertificate
	}
	return &current.pair, nil
}

// Ready is a readiness check: nil with a certificate that is valid now.
func (f *follower) Ready(*http.Request) error {
	current := f.current.Load()
	if current == nil {
		return ErrNoCertificate
	}
	if now := f.options.Now(); now.After(current.pair.Leaf.NotAfter) || now.Before(current.pair.Leaf.NotBefore) {
		return fmt.Errorf("%w: that of %s is not valid at this time", ErrNoCertificate, current.pair.Leaf.NotBefore.UTC().Format(time.DateOnly))
	}
	return nil
}
