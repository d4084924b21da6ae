// SPDX-License-Identifier: Apache-2.0

package credential_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/credential"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is a self-signed certificate for a name, on disk.
type pair struct{ cert, key string }

func newPair(t *testing.T, dir, name string) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyBytes, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	p := pair{cert: filepath.Join(dir, name+".crt"), key: filepath.Join(dir, name+".key")}
	put(t, p.cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})))
	put(t, p.key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyBytes})))
	return p
}

// put replaces a file, as volumes do.
func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// shown is what a server saw of a client.
type shown struct{ authorization, certificate string }

// serve answers health checks and passes on what clients show. clients is the
// file of the authorities whose certificates are required, "" for none.
func serve(t *testing.T, server *pair, clients string) (address string, seen <-chan shown) {
	t.Helper()
	transport := insecure.NewCredentials()
	if server != nil {
		certificate, err := tls.LoadX509KeyPair(server.cert, server.key)
		if err != nil {
			t.Fatal(err)
		}
		config := &tls.Config{Certificates: []tls.Certificate{certificate}}
		if clients != "" {
			config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, poolOf(t, clients)
		}
		transport = credentials.NewTLS(config)
	}
	calls := make(chan shown, 8)
	s := grpc.NewServer(grpc.Creds(transport), grpc.UnaryInterceptor(
		func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			calls <- look(ctx)
			return next(ctx, request)
		}))
	healthpb.RegisterHealthServer(s, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(s.Stop)
	return listener.Addr().String(), calls
}

func poolOf(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return pool
}

func look(ctx context.Context) shown {
	var s shown
	s.authorization = strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), ",")
	p, _ := peer.FromContext(ctx)
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
		s.certificate = info.State.PeerCertificates[0].DNSNames[0]
	}
	return s
}

// call makes one call over a new connection.
func call(t *testing.T, client *credential.Client, address string) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, client.DialOptions("index.example")...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

func TestTokenFollowsItsFile(t *testing.T) {
	address, seen := serve(t, nil, "")
	file := filepath.Join(t.TempDir(), "token")
	client, err := credential.Open(credential.Options{TokenFile: file})
	if err != nil {
		t.Fatal(err)
	}
	if err := call(t, client, address); err == nil {
		t.Error("called without the token that is to be shown")
	}
	for _, token := range []string{"one", "two"} {
		put(t, file, token+"\n")
		if err := call(t, client, address); err != nil {
			t.Fatal(err)
		}
		if got := (<-seen).authorization; got != "Bearer "+token {
			t.Errorf("showed %q", got)
		}
	}
}

func TestNothingIsShownByDefault(t *testing.T) {
	address, seen := serve(t, nil, "")
	client, err := credential.Open(credential.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := call(t, client, address); err != nil {
		t.Fatal(err)
	}
	if got := (<-seen); got != (shown{}) {
		t.Errorf("showed %+v", got)
	}
	if value, err := client.Authorization(); value != "" || err != nil {
		t.Errorf("authorization %q, %v", value, err)
	}
}

func TestBothEndsShowCertificates(t *testing.T) {
	dir := t.TempDir()
	server, own := newPair(t, dir, "index.example"), newPair(t, dir, "pod.example")
	address, seen := serve(t, &server, own.cert)
	ca := filepath.Join(dir, "ca.crt")
	put(t, ca, readAll(t, newPair(t, t.TempDir(), "index.example").cert))
	client, err := credential.Open(credential.Options{CAFile: ca, CertFile: own.cert, KeyFile: own.key})
	if err != nil {
		t.Fatal(err)
	}
	if err := call(t, client, address); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a server of another authority: %v", err)
	}
	put(t, ca, readAll(t, server.cert))
	if err := call(t, client, address); err != nil {
		t.Fatalf("after the authority arrived: %v", err)
	}
	if got := (<-seen).certificate; got != "pod.example" {
		t.Errorf("showed the certificate of %q", got)
	}
	nameless, err := credential.Open(credential.Options{CAFile: ca})
	if err != nil {
		t.Fatal(err)
	}
	if call(t, nameless, address) == nil {
		t.Error("admitted without a certificate")
	}
}

func TestAuthoritiesMayBeHandedOverLater(t *testing.T) {
	server := newPair(t, t.TempDir(), "index.example")
	address, seen := serve(t, &server, "")
	token := filepath.Join(t.TempDir(), "token")
	put(t, token, "mine")
	handed := new(auth.Authorities)
	client, err := credential.Open(credential.Options{Roots: handed, TokenFile: token})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Check("index.example"); err != nil {
		t.Errorf("TLS is on, yet: %v", err)
	}
	for _, text := range []string{"", readAll(t, newPair(t, t.TempDir(), "index.example").cert)} {
		if err := handed.Replace([]byte(text)); (err == nil) != (text != "") {
			t.Errorf("handed over %d bytes: %v", len(text), err)
		}
		if err := call(t, client, address); err == nil || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("a server that nobody vouches for: %v", err)
		}
	}
	if err := handed.Replace([]byte(readAll(t, server.cert))); err != nil {
		t.Fatal(err)
	}
	if err := call(t, client, address); err != nil {
		t.Fatalf("after the authority arrived: %v", err)
	}
	if got := (<-seen).authorization; got != "Bearer mine" {
		t.Errorf("showed %q", got)
	}
}

func readAll(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestOptionsAreChecked(t *testing.T) {
	own := newPair(t, t.TempDir(), "index.example")
	for name, tc := range map[string]struct {
		options credential.Options
		host    string
		want    string // "" is no error
	}{
		"nothing":                       {credential.Options{}, "index.example", ""},
		"a token over TLS":              {credential.Options{TokenFile: "t", CAFile: own.cert}, "index.example", ""},
		"a token over loopback":         {credential.Options{TokenFile: "t"}, "::1", ""},
		"a token to this machine":       {credential.Options{TokenFile: "t"}, "localhost", ""},
		"a token in the open":           {credential.Options{TokenFile: "t"}, "index.example", "a token needs TLS or loopback"},
		"a token in the open, meant":    {credential.Options{TokenFile: "t", InsecureToken: true}, "index.example", ""},
		"a missing authority":           {credential.Options{CAFile: "/none"}, "", "/none"},
		"an authority without a PEM":    {credential.Options{CAFile: "client_test.go"}, "", "no certificate in it"},
		"a certificate without a key":   {credential.Options{CAFile: own.cert, CertFile: own.cert}, "", "both"},
		"a certificate without TLS":     {credential.Options{CertFile: own.cert, KeyFile: own.key}, "", "needs the CA file"},
		"a certificate that is missing": {credential.Options{CAFile: own.cert, CertFile: "/none", KeyFile: "/none"}, "", "/none"},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := credential.Open(tc.options)
			if err == nil {
				err = client.Check(tc.host)
			}
			if tc.want == "" {
				if err != nil {
					t.Errorf("error %v", err)
				}
				return
			}
			if !errors.Is(err, credential.ErrOptions) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one that says %q", err, tc.want)
			}
		})
	}
}
