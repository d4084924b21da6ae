// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/controller"
)

// setFace has the self-test include the servers' gRPC.
func (o *controllerOptions) setFace(logger *slog.Logger) error {
	if o.grpcAddress == "" || o.probeURL == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(o.grpcAddress); err != nil {
		return usagef("--policy-server-grpc-address: expected host:port: %v", err)
	}
	o.controller.Face = &controller.GRPCFace{
		Address: o.grpcAddress, EachServer: o.controller.Discovery == controller.DiscoverEndpoints,
		CAFile: o.caFile, ServerName: o.serverName, TokenFile: o.lookupTokenFile, Logger: logger,
	}
	return nil
}

// httpClient checks servers against one name whatever address is dialled.
func (o *controllerOptions) httpClient() (*http.Client, error) {
	name := o.serverName
	if name == "" {
		parsed, err := url.Parse(o.policyURL)
		if err != nil {
			return nil, usagef("--server-policy-url: %v", err)
		}
		name = parsed.Hostname()
	}
	config := &tls.Config{ServerName: name, MinVersion: tls.VersionTLS12}
	if o.caFile != "" {
		text, err := os.ReadFile(o.caFile)
		if err != nil {
			return nil, fmt.Errorf("--server-ca-file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--server-ca-file %s: no certificate in it", o.caFile)
		}
	}
	return &http.Client{
		Timeout:       controlclient.DefaultTimeout,
		Transport:     &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, IdleConnTimeout: controller.DefaultPollInterval * 2},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
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
