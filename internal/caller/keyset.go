// SPDX-License-Identifier: Apache-2.0

package caller

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/livefile"
)

const (
	// keysInterval is the least time between two looks at the issuer's keys,
	// so that tokens with invented key ids do not turn into calls.
	keysInterval = 10 * time.Second
	// keysLife is how long keys are used without a new look, so that a key
	// the issuer withdrew stops to count.
	keysLife     = 10 * time.Minute
	keysTimeout  = 5 * time.Second
	maxKeysBytes = 1 << 20
)

var (
	// errKeysUnavailable means that the issuer never told its keys.
	errKeysUnavailable = errors.New("the issuer's keys are not available")
	errSignature       = errors.New("the signature does not verify")
)

// parseKeySet reads a JSON web key set and keeps its public keys.
func parseKeySet(text []byte) (*jose.JSONWebKeySet, error) {
	set := &jose.JSONWebKeySet{}
	if json.Unmarshal(text, set) != nil {
		return nil, errors.New("expected a JSON web key set")
	}
	set.Keys = slices.DeleteFunc(set.Keys, func(key jose.JSONWebKey) bool {
		return !key.Valid() || !key.IsPublic() || key.Use != "" && key.Use != "sig"
	})
	if len(set.Keys) == 0 {
		return nil, errors.New("expected a JSON web key set with a public key for signatures")
	}
	return set, nil
}

// verifySignature returns the payload of a token that one of the keys signed;
// known is false when no key may be the one it names.
func verifySignature(set *jose.JSONWebKeySet, token string) (payload []byte, known bool, err error) {
	algorithms := make([]jose.SignatureAlgorithm, len(signatures))
	for i, name := range signatures {
		algorithms[i] = jose.SignatureAlgorithm(name)
	}
	signed, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil || len(signed.Signatures) != 1 {
		return nil, true, errSignature
	}
	id := signed.Signatures[0].Header.KeyID
	for i := range set.Keys {
		if key := &set.Keys[i]; id == "" || key.KeyID == id {
			known = true
			if payload, err := signed.Verify(key); err == nil {
				return payload, true, nil
			}
		}
	}
	return nil, known, errSignature
}

type fileKeySet struct {
	file *livefile.File[*jose.JSONWebKeySet]
}

var _ oidc.KeySet = fileKeySet{}

// VerifySignature implements oidc.KeySet.
func (f fileKeySet) VerifySignature(_ context.Context, token string) ([]byte, error) {
	payload, _, err := verifySignature(f.file.Get(), token)
	return payload, err
}

// remoteKeySet knows the keys an issuer publishes. Keys it once had stay in
// use while the issuer cannot be reached.
type remoteKeySet struct {
	issuer string
	client *http.Client
	now    func() time.Time
	logger *slog.Logger

	// fetching lets one caller at a time ask the issuer.
	fetching sync.Mutex

	mu sync.Mutex
	// set is nil before the first answer, read when it came and tried when
	// the issuer was asked last; all guarded by mu.
	set         *jose.JSONWebKeySet
	read, tried time.Time
}

var _ oidc.KeySet = (*remoteKeySet)(nil)

func newRemoteKeySet(issuer string, client *http.Client, now func() time.Time, logger *slog.Logger) *remoteKeySet {
	return &remoteKeySet{issuer: issuer, client: client, now: now, logger: logger}
}

// VerifySignature implements oidc.KeySet.
func (r *remoteKeySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	set, fresh := r.current()
	if set != nil && fresh {
		payload, known, err := verifySignature(set, token)
		if known {
			return payload, err
		}
	}
	set = r.refresh(ctx)
	if set == nil {
		return nil, errKeysUnavailable
	}
	payload, _, err := verifySignature(set, token)
	return payload, err
}

func (r *remoteKeySet) current() (set *jose.JSONWebKeySet, fresh bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.set, r.now().Sub(r.read) < keysLife
}

// refresh asks the issuer unless that was done a moment ago, and returns the
// keys known then.
func (r *remoteKeySet) refresh(ctx context.Context) *jose.JSONWebKeySet {
	r.fetching.Lock()
	defer r.fetching.Unlock()
	r.mu.Lock()
	set, wait := r.set, !r.tried.IsZero() && r.now().Sub(r.tried) < keysInterval
	if !wait {
		r.tried = r.now()
	}
	r.mu.Unlock()
	if wait {
		return set
	}
	// The answer serves all callers, so it does not end with this one.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keysTimeout)
	defer cancel()
	fetched, err := r.fetch(ctx)
	if err != nil {
		r.logger.Warn("cannot read the keys of the token issuer", "issuer", r.issuer, "error", err)
		return set
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set, r.read = fetched, r.now()
	return fetched
}

// fetch finds and reads the issuer's keys.
func (r *remoteKeySet) fetch(ctx context.Context) (*jose.JSONWebKeySet, error) {
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, r.client), r.issuer)
	if err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	var metadata struct {
		KeysURL string `json:"jwks_uri"`
	}
	if err := provider.Claims(&metadata); err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	if err := checkIssuer(metadata.KeysURL); err != nil {
		return nil, errors.New("discovery: jwks_uri: expected https, or http on this machine")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, metadata.KeysURL, nil)
	if err != nil {
		return nil, errors.New("discovery: jwks_uri is no URL")
	}
	response, err := r.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read keys: status %d", response.StatusCode)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	return parseKeySet(text)
}

// issuerClient reaches the issuer and nobody else: it follows no redirect,
// uses no proxy and reads a bounded answer.
func issuerClient(o TokenOptions, logger *slog.Logger) (*http.Client, error) {
	transport := o.Transport
	if transport == nil {
		own := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}
		if o.CAFile != "" {
			roots, err := auth.OpenRoots(o.CAFile, logger)
			if err != nil {
				return nil, err
			}
			own.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots.Pool()}
		}
		transport = own
	}
	return &http.Client{
		Transport:     boundedAnswers{transport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// boundedAnswers cuts bodies at maxKeysBytes.
type boundedAnswers struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b boundedAnswers) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(request)
	if err == nil {
		response.Body = &boundedBody{io.LimitReader(response.Body, maxKeysBytes), response.Body}
	}
	return response, err
}

type boundedBody struct {
	io.Reader
	io.Closer
}
