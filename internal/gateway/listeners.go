// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/livefile"
)

const minAdminTokenBytes = 16

// openAccess reads the files that say who may call.
func (g *Gateway) openAccess() (err error) {
	a := &g.options.Access
	if g.resolver, err = a.resolver(&g.options); err != nil {
		return err
	}
	if g.saltKey, err = readSaltKey(a.SaltKeyFile); err != nil {
		return err
	}
	if a.AdminTokenFile != "" {
		if g.adminToken, err = livefile.Open(a.AdminTokenFile, g.logger, parseAdminToken); err != nil {
			return fmt.Errorf("admin token: %w", err)
		}
	}
	return g.openTLS()
}

func parseAdminToken(text []byte) ([]byte, error) {
	token := bytes.TrimSpace(text)
	if len(token) < minAdminTokenBytes {
		return nil, fmt.Errorf("expected a token of at least %d bytes", minAdminTokenBytes)
	}
	return token, nil
}

// openTLS reads the certificates of the listeners, if they speak TLS.
func (g *Gateway) openTLS() error {
	a := &g.options.Access
	if a.TLSCertFile == "" {
		return nil
	}
	gauge := g.metrics.newTLSNotAfter(g.options.Registry)
	pair, err := auth.OpenKeyPair(a.TLSCertFile, a.TLSKeyFile, g.logger,
		func(end time.Time) { gauge.Set(float64(end.Unix())) })
	if err != nil {
		return err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.Get, NextProtos: []string{"http/1.1"}}
	g.tls, g.adminTLS = config, config
	if a.ClientCAFile == "" {
		return nil
	}
	authorities, err := auth.OpenRoots(a.ClientCAFile, g.logger)
	if err != nil {
		return fmt.Errorf("client certificates: %w", err)
	}
	config = config.Clone()
	config.ClientAuth = tls.VerifyClientCertIfGiven
	if g.resolver.CertificatesOnly() {
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	g.tls = auth.WithClientAuthorities(config, authorities)
	return nil
}

// openListeners binds and begins to serve. On error nothing is left open.
func (g *Gateway) openListeners() error {
	type door struct {
		what, address string
		server        *http.Server
		bound         *net.Addr
		clients       bool
	}
	doors := []door{
		{"clients", g.options.Listen, g.data, &g.addresses.Data, true},
		{"trusted clients", g.options.Access.TrustedListen, g.trusted, &g.addresses.Trusted, true},
		{"administration", g.options.AdminListen, g.admin, &g.addresses.Admin, false},
	}
	var opened []net.Listener
	for _, d := range doors {
		var listener net.Listener
		if d.address != "" {
			var err error
			if listener, err = net.Listen("tcp", d.address); err != nil {
				err = fmt.Errorf("listen for %s: %w", d.what, err)
				for _, other := range opened {
					if other != nil {
						err = errors.Join(err, other.Close())
					}
				}
				g.addresses = Addresses{}
				return err
			}
			*d.bound = listener.Addr()
			if d.clients {
				listener = g.clientListener(listener)
			} else if g.adminTLS != nil && !isLoopback(d.address) {
				listener = tls.NewListener(listener, g.adminTLS)
			}
		}
		opened = append(opened, listener)
	}
	for i, d := range doors {
		if opened[i] != nil {
			g.tasks.Go(func() { g.serve(d.what, d.server.Serve(opened[i])) })
		}
	}
	return nil
}

// clientListener bounds connections and speaks TLS if that is on.
func (g *Gateway) clientListener(listener net.Listener) net.Listener {
	listener = netutil.LimitListener(listener, g.options.MaxConnections)
	return &framingListener{listener, g.tls, g.options.Timeouts.HeaderRead}
}

// operatorsOnly guards what tells about the requests of others: the caller
// must show the admin token, or call from this machine where there is none.
func (g *Gateway) operatorsOnly(next http.HandlerFunc) http.HandlerFunc {
	if g.adminToken == nil {
		return localOnly(next)
	}
	return func(w http.ResponseWriter, request *http.Request) {
		scheme, shown, _ := strings.Cut(request.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") ||
			subtle.ConstantTimeCompare([]byte(strings.TrimSpace(shown)), g.adminToken.Get()) != 1 {
			unauthenticated("the admin token is required").write(w)
			return
		}
		next(w, request)
	}
}
