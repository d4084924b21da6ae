// SPDX-License-Identifier: Apache-2.0

package caller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/inferencecache/inference-cache/internal/defaults"
	"github.com/inferencecache/inference-cache/internal/livefile"
)

// TokenOptions say which JSON web tokens are good. The zero value accepts none.
type TokenOptions struct {
	// Issuer is the value of iss. Its keys are found by OpenID Connect
	// discovery unless KeysFile is given.
	Issuer string
	// Audience must be among those of a token.
	Audience string
	// TenantClaim names the claim that holds the tenant. Default "tenant".
	TenantClaim string
	// CAFile holds the authorities of the issuer's certificate. Default those
	// of the system.
	CAFile string
	// KeysFile is a JSON web key set to use in place of discovery. It is read
	// again when it changes.
	KeysFile string
	// Transport reaches the issuer. Default one without proxies.
	Transport http.RoundTripper
}

// maxTokenBytes bounds a token.
const maxTokenBytes = 16 << 10

// signatures a token may have: all that need no shared secret.
var signatures = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// tokens verifies JSON web tokens.
type tokens struct {
	set    oidc.KeySet
	issuer string
	config oidc.Config
	claim  string
}

// judgement is the key set of one token; it keeps the error that the verifier
// would only quote.
type judgement struct {
	set oidc.KeySet
	err error
}

// VerifySignature implements oidc.KeySet.
func (j *judgement) VerifySignature(ctx context.Context, token string) (payload []byte, err error) {
	payload, j.err = j.set.VerifySignature(ctx, token)
	return payload, j.err
}

func openTokens(o TokenOptions, logger *slog.Logger, now func() time.Time) (*tokens, error) {
	defaults.Set(&o.TenantClaim, "tenant")
	if o.Issuer == "" || o.Audience == "" {
		return nil, errors.New("JSON web tokens: expected an issuer and an audience")
	}
	var set oidc.KeySet
	if o.KeysFile != "" {
		file, err := livefile.Open(o.KeysFile, logger, parseKeySet)
		if err != nil {
			return nil, fmt.Errorf("JSON web tokens: keys: %w", err)
		}
		set = fileKeySet{file}
	} else {
		if err := checkIssuer(o.Issuer); err != nil {
			return nil, fmt.Errorf("JSON web tokens: %w", err)
		}
		client, err := issuerClient(o, logger)
		if err != nil {
			return nil, fmt.Errorf("JSON web tokens: %w", err)
		}
		set = newRemoteKeySet(o.Issuer, client, now, logger)
	}
	return &tokens{
		set: set, issuer: o.Issuer, claim: o.TenantClaim,
		config: oidc.Config{ClientID: o.Audience, SupportedSigningAlgs: signatures, Now: now},
	}, nil
}

// checkIssuer refuses issuers whose keys anybody on the way could replace.
func checkIssuer(issuer string) error {
	u, err := url.Parse(issuer)
	if err != nil || u.Hostname() == "" || u.User != nil {
		return errors.New("issuer: expected https://HOST/PATH")
	}
	address, err := netip.ParseAddr(u.Hostname())
	loopback := u.Hostname() == "localhost" || err == nil && address.IsLoopback()
	if u.Scheme != "https" && (u.Scheme != "http" || !loopback) {
		return errors.New("issuer: expected https, or http on this machine")
	}
	return nil
}

// find returns the caller that a token names. Errors never hold the token.
func (t *tokens) find(ctx context.Context, raw string) (Caller, error) {
	if len(raw) > maxTokenBytes {
		return Caller{}, errToken
	}
	judged := &judgement{set: t.set}
	token, err := oidc.NewVerifier(t.issuer, judged, &t.config).Verify(ctx, raw)
	switch {
	case errors.Is(judged.err, errKeysUnavailable):
		return Caller{}, ErrUnavailable
	case errors.As(err, new(*oidc.TokenExpiredError)):
		return Caller{}, fmt.Errorf("%w: the token has expired", ErrUnauthenticated)
	case err != nil:
		return Caller{}, errToken
	}
	var claims map[string]json.RawMessage
	tenant := ""
	if token.Claims(&claims) == nil {
		_ = json.Unmarshal(claims[t.claim], &tenant)
	}
	if CheckTenant(tenant) != nil {
		return Caller{}, fmt.Errorf("%w: the token names no tenant", ErrForbidden)
	}
	return Caller{Tenant: tenant}, nil
}

// errToken tells nothing about what is wrong, since strangers may ask.
var errToken = fmt.Errorf("%w: the credential is not accepted", ErrUnauthenticated)
