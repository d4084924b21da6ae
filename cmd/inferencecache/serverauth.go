// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/server"
)

// Values of --tenant-authz.
const (
	tenantAuthzMap  = "map"
	tenantAuthzRBAC = "rbac"
)

// serverAuth is what the flags say about callers of gRPC and operators.
type serverAuth struct {
	options          server.AuthOptions
	mode             string
	tenantAuthz      string
	operatorTokens   string
	operatorSubjects []string
	// cluster overrides how this pod would reach its API server.
	cluster auth.Cluster
}

func (a *serverAuth) addFlags(flags *pflag.FlagSet) {
	o := &a.options
	flags.StringVar(&a.mode, "grpc-auth", string(server.AuthOff), "who may call gRPC: off (everyone), permissive (credentials are checked where shown) or required")
	flags.StringVar(&o.TokenFile, "grpc-token-file", "", "static tokens in place of Kubernetes; lines \"audience token tenants replica\", * for all, read again when it changes")
	flags.StringVar(&o.ClientCAFile, "mtls-client-ca-file", "", "authorities of client certificates, which gRPC then requires")
	flags.StringVar(&a.tenantAuthz, "tenant-authz", tenantAuthzMap, "how readers are given tenants: map (--tenant-authz-file) or rbac (the role to get lookups.inferencecache.io in the namespace)")
	flags.StringVar(&o.TenantMapFile, "tenant-authz-file", "", "lines \"caller tenants\": what callers may read, * for all; read again when it changes")
	flags.StringSliceVar(&o.PrivateTenants, "private-tenants", nil, "tenants nobody reads without credentials where --grpc-auth is permissive")
	flags.StringSliceVar(&a.operatorSubjects, "operator-subjects", nil, "users and groups whose tokens for inferencecache.io/operator read /snapshot, /status and every tenant; with --tenant-authz=rbac also who may get operators.inferencecache.io")
	flags.StringVar(&a.operatorTokens, "operator-token-file", "", "static tokens of operators; lines \"inferencecache.io/operator token\", read again when it changes")
	flags.BoolVar(&o.InsecureTokens, "insecure-token-transport", false, "take bearer tokens from other machines without TLS")
	flags.StringVar(&a.cluster.URL, "kube-api-url", "", "API server that reviews tokens (default that of the cluster this pod runs in)")
	flags.StringVar(&a.cluster.CAFile, "kube-ca-file", "", "authorities of its certificate (default those of the pod)")
	flags.StringVar(&a.cluster.TokenFile, "kube-token-file", "", "token of this server for it (default that of the pod)")
}

func (a *serverAuth) byRoles() bool { return a.tenantAuthz == tenantAuthzRBAC }

func (a *serverAuth) validate() error {
	switch {
	case a.tenantAuthz != tenantAuthzMap && !a.byRoles():
		return usagef("--tenant-authz %q: expected map or rbac", a.tenantAuthz)
	case a.byRoles() && server.AuthMode(a.mode) == server.AuthOff:
		return usagef("--tenant-authz=rbac needs --grpc-auth, which is off")
	case a.byRoles() && a.options.TenantMapFile != "":
		return usagef("--tenant-authz=rbac takes no --tenant-authz-file")
	case a.byRoles() && a.options.TokenFile != "":
		return usagef("--tenant-authz=rbac takes no --grpc-token-file: static tokens are no users of a cluster")
	}
	return nil
}

// needsCluster returns the flag that cannot do without an API server, "" if
// there is none.
func (o *serverOptions) needsCluster() string {
	switch {
	case o.gates.controllerSA != "":
		return "--allowed-controller-sa"
	case o.auth.byRoles():
		return "--tenant-authz=rbac"
	case len(o.auth.operatorSubjects) > 0:
		return "--operator-subjects"
	case o.auth.cluster.URL != "":
		return "--kube-api-url"
	}
	return ""
}

// reviewsCalls reports whether callers of gRPC are to be judged by an API
// server if there is one.
func (a *serverAuth) reviewsCalls() bool {
	return server.AuthMode(a.mode) != server.AuthOff && a.options.TokenFile == ""
}

// connect returns the API server that judges tokens; nil where none is needed,
// or where gRPC may do without.
func (o *serverOptions) connect(getenv func(string) string, logger *slog.Logger) (*auth.APIServer, error) {
	needed := o.needsCluster()
	if needed == "" && !o.auth.reviewsCalls() {
		return nil, nil
	}
	cluster, given := auth.Cluster{}, o.auth.cluster
	if given.URL == "" || given.CAFile == "" || given.TokenFile == "" {
		var err error
		cluster, err = auth.InCluster(getenv)
		switch {
		case errors.Is(err, auth.ErrNoCluster) && needed == "":
			return nil, nil
		case err != nil:
			return nil, usagef("%s: %w", needed, err)
		}
	}
	return auth.NewAPIServer(auth.Cluster{
		URL:       cmp.Or(given.URL, cluster.URL),
		CAFile:    cmp.Or(given.CAFile, cluster.CAFile),
		TokenFile: cmp.Or(given.TokenFile, cluster.TokenFile),
	}, logger)
}

// admission fills in who may call what. release is to be called once the
// server has stopped.
func (o *serverOptions) admission(options *server.Options, getenv func(string) string) (release func(), err error) {
	if err := errors.Join(o.gates.validate(), o.auth.validate()); err != nil {
		return nil, &usageError{err}
	}
	cluster, err := o.connect(getenv, options.Logger)
	if err != nil {
		return nil, err
	}
	a := &admission{flags: o, metrics: auth.NewMetrics(options.Registry), logger: options.Logger}
	if cluster != nil {
		a.cluster = cluster
		a.onClose(cluster.Close)
	}
	if err := a.fill(options); err != nil {
		a.close()
		return nil, err
	}
	return a.close, nil
}

// admission is what judges callers, on its way into the server's options.
type admission struct {
	flags   *serverOptions
	cluster *auth.APIServer // nil without
	metrics *auth.Metrics
	logger  *slog.Logger
	closers []func()
}

func (a *admission) onClose(f func()) { a.closers = append(a.closers, f) }

// close undoes in reverse order.
func (a *admission) close() {
	for i := len(a.closers) - 1; i >= 0; i-- {
		a.closers[i]()
	}
}

func (a *admission) fill(options *server.Options) (err error) {
	flags := &a.flags.auth
	options.Auth = flags.options
	options.Auth.Mode = server.AuthMode(flags.mode)
	options.Auth.Metrics = a.metrics
	if a.cluster != nil && flags.reviewsCalls() {
		options.Auth.Reviewer = a.cluster
	}
	if flags.byRoles() {
		options.Auth.Access = auth.NewAccess(auth.AccessOptions{Reviewer: a.cluster, Metrics: a.metrics, Logger: a.logger})
		a.onClose(options.Auth.Access.Close)
	}
	if options.Auth.Operators, err = a.operators(options.Auth.Access); err != nil {
		return err
	}
	if a.flags.gates.controllerSA == "" {
		options.Internal.Gates, err = a.flags.gates.gates(a.logger)
	} else {
		options.Internal.Gates = a.reviewedGates()
	}
	options.Internal.Gates.Snapshot = options.Auth.Operators.Beside(options.Internal.Gates.Snapshot)
	return err
}

// operators returns nil where nobody can be one.
func (a *admission) operators(access *auth.Access) (*auth.Operators, error) {
	flags := &a.flags.auth
	options := auth.OperatorOptions{Subjects: flags.operatorSubjects, Access: access, Metrics: a.metrics, Logger: a.logger}
	if a.cluster != nil {
		options.Reviewer = a.cluster
	}
	if flags.operatorTokens != "" {
		tokens, err := gate.OpenTokenFile(flags.operatorTokens, a.logger)
		if err != nil {
			return nil, err
		}
		options.Tokens = tokens.For(auth.AudienceOperator)
	}
	if options.Tokens == nil && len(options.Subjects) == 0 && access == nil {
		return nil, nil
	}
	operators := auth.NewOperators(options)
	a.onClose(operators.Close)
	return operators, nil
}
