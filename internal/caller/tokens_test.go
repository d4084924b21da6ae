// SPDX-License-Identifier: Apache-2.0

package caller_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/inferencecache/inference-cache/internal/caller"
)

type claims map[string]any

// issuer is an OpenID provider on loopback.
type issuer struct {
	*httptest.Server

	mu     sync.Mutex
	keys   []jose.JSONWebKey
	signer jose.Signer
	broken bool
	// calls counts looks at the keys.
	calls int
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{}
	i.Server = httptest.NewTLSServer(i)
	t.Cleanup(i.Close)
	i.rotate(t, "first")
	return i
}

// rotate replaces the issuer's key.
func (i *issuer) rotate(t *testing.T, id string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = []jose.JSONWebKey{{Key: key.Public(), KeyID: id, Algorithm: "ES256", Use: "sig"}}
	i.signer = signer
}

func (i *issuer) setBroken(broken bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.broken = broken
}

func (i *issuer) looks() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.calls
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.broken:
		w.WriteHeader(http.StatusInternalServerError)
	case r.URL.Path == "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": i.URL, "jwks_uri": i.URL + "/keys"})
	case r.URL.Path == "/keys":
		i.calls++
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: i.keys})
	default:
		http.NotFound(w, r)
	}
}

// token signs claims; what they leave out is filled in.
func (i *issuer) token(t *testing.T, own claims) string {
	t.Helper()
	all := claims{"iss": i.URL, "aud": "gateway", "sub": "user", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, own)
	payload, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	signed, err := i.signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func bearer(token string) *caller.Shown {
	return &caller.Shown{Header: http.Header{"Authorization": {"Bearer " + token}}}
}

func TestTokens(t *testing.T) {
	i, stranger := newIssuer(t), newIssuer(t)
	options := caller.TokenOptions{Issuer: i.URL, Audience: "gateway", TenantClaim: "org", Transport: i.Client().Transport}
	r := resolver(t, caller.Options{Tokens: options})
	good := i.token(t, claims{"org": "team"})
	head, rest, _ := strings.Cut(good, ".")
	payload, _, _ := strings.Cut(rest, ".")
	for name, tc := range map[string]struct {
		token string
		want  error
	}{
		"a good one":                   {good, nil},
		"several audiences":            {i.token(t, claims{"org": "team", "aud": []string{"other", "gateway"}}), nil},
		"another audience":             {i.token(t, claims{"org": "team", "aud": "other"}), caller.ErrUnauthenticated},
		"another issuer's":             {stranger.token(t, claims{"org": "team"}), caller.ErrUnauthenticated},
		"another issuer's in its name": {stranger.token(t, claims{"org": "team", "iss": i.URL}), caller.ErrUnauthenticated},
		"expired":                      {i.token(t, claims{"org": "team", "exp": time.Now().Add(-time.Minute).Unix()}), caller.ErrUnauthenticated},
		"no end":                       {i.token(t, claims{"org": "team", "exp": nil}), caller.ErrUnauthenticated},
		"not yet good":                 {i.token(t, claims{"org": "team", "nbf": time.Now().Add(time.Hour).Unix()}), caller.ErrUnauthenticated},
		"no tenant":                    {i.token(t, nil), caller.ErrForbidden},
		"a tenant that is a number":    {i.token(t, claims{"org": 7}), caller.ErrForbidden},
		"a tenant that cannot be":      {i.token(t, claims{"org": "a b"}), caller.ErrForbidden},
		"no signature":                 {head + "." + payload + ".", caller.ErrUnauthenticated},
		"a header that says none":      {"eyJhbGciOiJub25lIn0." + payload + ".", caller.ErrUnauthenticated},
		"no token":                     {"nonsense", caller.ErrUnauthenticated},
		"far too long":                 {strings.Repeat("a", 1<<20), caller.ErrUnauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := r.Resolve(t.Context(), bearer(tc.token))
			if !errors.Is(err, tc.want) || err == nil && got.Tenant != "team" {
				t.Fatalf("%+v, %v; want %v", got, err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), tc.token) {
				t.Error("the error tells the token")
			}
		})
	}
}

func TestTokenKeysAreFollowed(t *testing.T) {
	i := newIssuer(t)
	now := time.Now()
	var logs bytes.Buffer
	r := resolver(t, caller.Options{
		Tokens: caller.TokenOptions{Issuer: i.URL, Audience: "gateway", Transport: i.Client().Transport},
		Now:    func() time.Time { return now }, Logger: slog.New(slog.NewTextHandler(&logs, nil)),
	})
	resolve := func(token string) error {
		_, _, err := r.Resolve(t.Context(), bearer(token))
		return err
	}
	old := i.token(t, claims{"tenant": "team"})
	i.setBroken(true)
	if err := resolve(old); !errors.Is(err, caller.ErrUnavailable) {
		t.Fatalf("an issuer that never answered: %v", err)
	}
	i.setBroken(false)
	now = now.Add(11 * time.Second)
	if err := resolve(old); err != nil {
		t.Fatalf("once it answers: %v", err)
	}
	i.rotate(t, "second")
	renewed := i.token(t, claims{"tenant": "team"})
	if err := resolve(renewed); !errors.Is(err, caller.ErrUnauthenticated) {
		t.Errorf("a key nobody knows, a moment after the last look: %v", err)
	}
	for range 20 {
		_ = resolve(renewed)
	}
	if got := i.looks(); got != 1 {
		t.Errorf("%d looks at the keys, want 1: unknown keys must not cause calls", got)
	}
	now = now.Add(11 * time.Second)
	if err := resolve(renewed); err != nil {
		t.Errorf("a new key: %v", err)
	}
	if err := resolve(old); !errors.Is(err, caller.ErrUnauthenticated) {
		t.Errorf("a withdrawn key: %v", err)
	}
	i.setBroken(true)
	now = now.Add(20 * time.Minute)
	if err := resolve(i.token(t, claims{"tenant": "team", "exp": now.Add(time.Hour).Unix()})); err != nil {
		t.Errorf("known keys while the issuer is down: %v", err)
	}
	if text := logs.String(); !strings.Contains(text, "issuer") || strings.Contains(text, old) {
		t.Errorf("logs:\n%s", text)
	}
}

func TestTokenKeysFromAFile(t *testing.T) {
	i := newIssuer(t)
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: i.keys})
	if err != nil {
		t.Fatal(err)
	}
	r := resolver(t, caller.Options{Tokens: caller.TokenOptions{
		Issuer: i.URL, Audience: "gateway", KeysFile: file(t, string(text)),
	}})
	if got, _, err := r.Resolve(t.Context(), bearer(i.token(t, claims{"tenant": "team"}))); got.Tenant != "team" || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if i.looks() != 0 {
		t.Error("the issuer was asked")
	}
}

func TestTokenOptionsAreChecked(t *testing.T) {
	for name, options := range map[string]caller.TokenOptions{
		"no audience":            {Issuer: "https://issuer.example"},
		"an issuer in the open":  {Issuer: "http://issuer.example", Audience: "a"},
		"an issuer with a user":  {Issuer: "https://u@issuer.example", Audience: "a"},
		"keys that are none":     {Issuer: "x", Audience: "a", KeysFile: "tokens_test.go"},
		"authorities of nothing": {Issuer: "https://issuer.example", Audience: "a", CAFile: "tokens_test.go"},
		"keys without an issuer": {Audience: "a", KeysFile: "x"},
	} {
		if _, err := caller.New(caller.Options{Tokens: options}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
