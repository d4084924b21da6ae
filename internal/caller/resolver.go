// SPDX-License-Identifier: Apache-2.0

package caller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

// Errors of Resolve. What wraps them may be shown to the client.
var (
	// ErrUnauthenticated means that no good credential was shown.
	ErrUnauthenticated = errors.New("unauthenticated")
	// ErrForbidden means that a good credential names no tenant.
	ErrForbidden = errors.New("forbidden")
	// ErrUnavailable means that a credential cannot be judged now.
	ErrUnavailable = errors.New("credentials cannot be checked now")
	// ErrInvalid means that a trusted client named no possible tenant.
	ErrInvalid = errors.New("invalid tenant")
)

// TenantHeader names the tenant on trusted listeners.
const TenantHeader = "X-Inference-Cache-Tenant"

// DefaultTenant is that of callers where no credentials are asked for and no
// other default is set.
const DefaultTenant = "default"

// Method is how a caller was found out.
type Method string

// Methods, strongest first.
const (
	MethodKey         Method = "api_key"
	MethodCertificate Method = "certificate"
	MethodToken       Method = "token"
	MethodHeader      Method = "header"
	MethodDefault     Method = "default"
)

// Methods lists all methods.
func Methods() []Method {
	return []Method{MethodKey, MethodCertificate, MethodToken, MethodHeader, MethodDefault}
}

// Options of a Resolver. The zero value asks for no credentials.
type Options struct {
	// KeysFile has lines "sha256-hex tenant limits", limits being optional.
	KeysFile string
	Tokens   TokenOptions
	// Certificates takes the names of verified client certificates.
	Certificates bool
	// CertificateTenantsFile has lines "name tenant limits", name being a URI
	// or DNS name of a certificate. Default: the namespace in a SPIFFE id.
	CertificateTenantsFile string
	// DefaultTenant is the tenant of callers that show nothing. Default
	// "default", or that such callers are refused if credentials are asked for.
	DefaultTenant string
	// OneTenant refuses a KeysFile that would make for several tenants.
	OneTenant bool
	// Logger is told when a file becomes unusable. Default none.
	Logger *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Resolver turns what a client shows into a caller. It is safe for concurrent
// use.
type Resolver struct {
	options Options
	keys    *keys         // nil without keys
	tokens  *tokens       // nil without tokens
	certs   *certificates // nil without certificates
}

// New reads the files. It asks no issuer yet.
func New(options Options) (*Resolver, error) {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	r := &Resolver{options: options}
	if options.DefaultTenant != "" {
		if err := CheckTenant(options.DefaultTenant); err != nil {
			return nil, fmt.Errorf("default %w", err)
		}
	}
	var err error
	if options.KeysFile != "" {
		if r.keys, err = openKeys(options.KeysFile, options.Logger, r.acceptTenants); err != nil {
			return nil, err
		}
	}
	if options.Tokens.Issuer != "" || options.Tokens.KeysFile != "" {
		if r.tokens, err = openTokens(options.Tokens, options.Logger, options.Now); err != nil {
			return nil, err
		}
	}
	if options.Certificates {
		if r.certs, err = openCertificates(options.CertificateTenantsFile, options.Logger); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// ErrSeveralTenants refuses a file of keys under Options.OneTenant.
var ErrSeveralTenants = errors.New("several caller tenants")

func (r *Resolver) acceptTenants(tenants map[string]bool) error {
	count := len(tenants)
	if d := r.options.DefaultTenant; d != "" && !tenants[d] {
		count++
	}
	if r.options.OneTenant && count > 1 {
		return ErrSeveralTenants
	}
	return nil
}

// Required reports whether callers must show a credential.
func (r *Resolver) Required() bool { return r.Asks() && r.options.DefaultTenant == "" }

// Asks reports whether credentials are of any use.
func (r *Resolver) Asks() bool { return r.keys != nil || r.tokens != nil || r.certs != nil }

// CertificatesOnly reports whether a certificate is all a caller can show and
// must show.
func (r *Resolver) CertificatesOnly() bool {
	return r.certs != nil && r.keys == nil && r.tokens == nil && r.options.DefaultTenant == ""
}

// Shown is what a client shows.
type Shown struct {
	Header http.Header
	// TLS is nil without TLS; its chains were verified.
	TLS *tls.ConnectionState
	// Trusted means that the listener is: its clients may name the tenant.
	Trusted bool
}

// Resolve finds the caller: by a verified credential (an API key before a
// certificate before a token), then by the header of a trusted client, then by
// default. A credential that is shown must be good, whatever else there is,
// unless a trusted client vouches for the tenant.
func (r *Resolver) Resolve(ctx context.Context, shown *Shown) (Caller, Method, error) {
	caller, method, err := r.verified(ctx, shown)
	if err == nil && method != "" {
		return caller, method, nil
	}
	if names := shown.Header[TenantHeader]; shown.Trusted && len(names) > 0 {
		if len(names) > 1 || CheckTenant(names[0]) != nil {
			return Caller{}, MethodHeader, fmt.Errorf("%w in %s", ErrInvalid, strings.ToLower(TenantHeader))
		}
		return Caller{Tenant: names[0]}, MethodHeader, nil
	}
	switch {
	case err != nil:
		return Caller{}, method, err
	case r.options.DefaultTenant != "":
		return Caller{Tenant: r.options.DefaultTenant}, MethodDefault, nil
	case r.Asks():
		return Caller{}, MethodDefault, fmt.Errorf("%w: a credential is required", ErrUnauthenticated)
	default:
		return Caller{Tenant: DefaultTenant}, MethodDefault, nil
	}
}

// verified returns the caller of the strongest credential; no method means that
// none was shown.
func (r *Resolver) verified(ctx context.Context, shown *Shown) (Caller, Method, error) {
	secret, hasSecret := r.secret(shown.Header)
	if hasSecret && r.keys != nil {
		if caller, ok := r.keys.find(secret); ok {
			return caller, MethodKey, nil
		}
		if r.tokens == nil {
			return Caller{}, MethodKey, errToken
		}
	}
	var token Caller
	if hasSecret {
		var err error
		if token, err = r.tokens.find(ctx, secret); err != nil {
			return Caller{}, MethodToken, err
		}
	}
	if r.certs != nil && shown.TLS != nil && len(shown.TLS.VerifiedChains) > 0 {
		if caller, ok := r.certs.find(shown.TLS.PeerCertificates[0]); ok {
			return caller, MethodCertificate, nil
		}
		if !hasSecret {
			return Caller{}, MethodCertificate, fmt.Errorf("%w: the certificate names no tenant", ErrForbidden)
		}
	}
	if hasSecret {
		return token, MethodToken, nil
	}
	return Caller{}, "", nil
}

// secret returns the key or token a client shows, if any is of use here. A
// header of another scheme is no good secret.
func (r *Resolver) secret(header http.Header) (string, bool) {
	if r.keys == nil && r.tokens == nil {
		return "", false
	}
	if values := header["Authorization"]; len(values) > 0 {
		scheme, secret, _ := strings.Cut(values[0], " ")
		if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") {
			return "", true
		}
		return strings.TrimSpace(secret), true
	}
	values := header["X-Api-Key"]
	if len(values) > 1 {
		return "", true
	}
	if len(values) == 1 {
		return values[0], true
	}
	return "", false
}
