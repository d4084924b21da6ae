// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/defaults"
	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/ingest"
)

// AuthMode says how gRPC treats callers.
type AuthMode string

// Modes.
const (
	// AuthOff asks nobody who they are.
	AuthOff AuthMode = "off"
	// AuthPermissive also takes callers without credentials. They may not
	// write as a replica whose publisher has shown some, nor read private
	// tenants.
	AuthPermissive AuthMode = "permissive"
	// AuthRequired takes nobody without credentials.
	AuthRequired AuthMode = "required"
)

// Audiences of the tokens that gRPC takes.
const (
	AudienceIngest = "inferencecache.io/ingest"
	AudienceLookup = "inferencecache.io/lookup"
)

// maxAdmittedTokens is how many tokens of a fleet are remembered for each
// audience.
const maxAdmittedTokens = 4096

// reviewAhead is how long before it would be forgotten a token in use is
// reviewed again.
const reviewAhead = 10 * time.Second

// AuthOptions decide who may call gRPC. Other modes than AuthOff need a
// Reviewer, a TokenFile or a ClientCAFile.
type AuthOptions struct {
	// Mode is AuthOff by default.
	Mode AuthMode
	// Reviewer judges bearer tokens. Default none.
	Reviewer auth.Reviewer
	// Metrics counts reviews. Default a new one in the server's registry.
	Metrics *auth.Metrics
	// TokenFile judges them instead of a Reviewer. Default none.
	TokenFile string
	// ClientCAFile makes every client show a certificate of these
	// authorities; needs TLS. Default none.
	ClientCAFile string
	// TenantMapFile says which tenants callers may read. Default only what
	// their credentials say themselves.
	TenantMapFile string
	// Access reviews what callers may read beyond that. Default nobody is
	// asked.
	Access *auth.Access
	// Operators may read every tenant. Default nobody.
	Operators *auth.Operators
	// PrivateTenants may not be read without credentials. Default none.
	PrivateTenants []string
	// InsecureTokens takes bearer tokens without TLS from other machines.
	// Default false.
	InsecureTokens bool
	// ReviewInterval is the time between two looks at the credentials of an
	// open stream. Default 10m.
	ReviewInterval time.Duration
}

func (o AuthOptions) withDefaults() AuthOptions {
	defaults.Set(&o.Mode, AuthOff)
	defaults.Set(&o.ReviewInterval, 10*time.Minute)
	return o
}

func (o AuthOptions) validate(withTLS bool) error {
	var errs []error
	switch o.Mode {
	case AuthOff:
	case AuthPermissive, AuthRequired:
		if o.Reviewer == nil && o.TokenFile == "" && o.ClientCAFile == "" {
			errs = append(errs, fmt.Errorf("gRPC authentication %q has nothing to judge credentials by: "+
				"expected a Kubernetes API server, a token file or a client CA", o.Mode))
		}
	default:
		errs = append(errs, fmt.Errorf("gRPC authentication %q: expected off, permissive or required", o.Mode))
	}
	if o.ClientCAFile != "" && !withTLS {
		errs = append(errs, errors.New("client certificates need TLS"))
	}
	return errors.Join(errs...)
}

// authenticator judges bearer tokens of one audience. It may block for a
// review. The identity is good only with gate.OK.
type authenticator interface {
	Authenticate(ctx context.Context, source, token string) (auth.Identity, gate.Verdict)
}

// callGuard decides what each gRPC call may do. A nil guard lets everybody do
// everything. It is safe for concurrent use.
type callGuard struct {
	options   AuthOptions
	tokens    map[string]authenticator // by audience; nil without tokens
	reviews   []*auth.Reviews
	tenants   *auth.TenantMap // nil without
	private   auth.Names
	producers *producers
	audit     *auditLog
	denied    func(ingest.DenyReason)
	anonymous prometheus.Counter
	now       func() time.Time
}

// newCallGuard returns nil with AuthOff. Errors are files that cannot be used.
func (s *Server) newCallGuard(f family, denied func(ingest.DenyReason)) (*callGuard, error) {
	o := s.options.Auth
	modes := f.gauges("server_grpc_auth_mode", "1 for the mode of gRPC authentication in force.", "mode")
	for _, mode := range []AuthMode{AuthOff, AuthPermissive, AuthRequired} {
		modes.WithLabelValues(string(mode)).Set(0)
	}
	modes.WithLabelValues(string(o.Mode)).Set(1)
	anonymous := f.counter("grpc_anonymous_calls_total", "Calls admitted without credentials by permissive authentication.")
	metrics := o.Metrics
	if metrics == nil {
		metrics = auth.NewMetrics(s.options.Registry)
	}
	if o.Mode == AuthOff {
		return nil, nil
	}
	g := &callGuard{
		options:   o,
		private:   auth.NewNames(o.PrivateTenants...),
		producers: newProducers(),
		audit:     newAuditLog(s.logger),
		denied:    denied,
		anonymous: anonymous,
		now:       s.options.Now,
	}
	if err := g.openTokens(metrics, s.logger); err != nil {
		return nil, err
	}
	if o.TenantMapFile != "" {
		var err error
		if g.tenants, err = auth.OpenTenantMap(o.TenantMapFile, s.logger); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func (g *callGuard) openTokens(metrics *auth.Metrics, logger *slog.Logger) error {
	audiences := map[string]string{AudienceIngest: auth.EndpointIngest, AudienceLookup: auth.EndpointLookup}
	g.tokens = make(map[string]authenticator)
	if g.options.TokenFile != "" {
		file, err := auth.OpenTokenFile(g.options.TokenFile, logger)
		if err != nil {
			return err
		}
		for audience := range audiences {
			g.tokens[audience] = file.For(audience)
		}
		return nil
	}
	if g.options.Reviewer == nil {
		return nil
	}
	for audience, endpoint := range audiences {
		var elsewhere func(string) bool
		if audience == AudienceLookup {
			elsewhere = g.options.Operators.Claims
		}
		reviews := auth.NewReviews(auth.ReviewOptions{
			Reviewer:     g.options.Reviewer,
			Elsewhere:    elsewhere,
			Audience:     audience,
			Endpoint:     endpoint,
			MaxAdmitted:  maxAdmittedTokens,
			RefreshAhead: reviewAhead,
			Metrics:      metrics,
			Logger:       logger,
			Now:          g.now,
		})
		g.tokens[audience] = reviews
		g.reviews = append(g.reviews, reviews)
	}
	return nil
}

// warnOfAuth says at the start what the options leave open or shut.
func (s *Server) warnOfAuth() {
	logger, o := s.logger, s.options.Auth
	if o.Mode != AuthRequired {
		logger.Warn("gRPC takes callers without credentials", "grpc_auth", o.Mode)
		return
	}
	if s.options.TLSCertFile == "" && !o.InsecureTokens {
		logger.Warn("without TLS, gRPC takes bearer tokens from this machine only")
	}
	if o.TokenFile == "" && o.TenantMapFile == "" && o.Access == nil {
		logger.Warn("without a tenant map nobody but operators may look anything up")
	}
}

// close ends the reviews under way.
func (g *callGuard) close() {
	if g == nil {
		return
	}
	for _, reviews := range g.reviews {
		reviews.Close()
	}
}
