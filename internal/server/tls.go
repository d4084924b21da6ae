// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/inferencecache/inference-cache/internal/auth"
)

// keyPair is a certificate on disk. It is read again when its file changes;
// while the new one is unusable the old one stays in use.
type keyPair struct {
	certFile, keyFile string
	logger            *slog.Logger
	notAfter          prometheus.Gauge

	mu       sync.Mutex
	modified time.Time        // of certFile when it was read, guarded by mu
	current  *tls.Certificate // guarded by mu
}

// openKeyPairs reads the key pair of each listener that has one.
func (s *Server) openKeyPairs(f family) (grpc, internal *keyPair, err error) {
	o := &s.options
	if o.TLSCertFile == "" && o.Internal.TLSCertFile == "" {
		return nil, nil, nil
	}
	notAfter := f.gauges("tls_not_after_timestamp_seconds", "End of the certificate's validity.", "listener")
	open := func(listener, certFile, keyFile string) (*keyPair, error) {
		if certFile == "" {
			return nil, nil
		}
		pair := &keyPair{certFile: certFile, keyFile: keyFile, logger: s.logger, notAfter: notAfter.WithLabelValues(listener)}
		_, err := pair.get(nil)
		return pair, err
	}
	if grpc, err = open("grpc", o.TLSCertFile, o.TLSKeyFile); err != nil {
		return nil, nil, err
	}
	internal, err = open("internal", o.Internal.TLSCertFile, o.Internal.TLSKeyFile)
	return grpc, internal, err
}

// transportCredentials returns those of gRPC and says in the metrics which. It
// opens the certificate of the internal listener too.
func (s *Server) transportCredentials(f family) (credentials.TransportCredentials, error) {
	pair, internal, err := s.openKeyPairs(f)
	if err != nil {
		return nil, err
	}
	if internal != nil {
		s.internalTLS = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: internal.get}
	}
	if pair == nil {
		return insecure.NewCredentials(), nil
	}
	s.process.tlsEnabled.Set(1)
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get, NextProtos: []string{"h2"}}
	if s.options.Auth.ClientCAFile == "" {
		return credentials.NewTLS(config), nil
	}
	authorities, err := auth.OpenRoots(s.options.Auth.ClientCAFile, s.logger)
	if err != nil {
		return nil, fmt.Errorf("client certificates: %w", err)
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	return credentials.NewTLS(withClientAuthorities(config, authorities)), nil
}

// withClientAuthorities makes each handshake verify clients by the authorities
// of that time.
func withClientAuthorities(config *tls.Config, authorities *auth.Roots) *tls.Config {
	outer := config.Clone()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		current := config.Clone()
		current.ClientCAs = authorities.Pool()
		return current, nil
	}
	return outer
}

func (p *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refreshLocked(); err != nil {
		if p.current == nil {
			return nil, err
		}
		p.logger.Warn("keeping the previous TLS certificate", "error", err)
	}
	return p.current, nil
}

func (p *keyPair) refreshLocked() error {
	info, err := os.Stat(p.certFile)
	if err != nil {
		return fmt.Errorf("find TLS certificate: %w", err)
	}
	if p.current != nil && !info.ModTime().After(p.modified) {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(p.certFile, p.keyFile)
	if err != nil {
		return fmt.Errorf("load TLS key pair: %w", err)
	}
	p.current, p.modified = &pair, info.ModTime()
	p.notAfter.Set(float64(pair.Leaf.NotAfter.Unix()))
	return nil
}
