// SPDX-License-Identifier: Apache-2.0

package caller_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/caller"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sum(key string) string {
	digest := sha256.Sum256([]byte(key))
	return hex.EncodeToString(digest[:])
}

// write replaces a file as a whole, as mounted secrets are.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	write(t, path, text)
	return path
}

func resolver(t *testing.T, options caller.Options) *caller.Resolver {
	t.Helper()
	r, err := caller.New(options)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// certificate is a verified one with the given names.
func certificate(t *testing.T, names ...string) *tls.ConnectionState {
	t.Helper()
	leaf := &x509.Certificate{}
	for _, name := range names {
		if !strings.Contains(name, "://") {
			leaf.DNSNames = append(leaf.DNSNames, name)
			continue
		}
		uri, err := url.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		leaf.URIs = append(leaf.URIs, uri)
	}
	return &tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}},
	}
}

func TestPrecedence(t *testing.T) {
	issuer := newIssuer(t)
	keysFile := file(t, "# a comment\n\n"+sum("key-a")+" team-a inflight=4,tokens-per-minute=1000\n"+sum("key-b")+" team-b\n")
	everything := caller.Options{
		KeysFile:     keysFile,
		Tokens:       caller.TokenOptions{Issuer: issuer.URL, Audience: "gateway", Transport: issuer.Client().Transport},
		Certificates: true,
	}
	open := everything
	open.DefaultTenant = "guests"
	token := "Bearer " + issuer.token(t, claims{"tenant": "team-j"})
	spiffe := certificate(t, "spiffe://cluster/ns/team-c/sa/app")
	for name, tc := range map[string]struct {
		options    caller.Options
		header     []string
		tls        *tls.ConnectionState
		trusted    bool
		want       caller.Caller
		wantMethod caller.Method
		wantErr    error
	}{
		"nothing is asked for":         {wantMethod: caller.MethodDefault, want: caller.Caller{Tenant: "default"}},
		"nothing but another default":  {options: caller.Options{DefaultTenant: "us"}, wantMethod: caller.MethodDefault, want: caller.Caller{Tenant: "us"}},
		"a header from a stranger":     {header: []string{caller.TenantHeader, "team-a"}, wantMethod: caller.MethodDefault, want: caller.Caller{Tenant: "default"}},
		"a header from a trusted peer": {header: []string{caller.TenantHeader, "team-a"}, trusted: true, wantMethod: caller.MethodHeader, want: caller.Caller{Tenant: "team-a"}},
		"two tenants from a trusted peer": {
			header: []string{caller.TenantHeader, "team-a", caller.TenantHeader, "team-b"}, trusted: true, wantErr: caller.ErrInvalid,
		},
		"a tenant that cannot be": {header: []string{caller.TenantHeader, "a b"}, trusted: true, wantErr: caller.ErrInvalid},
		"a key": {
			options: everything, header: []string{"Authorization", "Bearer key-a"}, wantMethod: caller.MethodKey,
			want: caller.Caller{Tenant: "team-a", Limits: caller.Limits{MaxInflight: 4, TokensPerMinute: 1000}},
		},
		"a key in the other header": {
			options: everything, header: []string{"X-Api-Key", "key-b"}, wantMethod: caller.MethodKey, want: caller.Caller{Tenant: "team-b"},
		},
		"a key before a certificate and a header": {
			options: everything, header: []string{"Authorization", "bearer key-b", caller.TenantHeader, "team-x"}, tls: spiffe, trusted: true,
			wantMethod: caller.MethodKey, want: caller.Caller{Tenant: "team-b"},
		},
		"a certificate": {options: everything, tls: spiffe, wantMethod: caller.MethodCertificate, want: caller.Caller{Tenant: "team-c"}},
		"a certificate before a token": {
			options: everything, header: []string{"Authorization", token}, tls: spiffe,
			wantMethod: caller.MethodCertificate, want: caller.Caller{Tenant: "team-c"},
		},
		"a token": {options: everything, header: []string{"Authorization", token}, wantMethod: caller.MethodToken, want: caller.Caller{Tenant: "team-j"}},
		"a token beside a nameless certificate": {
			options: everything, header: []string{"Authorization", token}, tls: certificate(t),
			wantMethod: caller.MethodToken, want: caller.Caller{Tenant: "team-j"},
		},
		"a bad token beside a good certificate": {
			options: everything, header: []string{"Authorization", "Bearer x.y.z"}, tls: spiffe, wantErr: caller.ErrUnauthenticated,
		},
		"a certificate that names nobody":   {options: everything, tls: certificate(t, "spiffe://cluster/sa/app"), wantErr: caller.ErrForbidden},
		"nothing where something is needed": {options: everything, wantErr: caller.ErrUnauthenticated},
		"nothing from a trusted peer":       {options: everything, trusted: true, wantErr: caller.ErrUnauthenticated},
		"nothing where guests are welcome":  {options: open, wantMethod: caller.MethodDefault, want: caller.Caller{Tenant: "guests"}},
		"a bad key where guests are welcome": {
			options: open, header: []string{"Authorization", "Bearer nonsense"}, wantErr: caller.ErrUnauthenticated,
		},
		"a trusted peer that passes on what it got": {
			options: everything, header: []string{"Authorization", "Bearer nonsense", caller.TenantHeader, "team-a"}, trusted: true,
			wantMethod: caller.MethodHeader, want: caller.Caller{Tenant: "team-a"},
		},
		"another scheme": {options: everything, header: []string{"Authorization", "Basic a2V5LWE="}, wantErr: caller.ErrUnauthenticated},
		"two keys":       {options: everything, header: []string{"Authorization", "Bearer key-a", "Authorization", "Bearer key-b"}, wantErr: caller.ErrUnauthenticated},
		"an empty key":   {options: everything, header: []string{"Authorization", "Bearer "}, wantErr: caller.ErrUnauthenticated},
		"the sum of a key": {
			options: everything, header: []string{"Authorization", "Bearer " + sum("key-a")}, wantErr: caller.ErrUnauthenticated,
		},
	} {
		t.Run(name, func(t *testing.T) {
			shown := &caller.Shown{Header: http.Header{}, TLS: tc.tls, Trusted: tc.trusted}
			for i := 0; i < len(tc.header); i += 2 {
				shown.Header.Add(tc.header[i], tc.header[i+1])
			}
			got, method, err := resolver(t, tc.options).Resolve(t.Context(), shown)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("error %v, want %v", err, tc.wantErr)
			}
			if err != nil {
				for _, secret := range []string{"key-", "nonsense", "x.y.z", "a2V5"} {
					if strings.Contains(err.Error(), secret) {
						t.Errorf("error %q tells a credential", err)
					}
				}
				return
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || method != tc.wantMethod {
				t.Errorf("by %s (-want +got):\n%s", method, diff)
			}
		})
	}
}

func TestCertificateNames(t *testing.T) {
	names := file(t, "spiffe://cluster/ns/x/sa/app team-a inflight=2\nclient.example team-b\nother.example team-a inflight=2\n")
	r := resolver(t, caller.Options{Certificates: true, CertificateTenantsFile: names})
	for name, tc := range map[string]struct {
		names []string
		want  string // "" is refused
	}{
		"a URI of the file":                  {[]string{"spiffe://cluster/ns/x/sa/app"}, "team-a"},
		"a DNS name of the file":             {[]string{"client.example"}, "team-b"},
		"two names of one tenant":            {[]string{"spiffe://cluster/ns/x/sa/app", "other.example"}, "team-a"},
		"names of two tenants":               {[]string{"spiffe://cluster/ns/x/sa/app", "client.example"}, ""},
		"a namespace that no line speaks of": {[]string{"spiffe://cluster/ns/y/sa/app"}, ""},
		"no name":                            {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := r.Resolve(t.Context(), &caller.Shown{Header: http.Header{}, TLS: certificate(t, tc.names...)})
			if got.Tenant != tc.want || (tc.want == "") != errors.Is(err, caller.ErrForbidden) {
				t.Errorf("%+v, %v; want %q", got, err, tc.want)
			}
		})
	}
	unverified := certificate(t, "client.example")
	unverified.VerifiedChains = nil
	if _, _, err := r.Resolve(t.Context(), &caller.Shown{Header: http.Header{}, TLS: unverified}); !errors.Is(err, caller.ErrUnauthenticated) {
		t.Errorf("a certificate nobody verified: %v", err)
	}
}

func TestKeysFollowTheirFile(t *testing.T) {
	path := file(t, sum("one")+" team-a\n")
	var logs bytes.Buffer
	r := resolver(t, caller.Options{KeysFile: path, Logger: slog.New(slog.NewTextHandler(&logs, nil))})
	tenantOf := func(key string) string {
		got, _, _ := r.Resolve(t.Context(), &caller.Shown{Header: http.Header{"X-Api-Key": {key}}})
		return got.Tenant
	}
	if got := tenantOf("one"); got != "team-a" {
		t.Fatalf("tenant %q", got)
	}
	write(t, path, sum("two")+" team-b tokens-per-minute=5\n")
	if one, two := tenantOf("one"), tenantOf("two"); one != "" || two != "team-b" {
		t.Errorf("after the change: %q and %q, want only the second key", one, two)
	}
	write(t, path, "secret-in-the-clear team-b and more and more\n")
	if got := tenantOf("two"); got != "team-b" {
		t.Errorf("with a file that cannot be used: %q, want what was read last", got)
	}
	if text := logs.String(); !strings.Contains(text, "line 1") || strings.Contains(text, "secret-in-the-clear") {
		t.Errorf("logs:\n%s\nwant the line and none of its words", text)
	}
}

func TestOneTenantOnly(t *testing.T) {
	one, two := sum("a")+" team-a\n"+sum("b")+" team-a\n", sum("a")+" team-a\n"+sum("b")+" team-b\n"
	for name, tc := range map[string]struct {
		text, fallback string
		several        bool
	}{
		"one tenant with two keys":             {one, "", false},
		"two tenants":                          {two, "", true},
		"one tenant and guests":                {one, "guests", true},
		"one tenant, which is the guests' too": {one, "team-a", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := caller.New(caller.Options{KeysFile: file(t, tc.text), DefaultTenant: tc.fallback, OneTenant: true})
			if errors.Is(err, caller.ErrSeveralTenants) != tc.several {
				t.Errorf("error %v", err)
			}
		})
	}
	path := file(t, one)
	r := resolver(t, caller.Options{KeysFile: path, OneTenant: true})
	write(t, path, two)
	if _, _, err := r.Resolve(t.Context(), &caller.Shown{Header: http.Header{"X-Api-Key": {"b"}}}); err != nil {
		t.Errorf("a second tenant that came later replaced the file: %v", err)
	}
}

func TestFilesAreChecked(t *testing.T) {
	good := sum("a")
	for name, tc := range map[string]struct{ text, want string }{
		"no tenant":               {good + "\n", "line 1"},
		"a sum that is too short": {good[1:] + " team\n", "SHA-256"},
		"a sum that is too long":  {good + "0 team\n", "SHA-256"},
		"no hex":                  {"\n" + strings.Repeat("x", 64) + " team\n", "line 2"},
		"a tenant of two words":   {good + " team b c d\n", "line 1"},
		"a tenant in umlauts":     {good + " täm\n", "tenant"},
		"a limit without number":  {good + " team inflight\n", "limits"},
		"a limit of nothing":      {good + " team inflight=0\n", "limits"},
		"an unknown limit":        {good + " team pages=3\n", "limits"},
		"limits that disagree":    {good + " team inflight=1\n" + sum("b") + " team inflight=2\n", "line 2"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := caller.New(caller.Options{KeysFile: file(t, tc.text)})
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), good) {
				t.Errorf("error %v, want one that says %q and no key", err, tc.want)
			}
		})
	}
	if _, err := caller.New(caller.Options{KeysFile: filepath.Join(t.TempDir(), "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestAddKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	first, err := caller.AddKey(path, "team-a", "inflight=3")
	if err != nil {
		t.Fatal(err)
	}
	// A line without an end must not swallow the next.
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, strings.TrimRight(string(text), "\n"))
	second, err := caller.AddKey(path, "team-b", "")
	if err != nil {
		t.Fatal(err)
	}
	if first == second || len(first) < 40 {
		t.Errorf("keys %d and %d bytes long, equal %t", len(first), len(second), first == second)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	text, err = os.ReadFile(path)
	if err != nil || strings.Contains(string(text), first) || strings.Contains(string(text), second) {
		t.Errorf("the file holds a key, or %v", err)
	}
	r := resolver(t, caller.Options{KeysFile: path})
	for key, want := range map[string]caller.Caller{
		first:  {Tenant: "team-a", Limits: caller.Limits{MaxInflight: 3}},
		second: {Tenant: "team-b"},
	} {
		got, _, err := r.Resolve(t.Context(), &caller.Shown{Header: http.Header{"X-Api-Key": {key}}})
		if got != want || err != nil {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	for what, add := range map[string][2]string{"a bad tenant": {"a b", ""}, "bad limits": {"team-c", "much"}, "other limits": {"team-a", "inflight=9"}} {
		if _, err := caller.AddKey(path, add[0], add[1]); err == nil {
			t.Errorf("%s was added", what)
		}
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(after, text) {
		t.Error("a refused key changed the file")
	}
}

// No file may crash the parser, and what is accepted has tenants that may be.
func FuzzKeys(f *testing.F) {
	f.Add([]byte(sum("a") + " team inflight=1\n# x\n"))
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := caller.New(caller.Options{KeysFile: path}); err != nil && len(err.Error()) > 1000 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}
