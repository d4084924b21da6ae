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

// transportCredentials returns those of gRPC and says in the metrics which.
func (s *Server) transportCredentials(f family) (credentials.TransportCredentials, error) {
	if s.options.TLSCertFile == "" {
		return insecure.NewCredentials(), nil
	}
	pair := &keyPair{
		certFile: s.options.TLSCertFile,
		keyFile:  s.options.TLSKeyFile,
		logger:   s.logger,
		notAfter: f.gauges("tls_not_after_timestamp_seconds", "End of the certificate's validity.", "listener").
			WithLabelValues("grpc"),
	}
	if _, err := pair.get(nil); err != nil {
		return nil, err
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
