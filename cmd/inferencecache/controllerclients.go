// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/credential"
)

// setFace has the self-test include the servers' gRPC.
func (o *controllerOptions) setFace(logger *slog.Logger) {
	if o.grpcAddress == "" || o.probeURL == "" {
		return
	}
	o.controller.Face = &controller.GRPCFace{
		Address: o.grpcAddress, EachServer: o.controller.Discovery == controller.DiscoverEndpoints,
		CAFile: o.caFile, Roots: o.keptRoots(), ServerName: o.serverName, TokenFile: o.lookupTokenFile, Logger: logger,
	}
}

// keptRoots are the authorities that the leader keeps for the servers, where no
// file says others.
func (o *controllerOptions) keptRoots() credential.Roots {
	if o.caFile != "" || o.webhooks.serverCertMode != serverCertsSelf {
		return nil
	}
	if o.controller.ServerCerts.Trust == nil {
		o.controller.ServerCerts.Trust = new(auth.Authorities)
	}
	return o.controller.ServerCerts.Trust
}

// httpClient checks servers against one name whatever address is dialled.
func (o *controllerOptions) httpClient(logger *slog.Logger) (*http.Client, error) {
	name := o.serverName
	if name == "" {
		parsed, err := url.Parse(o.policyURL)
		if err != nil {
			return nil, usagef("--server-policy-url: %v", err)
		}
		name = parsed.Hostname()
	}
	servers := &serverTrust{file: o.caFile, kept: o.keptRoots(), name: name, logger: logger}
	// A file that a certificate's keeper has not written yet is waited for.
	if _, err := servers.authorities(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--server-ca-file: %w", err)
	} else if err != nil {
		logger.Warn("servers are not called before their authorities are there", "error", err)
	}
	return &http.Client{
		Timeout: controlclient.DefaultTimeout,
		Transport: &http.Transport{
			DialTLSContext: servers.dial, ForceAttemptHTTP2: true, IdleConnTimeout: controller.DefaultPollInterval * 2,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// serverTrust checks servers' certificates against authorities that may come
// later and change.
type serverTrust struct {
	file, name string
	kept       credential.Roots // instead of a file; may be nil
	logger     *slog.Logger

	mu    sync.Mutex
	roots *auth.Roots // guarded by mu, nil until the file is there
}

// authorities are nil, those of the system, where nothing says others.
func (s *serverTrust) authorities() (*x509.CertPool, error) {
	switch {
	case s.kept != nil:
		return s.kept.Pool(), nil
	case s.file == "":
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.roots == nil {
		roots, err := auth.OpenRoots(s.file, s.logger)
		if err != nil {
			return nil, err
		}
		s.roots = roots
	}
	return s.roots.Pool(), nil
}

func (s *serverTrust) dial(ctx context.Context, network, address string) (net.Conn, error) {
	roots, err := s.authorities()
	if err != nil {
		return nil, err
	}
	dialer := &tls.Dialer{Config: &tls.Config{
		ServerName: s.name, RootCAs: roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
	}}
	return dialer.DialContext(ctx, network, address)
}

func (o *controllerOptions) cluster() (*rest.Config, error) {
	file := o.kubeconfig
	if file == "" {
		file = strings.TrimSpace(os.Getenv("KUBECONFIG"))
	}
	if file == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("reach the API server: not in a pod and no --kubeconfig: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("read --kubeconfig: %w", err)
	}
	return config, nil
}
