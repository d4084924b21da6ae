// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func TestServerCommandServesUntilSignalled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	logs, stderr := io.Pipe()
	exit := make(chan int, 1)
	go func() {
		c := &cli{stdout: io.Discard, stderr: stderr}
		exit <- c.run(ctx, []string{
			"server", "--grpc-bind-address=127.0.0.1:0", "--http-bind-address=127.0.0.1:0", "--ready-max-wait=0",
		})
		stderr.Close()
	}()
	lines := bufio.NewScanner(logs)
	if !lines.Scan() {
		t.Fatal("no log line")
	}
	var serving struct{ Msg, GRPC, HTTP string }
	if err := json.Unmarshal(lines.Bytes(), &serving); err != nil || serving.Msg != "serving" {
		t.Fatalf("first log line %q: %v", lines.Text(), err)
	}
	go io.Copy(io.Discard, logs) //nolint:errcheck // ends with the command

	if code := statusOf(t, "http://"+serving.HTTP+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d", code)
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

func TestServerCommandExitCodes(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, tc := range map[string]struct {
		args []string
		want int
		says string
	}{
		"an unknown flag":             {[]string{"--no-such-flag"}, exitUsage, "--no-such-flag"},
		"an argument":                 {[]string{"extra"}, exitUsage, "extra"},
		"a certificate without a key": {[]string{"--tls-cert-file=x"}, exitUsage, "key"},
		"a memory bound of no size":   {[]string{"--index-max-memory=much"}, exitUsage, "--index-max-memory"},
		"a negative ranker weight":    {[]string{"--ranker-tier-weight-t2=-1"}, exitUsage, "tier weight T2"},
		"a log level of no meaning":   {[]string{"--log-level=loud"}, exitUsage, "--log-level"},
		"a missing certificate":       {[]string{"--tls-cert-file=/none", "--tls-key-file=/none"}, exitRuntime, "TLS"},
		"a port in use":               {[]string{"--grpc-bind-address=" + taken.Addr().String()}, exitRuntime, "listen for gRPC"},
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
