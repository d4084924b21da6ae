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

// SourceOptions of a Source. Namespace and Name are required.
type SourceOptions struct {
	// Namespace and Name are the Secret's.
	Namespace, Name string
	// Interval is the time between two looks at it. Default 10 s.
	Interval time.Duration
	// Now is the time. Default time.Now.
	Now func() time.Time
	// Logger is silent when nil.
	Logger *slog.Logger
}

// Source is the certificate of a Secret for handshakes. It is safe for
// concurrent use.
type Source struct {
	reader  client.Reader
	options SourceOptions
	current atomic.Pointer[loaded]
}

type loaded struct {
	pair tls.Certificate
	text []byte
}

// NewSource returns a source without a certificate. The reader must not cache.
func NewSource(reader client.Reader, o SourceOptions) *Source {
	if o.Interval <= 0 {
		o.Interval = 10 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Source{reader: reader, options: o}
}

// Start follows the Secret until ctx ends. While the Secret cannot be used,
// the last certificate stays in use.
func (s *Source) Start(ctx context.Context) error {
	ticker := time.NewTicker(s.options.Interval)
	defer ticker.Stop()
	for {
		if err := s.Load(ctx); err != nil && ctx.Err() == nil {
			s.options.Logger.Warn("no new certificate", "secret", s.options.Name, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// NeedLeaderElection says that every replica runs a Source.
func (s *Source) NeedLeaderElection() bool { return false }

// Load reads the Secret once.
func (s *Source) Load(ctx context.Context) error {
	var secret corev1.Secret
	if err := s.reader.Get(ctx, client.ObjectKey{Namespace: s.options.Namespace, Name: s.options.Name}, &secret); err != nil {
		return fmt.Errorf("read the Secret %s: %w", s.options.Name, err)
	}
	text := secret.Data[corev1.TLSCertKey]
	if current := s.current.Load(); current != nil && bytes.Equal(current.text, text) {
		return nil
	}
	pair, err := tls.X509KeyPair(text, secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return fmt.Errorf("the Secret %s holds no certificate with its key", s.options.Name)
	}
	s.current.Store(&loaded{pair, bytes.Clone(text)})
	return nil
}

// GetCertificate is for tls.Config.
func (s *Source) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	current := s.current.Load()
	if current == nil {
		return nil, ErrNoCertificate
	}
	return &current.pair, nil
}

// Ready is a readiness check: nil with a certificate that is valid now.
func (s *Source) Ready(*http.Request) error {
	current := s.current.Load()
	if current == nil {
		return ErrNoCertificate
	}
	if now := s.options.Now(); now.After(current.pair.Leaf.NotAfter) || now.Before(current.pair.Leaf.NotBefore) {
		return fmt.Errorf("%w: that of %s is not valid at this time", ErrNoCertificate, current.pair.Leaf.NotBefore.UTC().Format(time.DateOnly))
	}
	return nil
}
