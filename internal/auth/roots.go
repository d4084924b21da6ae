// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/inferencecache/inference-cache/internal/livefile"
)

// Roots are the certificate authorities of a PEM file, which is read again
// when it changes. It is safe for concurrent use.
type Roots struct {
	file *livefile.File[*x509.CertPool]
}

// OpenRoots reads a PEM file of certificates. logger is told when the file
// becomes unusable later.
func OpenRoots(path string, logger *slog.Logger) (*Roots, error) {
	file, err := livefile.Open(path, logger, parseRoots)
	if err != nil {
		return nil, fmt.Errorf("certificate authorities: %w", err)
	}
	return &Roots{file}, nil
}

// Pool returns the authorities, which must not be changed.
func (r *Roots) Pool() *x509.CertPool { return r.file.Get() }

// Authorities are certificate authorities that somebody hands over. The zero
// value trusts nobody. It is safe for concurrent use.
type Authorities struct {
	pool atomic.Pointer[x509.CertPool]
}

// Replace trusts exactly the certificates of a PEM text from now on.
func (a *Authorities) Replace(pem []byte) error {
	roots, err := parseRoots(pem)
	if err != nil {
		return fmt.Errorf("certificate authorities: %w", err)
	}
	a.pool.Store(roots)
	return nil
}

// Pool returns the authorities, which must not be changed.
func (a *Authorities) Pool() *x509.CertPool {
	if pool := a.pool.Load(); pool != nil {
		return pool
	}
	return x509.NewCertPool()
}

func parseRoots(pem []byte) (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("no certificate in it")
	}
	return roots, nil
}
