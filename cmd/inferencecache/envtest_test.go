// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/inferencecache/inference-cache/internal/testcluster"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// serverProcess is the program, running as `server`.
type serverProcess struct{ GRPC, HTTP, Internal string }

// startProcess builds the program and runs it until the test ends.
func startProcess(t *testing.T, args ...string) serverProcess {
	t.Helper()
	program := filepath.Join(t.TempDir(), "inferencecache")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	command := exec.CommandContext(context.Background(), program, append([]string{
		"server", "--grpc-bind-address=127.0.0.1:0", "--http-bind-address=127.0.0.1:0",
		"--snapshot-bind-address=127.0.0.1:0", "--ready-max-wait=0",
	}, args...)...)
	logs, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		<-read
		if err := command.Wait(); err != nil {
			t.Errorf("the server ended: %v", err)
		}
	})
	lines := bufio.NewScanner(logs)
	for lines.Scan() {
		var line struct {
			Msg string
			serverProcess
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
			go func() { defer close(read); _, _ = io.Copy(io.Discard, logs) }()
			return line.serverProcess
		}
		t.Log(lines.Text())
	}
	close(read)
	t.Fatal("the server never served")
	return serverProcess{}
}

// clusterFlags make a service account the server's own and let it review.
func clusterFlags(t *testing.T, cluster *testcluster.Cluster) []string {
	t.Helper()
	admin := cluster.Admin
	must(t, admin.Namespace(t.Context(), "ic"))
	must(t, admin.ServiceAccount(t.Context(), "ic", "server"))
	must(t, admin.AllowReviews(t.Context(), "ic", "server"))
	must(t, admin.AllowAccessReviews(t.Context(), "ic", "server"))
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte(tokenOf(t, cluster, "ic", "server", "")), 0o600))
	return []string{"--kube-api-url=" + cluster.URL, "--kube-ca-file=" + cluster.CAFile, "--kube-token-file=" + file}
}

func tokenOf(t *testing.T, cluster *testcluster.Cluster, namespace, account, audience string) string {
	t.Helper()
	token, err := cluster.Admin.Token(t.Context(), testcluster.TokenRequest{Namespace: namespace, Account: account, Audience: audience})
	must(t, err)
	return token
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (p serverProcess) call(t *testing.T, method, path, token, body string) (int, http.Header) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.Internal+path, strings.NewReader(body))
	must(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode, response.Header
}

// A controller's service account drives the internal listener of the real
// program; other accounts and other audiences do not.
func TestEnvtestControllerPushesAPolicy(t *testing.T) {
	cluster := testcluster.ForTest(t)
	flags := clusterFlags(t, cluster)
	for _, account := range []string{"controller", "rogue", "alice"} {
		must(t, cluster.Admin.ServiceAccount(t.Context(), "ic", account))
	}
	const controllerAudience, policyAudience, operatorAudience = "inferencecache.io/controller", "inferencecache.io/policy", "inferencecache.io/operator"
	p := startProcess(t, append(flags,
		"--allowed-controller-sa=system:serviceaccount:ic:controller", "--operator-subjects=system:serviceaccount:ic:alice")...)
	pusher, reader := tokenOf(t, cluster, "ic", "controller", policyAudience), tokenOf(t, cluster, "ic", "controller", controllerAudience)
	operator := tokenOf(t, cluster, "ic", "alice", operatorAudience)
	const policy = `{"version":7,"policies":[{"namespace":"team","minimumMatchedTokens":128}]}`
	const probe = `{"backend":"a/b","model":"m","hashScheme":"vllm"}`
	for _, tc := range []struct {
		what, method, path, token, body string
		want                            int
	}{
		{"nobody", http.MethodPost, "/policy", "", policy, http.StatusUnauthorized},
		{"the read token", http.MethodPost, "/policy", reader, policy, http.StatusUnauthorized},
		{"the token for the API server", http.MethodPost, "/policy", tokenOf(t, cluster, "ic", "controller", ""), policy, http.StatusUnauthorized},
		{"another service account", http.MethodPost, "/policy", tokenOf(t, cluster, "ic", "rogue", policyAudience), policy, http.StatusForbidden},
		{"an operator", http.MethodPost, "/policy", operator, policy, http.StatusUnauthorized},
		{"the policy token", http.MethodPost, "/policy", pusher, policy, http.StatusNoContent},
		{"the policy token again", http.MethodPut, "/policy", pusher, policy, http.StatusNoContent},
		{"the policy token where it reads nothing", http.MethodGet, "/snapshot", pusher, "", http.StatusUnauthorized},
		{"the read token", http.MethodGet, "/snapshot", reader, "", http.StatusOK},
		{"the read token", http.MethodPost, "/probe", reader, probe, http.StatusOK},
		{"an operator", http.MethodGet, "/status", operator, "", http.StatusOK},
		{"an operator who probes", http.MethodPost, "/probe", operator, probe, http.StatusUnauthorized},
		{"another account as an operator", http.MethodGet, "/status", tokenOf(t, cluster, "ic", "rogue", operatorAudience), "", http.StatusForbidden},
	} {
		code, header := p.call(t, tc.method, tc.path, tc.token, tc.body)
		if code != tc.want {
			t.Errorf("%s, %s %s: %d, want %d", tc.what, tc.method, tc.path, code, tc.want)
		}
		if applied := header.Get("X-Inference-Cache-Policy-Revision") != ""; code == http.StatusNoContent && !applied {
			t.Errorf("%s: no revision after a push", tc.what)
		}
	}
	must(t, cluster.StopAPIServer())
	if code, _ := p.call(t, http.MethodPost, "/policy", pusher, policy); code != http.StatusNoContent {
		t.Errorf("a token reviewed lately, API server down: %d", code)
	}
	if code, _ := p.call(t, http.MethodPost, "/policy", "another", policy); code != http.StatusServiceUnavailable {
		t.Errorf("a token never seen, API server down: %d", code)
	}
}

// Roles in a tenant's namespace decide who reads it from the real program.
func TestEnvtestRolesDecideAboutTenants(t *testing.T) {
	cluster := testcluster.ForTest(t)
	flags := clusterFlags(t, cluster)
	admin := cluster.Admin
	must(t, admin.Namespace(t.Context(), "team"))
	for _, account := range []string{"gateway", "stranger"} {
		must(t, admin.ServiceAccount(t.Context(), "team", account))
	}
	uid, err := admin.Pod(t.Context(), "team", "pod-a", "gateway")
	must(t, err)
	writer, err := admin.Token(t.Context(), testcluster.TokenRequest{
		Namespace: "team", Account: "gateway", Audience: "inferencecache.io/ingest", Pod: "pod-a", PodUID: uid,
	})
	must(t, err)
	must(t, admin.Allow(t.Context(), testcluster.Grant{
		AccountNamespace: "team", Account: "gateway", Namespace: "team", Group: "inferencecache.io", Resource: "lookups", Verb: "get",
	}))
	p := startProcess(t, append(flags, "--insecure-disable-auth", "--grpc-auth=required", "--tenant-authz=rbac")...)
	conn, err := grpc.NewClient(p.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	client := pb.NewInferenceCacheClient(conn)
	as := func(token string) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		t.Cleanup(cancel)
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	reports, err := client.ReportCacheState(as(writer))
	must(t, err)
	must(t, reports.Send(&pb.CacheStateUpdate{
		TenantId: "team", ModelId: "m", HashScheme: "vllm", ReplicaId: "pod-a",
		Prefixes: []*pb.PrefixEntry{{PrefixHash: []byte("12345678"), TokenCount: 128}},
	}))
	if ack, err := reports.CloseAndRecv(); err != nil || ack.GetReasonCode() != "" {
		t.Fatalf("a report: %v, %v", ack, err)
	}
	for account, want := range map[string]int64{"gateway": 1, "stranger": 0} {
		answer, err := client.GetCacheState(as(tokenOf(t, cluster, "team", account, "inferencecache.io/lookup")),
			&pb.GetCacheStateRequest{TenantId: "team", ModelId: "m"})
		if err != nil || answer.GetSummary().GetTotalPrefixes() != want {
			t.Errorf("%s sees %v, %v; want %d prefixes", account, answer, err, want)
		}
	}
}
