// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/inferencecache/inference-cache/internal/credential"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/publisher"
	"github.com/inferencecache/inference-cache/internal/testcert"
	"github.com/inferencecache/inference-cache/internal/zmtp"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startServer serves CacheSync and returns its address.
func startServer(t *testing.T, address string, options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	pb.RegisterCacheSyncServer(s, ingest.NewSyncServer(index.New(index.Config{}), ingest.SyncOptions{}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return l.Addr().String()
}

// startEngine binds an event socket on which nothing happens.
func startEngine(t *testing.T) string {
	t.Helper()
	l, err := zmtp.Listen("tcp://127.0.0.1:*", zmtp.Options{Type: zmtp.PUB})
	if err != nil {
		t.Fatal(err)
	}
	pub := zmtp.NewPub(l, zmtp.PubOptions{})
	t.Cleanup(func() { _ = pub.Close() })
	return l.Endpoint()
}

// start runs a sidecar until the test ends or the returned function is called.
func start(t *testing.T, options Options) (s *Sidecar, stop func()) {
	t.Helper()
	options.HTTPAddress = "127.0.0.1:0"
	s, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("sidecar ended with %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return s, stop
}

func config(t *testing.T) publisher.Config {
	return publisher.Config{Replica: "pod", Model: "m", Events: startEngine(t)}
}

func get(t *testing.T, s *Sidecar, path string) (code int, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + s.HTTPAddress() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(b)
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s did not happen in time", what)
		}
	}
}

// live returns the servers that are in step.
func live(s *Sidecar) []string {
	var names []string
	for _, rank := range s.pub.Status().Ranks {
		for _, server := range rank.Servers {
			if server.State == publisher.LinkLive {
				names = append(names, server.Target)
			}
		}
	}
	return names
}

func TestSidecarBecomesReady(t *testing.T) {
	server := startServer(t, "127.0.0.1:0")
	s, stop := start(t, Options{Publisher: config(t), Servers: []string{server}})
	eventually(t, "readiness", func() bool {
		code, _ := get(t, s, "/readyz")
		return code == http.StatusOK
	})
	for path, want := range map[string]string{
		"/livez":   "ok\n",
		"/metrics": "inferencecache_publisher_streams_expected 1\n",
		"/status":  `"StreamsLive":1`,
	} {
		if code, body := get(t, s, path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d, no %q in %.300s", path, code, want, body)
		}
	}
	stop()
}

func TestSidecarWithoutServerOrEngine(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := gone.Addr().String()
	_ = gone.Close()
	s, stop := start(t, Options{
		Publisher: publisher.Config{Replica: "pod", Model: "m", Events: "tcp://" + address},
		Servers:   []string{address},
	})
	eventually(t, "a stream", func() bool { return s.pub.Status().StreamsExpected == 1 })
	if code, body := get(t, s, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "streams 0/1") {
		t.Errorf("got %d %q", code, body)
	}
	if code, _ := get(t, s, "/livez"); code != http.StatusOK {
		t.Errorf("not alive: %d", code)
	}
	stop()
}

// names is a resolver that tests set.
type names struct {
	mu    sync.Mutex
	hosts []string
	err   error
}

func (n *names) set(err error, hosts ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts, n.err = hosts, err
}

func (n *names) LookupHost(context.Context, string) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hosts, n.err
}

func TestServersBehindOneName(t *testing.T) {
	first := startServer(t, "127.0.0.1:0")
	_, port, err := net.SplitHostPort(first)
	if err != nil {
		t.Fatal(err)
	}
	second := startServer(t, "127.0.0.2:"+port)
	var resolver names
	resolver.set(errors.New("no such host"))
	s, _ := start(t, Options{
		Publisher: config(t), Servers: []string{"dns:///servers:" + port},
		Resolver: &resolver, ResolveInterval: time.Millisecond,
	})
	for _, step := range []struct {
		err   error
		hosts []string
		want  []string
	}{
		{nil, []string{"127.0.0.1"}, []string{first}},
		{nil, []string{"127.0.0.1", "127.0.0.2"}, []string{first, second}},
		{errors.New("no answer"), nil, []string{first, second}},
		{nil, []string{"127.0.0.2"}, []string{second}},
	} {
		resolver.set(step.err, step.hosts...)
		eventually(t, fmt.Sprint(step.want), func() bool { return cmp.Equal(step.want, live(s)) })
	}
}

// selfSigned writes a certificate for name and returns it with its file.
func selfSigned(t *testing.T, name string) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

func TestTokenTravelsOverTLS(t *testing.T) {
	certificate, ca := selfSigned(t, "index.example")
	tokens := make(chan string, 10)
	server := startServer(t, "127.0.0.1:0",
		grpc.Creds(credentials.NewServerTLSFromCert(&certificate)),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			md, _ := metadata.FromIncomingContext(stream.Context())
			tokens <- strings.Join(md.Get("authorization"), ",")
			return handler(srv, stream)
		}))
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, _ := start(t, Options{
		Publisher: config(t), Servers: []string{server}, Credentials: credential.Options{CAFile: ca, ServerName: "index.example", TokenFile: token},
	})
	eventually(t, "a session", func() bool { return len(live(s)) == 1 })
	if got := <-tokens; got != "Bearer secret" {
		t.Errorf("got %q", got)
	}
}

func TestServerOfAnotherName(t *testing.T) {
	certificate, ca := selfSigned(t, "index.example")
	server := startServer(t, "127.0.0.1:0", grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
	s, _ := start(t, Options{Publisher: config(t), Servers: []string{server}, Credentials: credential.Options{CAFile: ca, ServerName: "other.example"}})
	eventually(t, "a refused certificate", func() bool {
		ranks := s.pub.Status().Ranks
		return len(ranks) == 1 && len(ranks[0].Servers) == 1 && strings.Contains(ranks[0].Servers[0].LastError, "certificate")
	})
	if got := live(s); len(got) != 0 {
		t.Errorf("in step with %v", got)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := publisher.Config{Replica: "pod", Model: "m", Events: "tcp://127.0.0.1:1"}
	tests := map[string]struct {
		options Options
		want    string // "" is no error
	}{
		"the least":                   {Options{Publisher: good, Servers: []string{"h:1"}}, ""},
		"no server":                   {Options{Publisher: good}, "no server is given"},
		"a server without a port":     {Options{Publisher: good, Servers: []string{"h"}}, "host:port or dns:///host:port expected"},
		"a name without a port":       {Options{Publisher: good, Servers: []string{"dns:///h"}}, "host:port or dns:///host:port expected"},
		"a publisher without a name":  {Options{Publisher: publisher.Config{}, Servers: []string{"h:1"}}, "replica: a name is needed"},
		"an absent CA":                {Options{Publisher: good, Servers: []string{"h:1"}, Credentials: credential.Options{CAFile: "/nonexistent"}}, "/nonexistent"},
		"a CA that is none":           {Options{Publisher: good, Servers: []string{"h:1"}, Credentials: credential.Options{CAFile: "sidecar_test.go"}}, "no certificate in it"},
		"a token in the clear":        {Options{Publisher: good, Servers: []string{"h:1"}, Credentials: credential.Options{TokenFile: "t"}}, "a token needs TLS or loopback"},
		"a token in the clear, meant": {Options{Publisher: good, Servers: []string{"h:1"}, Credentials: credential.Options{TokenFile: "t", InsecureToken: true}}, ""},
		"a token over loopback":       {Options{Publisher: good, Servers: []string{"127.0.0.1:1", "localhost:1", "[::1]:1"}, Credentials: credential.Options{TokenFile: "t"}}, ""},
		"the caller's fault":          {Options{Publisher: good, Servers: []string{"h:1"}, Fault: errors.New("bad flag")}, "bad flag"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := New(tc.options)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("got %v", err)
			case tc.want != "" && (!errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestKeepRunning(t *testing.T) {
	s, stop := start(t, Options{KeepRunning: true})
	for path, want := range map[string]int{
		"/livez": http.StatusOK, "/readyz": http.StatusServiceUnavailable,
		"/status": http.StatusServiceUnavailable, "/metrics": http.StatusOK,
	} {
		if code, body := get(t, s, path); code != want {
			t.Errorf("%s: got %d %q, want %d", path, code, body, want)
		}
	}
	stop()
}

// An authority that is published after the pod started is picked up without a
// restart.
func TestKeepRunningUntilTheAuthorityComes(t *testing.T) {
	authority := testcert.NewAuthority(t)
	certificate := authority.Issue(t, "127.0.0.1")
	server := startServer(t, "127.0.0.1:0", grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
	file := filepath.Join(t.TempDir(), "ca.crt")
	s, stop := start(t, Options{
		Publisher: config(t), Servers: []string{server}, KeepRunning: true, ResolveInterval: 10 * time.Millisecond,
		Credentials: credential.Options{CAFile: file},
	})
	if code, body := get(t, s, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "ca.crt") {
		t.Errorf("without the authority: %d %q, want the file named", code, body)
	}
	text, err := os.ReadFile(authority.File)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ready", func() bool { code, _ := get(t, s, "/readyz"); return code == http.StatusOK })
	stop()
}

func TestHTTPAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = New(Options{
		Publisher: publisher.Config{Replica: "pod", Model: "m", Events: "tcp://127.0.0.1:1"},
		Servers:   []string{"h:1"}, HTTPAddress: l.Addr().String(),
	})
	if err == nil || errors.Is(err, ErrOptions) {
		t.Errorf("got %v, want a failure to listen", err)
	}
}

func TestPublishesWithoutHTTPWhereItsAddressIsInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	opened := make(chan struct{}, 1)
	server := startServer(t, "127.0.0.1:0", grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		select {
		case opened <- struct{}{}:
		default:
		}
		return next(srv, stream)
	}))
	s, err := New(Options{Publisher: config(t), Servers: []string{server}, HTTPAddress: l.Addr().String(), KeepRunning: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-opened:
	case err := <-ended:
		t.Fatalf("it ended with %v", err)
	case <-time.After(20 * time.Second):
		t.Fatal("it does not publish")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}
