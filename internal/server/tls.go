// SPDX-License-Identifier: Apache-2.0

package server

import (
	"crypto/tls"
	"fmt"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/inferencecache/inference-cache/internal/auth"
)

// openKeyPairs reads the key pair of each listener that has one.
func (s *Server) openKeyPairs(f family) (grpc, internal *auth.KeyPair, err error) {
	o := &s.options
	notAfter := f.gauges("tls_not_after_timestamp_seconds", "End of the certificate's validity.", "listener")
	open := func(listener, certFile, keyFile string) (*auth.KeyPair, error) {
		if certFile == "" {
			return nil, nil
		}
		gauge := notAfter.WithLabelValues(listener)
		return auth.OpenKeyPair(certFile, keyFile, s.logger, func(t time.Time) { gauge.Set(float64(t.Unix())) })
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
		s.internalTLS = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: internal.Get}
	}
	if pair == nil {
		return insecure.NewCredentials(), nil
	}
	s.process.tlsEnabled.Set(1)
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.Get, NextProtos: []string{"h2"}}
	if s.options.Auth.ClientCAFile == "" {
		return credentials.NewTLS(config), nil
	}
	authorities, err := auth.OpenRoots(s.options.Auth.ClientCAFile, s.logger)
	if err != nil {
		return nil, fmt.Errorf("client certificates: %w", err)
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	return credentials.NewTLS(auth.WithClientAuthorities(config, authorities)), nil
}
