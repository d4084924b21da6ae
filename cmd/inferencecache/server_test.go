// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// serving is where a server command listens.
type serving struct{ GRPC, HTTP, Internal string }

// startServer runs the server command until the context ends; its exit code
// comes from exit.
func startServer(ctx context.Context, t *testing.T, flags ...string) (at serving, exit <-chan int) {
	t.Helper()
	logs, stderr := io.Pipe()
	code := make(chan int, 1)
	go func() {
		c := &cli{stdout: io.Discard, stderr: stderr}
		code <- c.run(ctx, append([]string{
			"server", "--grpc-bind-address=127.0.0.1:0", "--http-bind-address=127.0.0.1:0", "--ready-max-wait=0",
			"--snapshot-bind-address=127.0.0.1:0",
		}, flags...))
		stderr.Close()
	}()
	lines := bufio.NewScanner(logs)
	if !lines.Scan() {
		t.Fatal("no log line")
	}
	var line struct {
		Msg string
		serving
	}
	if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Msg != "serving" {
		t.Fatalf("first log line %q: %v", lines.Text(), err)
	}
	go io.Copy(io.Discard, logs) //nolint:errcheck // ends with the command
	return line.serving, code
}

func TestServerCommandTokenizesText(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "models", "m")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"tokenizer.json":      `{"model":{"type":"BPE","vocab":{"a":1,"b":2,"ab":3,"|":4},"merges":["a b"]}}`,
		"chat_template.jinja": `{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}|{% endif %}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("inferencecache.io/controller reader\ninferencecache.io/policy writer\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at, exit := startServer(ctx, t, "--internal-token-file="+tokens, "--tokenizer-models-dir="+filepath.Dir(dir))
	conn, err := grpc.NewClient(at.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := pb.NewInferenceCacheClient(conn).LookupRoute(ctx, &pb.LookupRouteRequest{
		TenantId: "t", ModelId: "m", HashScheme: "vllm", PromptText: "aab",
	})
	if err != nil || !slices.Equal(answer.GetTokenIds(), []uint32{1, 3, 4}) {
		t.Errorf("tokens %v, %v, want 1, 3 and 4", answer.GetTokenIds(), err)
	}
	cancel()
	<-exit
}

func TestServerCommandServesUntilSignalled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("inferencecache.io/controller reader\ninferencecache.io/policy writer\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	serving, exit := startServer(ctx, t, "--internal-token-file="+tokens)
	if code := statusOf(t, "http://"+serving.HTTP+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d", code)
	}
	policyURL := "http://" + serving.Internal + "/policy"
	for token, want := range map[string]int{"reader": http.StatusUnauthorized, "writer": http.StatusNoContent} {
		if code := pushAs(t, policyURL, token); code != want {
			t.Errorf("push with the token %q: %d, want %d", token, code, want)
		}
	}
	conn, err := grpc.NewClient(serving.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := pb.NewInferenceCacheClient(conn).LookupRoute(ctx, &pb.LookupRouteRequest{TenantId: "t"})
	if err != nil || answer.GetReasonCode() != "NO_HINT" {
		t.Errorf("LookupRoute: %v, %v", answer, err)
	}
	cancel()
	if code := <-exit; code != exitOK {
		t.Errorf("exit code %d, want %d", code, exitOK)
	}
}

func statusOf(t *testing.T, url string) int {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	return response.StatusCode
}

func pushAs(t *testing.T, url, token string) int {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(`{"version":7}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	return response.StatusCode
}

func TestServerCommandExitCodes(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	const open = "--insecure-disable-auth"
	port0 := []string{open, "--grpc-bind-address=127.0.0.1:0", "--http-bind-address=127.0.0.1:0"}
	for name, tc := range map[string]struct {
		args []string
		want int
		says string
	}{
		"an unknown flag":             {[]string{open, "--no-such-flag"}, exitUsage, "--no-such-flag"},
		"an argument":                 {[]string{open, "extra"}, exitUsage, "extra"},
		"a certificate without a key": {[]string{open, "--tls-cert-file=x"}, exitUsage, "key"},
		"a memory bound of no size":   {[]string{open, "--index-max-memory=much"}, exitUsage, "--index-max-memory"},
		"a half-life too short":       {[]string{open, "--lfu-half-life=1s"}, exitUsage, "LFU half-life"},
		"a negative ranker weight":    {[]string{open, "--ranker-tier-weight-t2=-1"}, exitUsage, "tier weight T2"},
		"a log level of no meaning":   {[]string{open, "--log-level=loud"}, exitUsage, "--log-level"},
		"a missing certificate":       {[]string{open, "--tls-cert-file=/none", "--tls-key-file=/none"}, exitRuntime, "TLS"},
		"a port in use":               {[]string{open, "--grpc-bind-address=" + taken.Addr().String()}, exitRuntime, "listen for gRPC"},
		"an internal port in use": {
			append(port0, "--snapshot-bind-address="+taken.Addr().String()), exitRuntime, "listen for internal HTTP",
		},
		"nobody admitted":                {nil, exitUsage, "exactly one of"},
		"two ways to admit":              {[]string{open, "--internal-token-file=x"}, exitUsage, "exactly one of"},
		"three ways to admit":            {[]string{open, "--internal-token-file=x", "--allowed-controller-sa=y"}, exitUsage, "got 3"},
		"a blank service account":        {[]string{"--allowed-controller-sa= "}, exitUsage, "--allowed-controller-sa"},
		"no controller audience":         {[]string{open, "--controller-audience="}, exitUsage, "--controller-audience"},
		"white space around an audience": {[]string{open, "--policy-audience=x "}, exitUsage, "--policy-audience"},
		"an internal certificate without a key": {
			[]string{open, "--snapshot-tls-cert-file=x"}, exitUsage, "TLS of the internal listener",
		},
		"a missing internal certificate": {
			[]string{open, "--snapshot-tls-cert-file=/none", "--snapshot-tls-key-file=/none"}, exitRuntime, "TLS",
		},
		"a missing token file":                {[]string{"--internal-token-file=/none"}, exitRuntime, "token file"},
		"no address for the internal surface": {[]string{open, "--snapshot-bind-address="}, exitUsage, "--snapshot-bind-address"},
		"a policy limit of nothing":           {[]string{open, "--policy-max-bytes=0"}, exitUsage, "--policy-max-bytes"},
		"a service account without a cluster": {[]string{"--allowed-controller-sa=x"}, exitUsage, "not in a Kubernetes pod"},
		"gRPC authentication of no meaning":   {[]string{open, "--grpc-auth=some"}, exitUsage, "expected off, permissive or required"},
		"gRPC authentication by nothing":      {[]string{open, "--grpc-auth=required"}, exitUsage, "nothing to judge credentials by"},
		"a missing file of gRPC tokens":       {[]string{open, "--grpc-auth=required", "--grpc-token-file=/none"}, exitRuntime, "token file"},
		"tenants by no known way":             {[]string{open, "--tenant-authz=some"}, exitUsage, "expected map or rbac"},
		"roles while everyone may call":       {[]string{open, "--tenant-authz=rbac"}, exitUsage, "--grpc-auth"},
		"roles without a cluster":             {[]string{open, "--tenant-authz=rbac", "--grpc-auth=required"}, exitUsage, "--tenant-authz=rbac: not in a Kubernetes pod"},
		"roles and a map": {
			[]string{open, "--tenant-authz=rbac", "--grpc-auth=required", "--tenant-authz-file=x"}, exitUsage, "takes no --tenant-authz-file",
		},
		"roles and static tokens": {
			[]string{open, "--tenant-authz=rbac", "--grpc-auth=required", "--grpc-token-file=x"}, exitUsage, "takes no --grpc-token-file",
		},
		"operators without a cluster":       {[]string{open, "--operator-subjects=admins"}, exitUsage, "--operator-subjects: not in a Kubernetes pod"},
		"a missing file of operators":       {[]string{open, "--operator-token-file=/none"}, exitRuntime, "token file"},
		"an API server without authorities": {[]string{open, "--kube-api-url=https://x", "--kube-token-file=x"}, exitUsage, "--kube-api-url"},
		"an API server with missing files":  {[]string{open, "--kube-api-url=https://x", "--kube-token-file=/none", "--kube-ca-file=/none"}, exitRuntime, "CA of the API server"},
		"tenant labels of no meaning":       {[]string{open, "--metrics-tenant-labels=some"}, exitUsage, "expected on or off"},
		"fewer streams than none":           {[]string{open, "--grpc-max-streams=-1"}, exitUsage, "stream limit"},
		"client certificates without TLS":   {[]string{open, "--mtls-client-ca-file=x"}, exitUsage, "need TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr strings.Builder
			c := &cli{stdout: io.Discard, stderr: &stderr}
			if got := c.run(t.Context(), append([]string{"server"}, tc.args...)); got != tc.want {
				t.Errorf("exit code %d, want %d", got, tc.want)
			}
			if !strings.Contains(stderr.String(), tc.says) {
				t.Errorf("stderr %q does not mention %q", stderr.String(), tc.says)
			}
		})
	}
}
