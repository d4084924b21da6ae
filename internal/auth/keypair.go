// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// KeyPair is a server certificate on disk. It is read again when its file
// changes; while the new one is unusable the old one stays in use. It is safe
// for concurrent use.
type KeyPair struct {
	certFile, keyFile string
	logger            *slog.Logger
	notAfter          func(time.Time)

	current atomic.Pointer[tls.Certificate]

	// mu lets one handshake at a time look at the files; nobody waits for it.
	mu       sync.Mutex
	modified time.Time // of certFile when it was read, guarded by mu
}

// OpenKeyPair reads a certificate and its key. notAfter is told the end of the
// validity of each certificate that is read.
func OpenKeyPair(certFile, keyFile string, logger *slog.Logger, notAfter func(time.Time)) (*KeyPair, error) {
	p := &KeyPair{certFile: certFile, keyFile: keyFile, logger: logger, notAfter: notAfter}
	if err := p.refreshLocked(); err != nil {
		return nil, err
	}
	return p, nil
}

// Get returns the certificate for a handshake; its form is that of
// tls.Config.GetCertificate.
func (p *KeyPair) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if p.mu.TryLock() {
		defer p.mu.Unlock()
		if err := p.refreshLocked(); err != nil {
			p.logger.Warn("keeping the previous TLS certificate", "error", err)
		}
	}
	return p.current.Load(), nil
}

func (p *KeyPair) refreshLocked() error {
	info, err := os.Stat(p.certFile)
	if err != nil {
		return fmt.Errorf("find TLS certificate: %w", err)
	}
	if p.current.Load() != nil && !info.ModTime().After(p.modified) {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(p.certFile, p.keyFile)
	if err != nil {
		return fmt.Errorf("load TLS key pair: %w", err)
	}
	p.modified = info.ModTime()
	p.current.Store(&pair)
	p.notAfter(pair.Leaf.NotAfter)
	return nil
}

// WithClientAuthorities returns a configuration in which each handshake
// verifies clients by the authorities of that time.
func WithClientAuthorities(config *tls.Config, authorities *Roots) *tls.Config {
	outer := config.Clone()
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		current := config.Clone()
		current.ClientCAs = authorities.Pool()
		return current, nil
	}
	return outer
}
