// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/inferencecache/inference-cache/internal/testcert"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func TestFilesAreRead(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "token")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args      []string
		want, err string
	}{
		"cat":              {args: []string{"cat", file, file}, want: "secretsecret"},
		"cat of no file":   {args: []string{"cat"}, err: "expected a file"},
		"cat of an absent": {args: []string{"cat", file + "x"}, err: "no such file"},
		"ls":               {args: []string{"ls", folder}, want: "token\n"},
		"ls of two":        {args: []string{"ls", folder, folder}, err: "expected one argument, got 2"},
		"an address":       {args: []string{"resolve", "127.0.0.1"}, want: "127.0.0.1\n"},
		"help":             {args: []string{"help"}, want: usage},
		"nothing":          {err: "expected a command"},
		"another command":  {args: []string{"rm"}, err: `unknown command "rm"`},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := run(t.Context(), tc.args, &out)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			if tc.err == "" && out.String() != tc.want {
				t.Errorf("printed %q, want %q", out.String(), tc.want)
			}
		})
	}
}

func TestGetShowsTokenAndBody(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/here" {
			http.Error(w, "nothing there", http.StatusNotFound)
			return
		}
		fmt.Fprintf(w, "%s %s %s %d", r.Method, r.Header.Get("Authorization"), r.Header.Get("Content-Type"), r.ContentLength)
	}))
	defer server.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("t\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(t.Context(), []string{"get", "-token-file", token, "-method=POST", "-body={}", server.URL + "/here"}, &out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != "POST Bearer t application/json 2" {
		t.Errorf("the server saw %q", got)
	}
	out.Reset()
	if err := run(t.Context(), []string{"get", server.URL + "/elsewhere"}, &out); err == nil || err.Error() != "404 Not Found" || out.String() != "nothing there\n" {
		t.Errorf("%v, %q", err, out.String())
	}
}

// index answers with what it was asked.
type index struct {
	pb.UnimplementedInferenceCacheServer
}

func (index) LookupRoute(ctx context.Context, r *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
	incoming, _ := metadata.FromIncomingContext(ctx)
	return &pb.LookupRouteResponse{
		ReasonCode: strings.Join([]string{r.TenantId, r.ModelId, strings.Join(incoming.Get("authorization"), "")}, "/"),
		TokenIds:   r.TokenIds,
	}, nil
}

// serveIndex returns the address of an index that is there during the test.
func serveIndex(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterInferenceCacheServer(server, index{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// enough is an output that cancels once it has got so many lines.
type enough struct {
	strings.Builder
	lines  int
	cancel context.CancelFunc
}

func (e *enough) Write(p []byte) (int, error) {
	if e.lines--; e.lines <= 0 {
		e.cancel()
	}
	return e.Builder.Write(p)
}

func TestLookupsGoOnUntilASignal(t *testing.T) {
	for name, tc := range map[string]struct {
		address string
		want    observation
	}{
		"answers":  {serveIndex(t), observation{Reason: "a/m/"}},
		"failures": {"127.0.0.1:1", observation{Error: "DeadlineExceeded"}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			out := &enough{lines: 3, cancel: cancel}
			if err := run(ctx, []string{"lookups", "-server=" + tc.address, "-tenant=a", "-model=m", "-timeout=200ms", "-every=1ms"}, out); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(lines) < 3 {
				t.Fatalf("printed %q", lines)
			}
			for _, line := range lines {
				var got observation
				if err := json.Unmarshal([]byte(line), &got); err != nil {
					t.Fatal(err)
				}
				if got.Reason != tc.want.Reason || (got.Error == "") != (tc.want.Error == "") || !strings.Contains(got.Error, tc.want.Error) || got.At.IsZero() {
					t.Errorf("printed %s", line)
				}
			}
		})
	}
	for _, args := range [][]string{{"lookups"}, {"lookups", "-server=x", "-every=0s"}, {"lookups", "-server=x", "-tokens=x"}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}

func TestLookupAsksAServer(t *testing.T) {
	address := serveIndex(t)
	var out strings.Builder
	args := []string{"lookup", "-server=" + address, "-tenant=a", "-model=m", "-bytes=AB", "-tokens=7,8"}
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(out.String(), " ", "")
	if !strings.Contains(text, `"reasonCode":"a/m/"`) || !strings.Contains(text, `"tokenIds":[65,66,7,8]`) {
		t.Errorf("printed %s", text)
	}
	for _, args := range [][]string{{"lookup"}, {"lookup", "-server=x", "-tokens=x"}, {"lookup", "-server=x", "-ca-file=/absent"}} {
		if err := run(t.Context(), args, &out); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}

func TestAuthoritiesAreRead(t *testing.T) {
	a := access{caFile: testcert.NewAuthority(t).File, serverName: "name"}
	if config, err := a.tls(); err != nil || config.ServerName != "name" || config.RootCAs == nil {
		t.Errorf("%v, %v", config, err)
	}
	a.caFile = os.Args[0]
	if _, err := a.tls(); err == nil || !strings.Contains(err.Error(), "holds no certificate") {
		t.Errorf("not an authority: %v", err)
	}
}
