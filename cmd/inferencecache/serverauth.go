// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/server"
)

// tenantAuthzMap is the one value of --tenant-authz.
const tenantAuthzMap = "map"

// serverAuth is what the flags say about callers of gRPC.
type serverAuth struct {
	options     server.AuthOptions
	mode        string
	tenantAuthz string
}

func (a *serverAuth) addFlags(flags *pflag.FlagSet) {
	o := &a.options
	flags.StringVar(&a.mode, "grpc-auth", string(server.AuthOff), "who may call gRPC: off (everyone), permissive (credentials are checked where shown) or required")
	flags.StringVar(&o.TokenFile, "grpc-token-file", "", "static tokens in place of Kubernetes; lines \"audience token tenants replica\", * for all, read again when it changes")
	flags.StringVar(&o.ClientCAFile, "mtls-client-ca-file", "", "authorities of client certificates, which gRPC then requires")
	flags.StringVar(&a.tenantAuthz, "tenant-authz", tenantAuthzMap, "how readers are given tenants: map, which is --tenant-authz-file")
	flags.StringVar(&o.TenantMapFile, "tenant-authz-file", "", "lines \"caller tenants\": what callers may read, * for all; read again when it changes")
	flags.StringSliceVar(&o.PrivateTenants, "private-tenants", nil, "tenants nobody reads without credentials where --grpc-auth is permissive")
	flags.BoolVar(&o.InsecureTokens, "insecure-token-transport", false, "take bearer tokens from other machines without TLS")
}

// needsCluster reports whether callers of gRPC are to be judged by an API
// server if there is one.
func (a *serverAuth) needsCluster() bool {
	return server.AuthMode(a.mode) != server.AuthOff && a.options.TokenFile == ""
}

// admission fills in who may call what. release is to be called once the
// server has stopped.
func (o *serverOptions) admission(options *server.Options, getenv func(string) string) (release func(), err error) {
	if err := o.gates.validate(); err != nil {
		return nil, err
	}
	if o.auth.tenantAuthz != tenantAuthzMap {
		return nil, usagef("--tenant-authz %q: expected map", o.auth.tenantAuthz)
	}
	cluster, err := o.cluster(getenv, options.Logger)
	if err != nil {
		return nil, err
	}
	options.Auth = o.auth.options
	options.Auth.Mode = server.AuthMode(o.auth.mode)
	options.Auth.Metrics = auth.NewMetrics(options.Registry)
	release = func() {}
	if cluster != nil {
		options.Auth.Reviewer = cluster
		release = cluster.Close
	}
	if o.gates.controllerSA == "" {
		options.Internal.Gates, err = o.gates.gates(options.Logger)
		return release, err
	}
	gates, closeGates := o.gates.reviewed(cluster, options.Auth.Metrics, options.Logger)
	options.Internal.Gates = gates
	return func() { closeGates(); cluster.Close() }, nil
}

// cluster returns the API server that judges tokens; nil where none is needed,
// or where gRPC may do without.
func (o *serverOptions) cluster(getenv func(string) string, logger *slog.Logger) (*auth.APIServer, error) {
	if o.gates.controllerSA == "" && !o.auth.needsCluster() {
		return nil, nil
	}
	cluster, err := auth.InCluster(getenv)
	switch {
	case errors.Is(err, auth.ErrNoCluster) && o.gates.controllerSA == "":
		return nil, nil
	case err != nil:
		return nil, usagef("--allowed-controller-sa: %w", err)
	}
	return auth.NewAPIServer(cluster, logger)
}
