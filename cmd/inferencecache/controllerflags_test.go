// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/inferencecache/inference-cache/internal/testcert"
)

// Wrong flags of the webhooks are refused before the cluster is called.
func TestControllerRefusesFlags(t *testing.T) {
	for name, tc := range map[string]struct{ flags, want string }{
		"who keeps the certificate":        {"--webhook-cert-mode=manual", `--webhook-cert-mode "manual": expected self or files`},
		"files nowhere":                    {"--webhook-cert-mode=files --webhook-cert-dir=", "--webhook-cert-dir: --webhook-cert-mode=files needs a directory"},
		"who keeps that of the servers":    {"--server-cert-mode=files", `--server-cert-mode "files": expected none or self`},
		"the kind of sidecar":              {"--sidecar-mode=init", `--sidecar-mode "init": expected auto, native or container`},
		"the scope of tenants":             {"--tenant-id-scope=pod", "--tenant-id-scope: "},
		"the adapters":                     {"--adapters=some", `--adapters "some": expected core or all`},
		"publishers without servers":       {"--kvevent-subscriber-image=i --policy-server-grpc-address=", "publishers need --publisher-server-address"},
		"servers without a port":           {"--publisher-server-address=dns:///servers", `--publisher-server-address "dns:///servers": expected host:port`},
		"servers as a URL":                 {"--publisher-server-address=https://servers:9090", `--publisher-server-address "https://servers:9090": expected host:port`},
		"a port that is a name":            {"--policy-server-grpc-address=servers:grpc", `--policy-server-grpc-address "servers:grpc": expected host:port`},
		"how servers are found":            {"--server-discovery=dns", `--server-discovery "dns": expected url or endpoints`},
		"nowhere to push to":               {"--server-policy-url=", "--server-policy-url: expected a URL"},
		"a URL without a host":             {"--server-snapshot-url=https:///snapshot", "--server-snapshot-url: expected a URL"},
		"a URL that is a file's":           {"--server-snapshot-url=file:///snapshot", "--server-snapshot-url: expected a URL"},
		"a URL with a password":            {"--server-probe-url=http://me:secret@servers/probe", "--server-probe-url: expected a URL"},
		"a port beyond all ports":          {"--server-probe-url=http://servers:99999/probe", "--server-probe-url: expected a URL"},
		"the name of servers":              {"--server-name=\u00a0", "--server-name "},
		"an old schema of policy":          {"--policy-wire-version=2", "--policy-wire-version 2: expected 3 to 7"},
		"no workers":                       {"--max-concurrent-reconciles=0", "--max-concurrent-reconciles 0: expected at least 1"},
		"no replicas shown":                {"--cacheindex-max-replicas=0", "--cacheindex-max-replicas 0: expected at least 1"},
		"polls without a pause":            {"--cacheindex-refresh-interval=0", "--cacheindex-refresh-interval 0s: expected more than 0"},
		"pushes into the past":             {"--cachepolicy-push-interval=-1s", "--cachepolicy-push-interval -1s: expected more than 0"},
		"metrics at a bare port":           {"--metrics-bind-address=8080", `--metrics-bind-address "8080": expected host:port, :port, or 0`},
		"health at no port":                {"--health-probe-bind-address=:99999", `--health-probe-bind-address ":99999": expected host:port`},
		"webhooks at a name":               {"--webhook-bind-address=:https", `--webhook-bind-address ":https": expected host:port`},
		"no namespace":                     {"--namespace=", `--namespace "": expected the name of a namespace`},
		"a namespace that cannot be":       {"--namespace=Inference_Cache", `--namespace "Inference_Cache": expected`},
		"an image nobody has set":          {"--kvevent-subscriber-image=$(RELATED_IMAGE)", `--kvevent-subscriber-image "$(RELATED_IMAGE)": expected`},
		"secure metrics without a pair":    {"--metrics-secure --webhook-bind-address=0", "--metrics-secure uses the webhooks' certificate"},
		"authorities that are none":        {"--server-ca-file=controller.go", "--server-ca-file: "},
		"a time that ends before it began": {"--webhook-shutdown-delay=-1s", "--webhook-shutdown-delay -1s: expected 0 to 1m"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			c := &cli{stdin: strings.NewReader(""), stdout: io.Discard, stderr: &stderr}
			args := append([]string{"controller", "--kubeconfig=/nonexistent"}, strings.Split(tc.flags, " ")...)
			want := exitUsage
			if strings.HasPrefix(tc.flags, "--server-ca-file=") {
				want = exitRuntime // what is in files is seen when they are read
			}
			if code := c.run(t.Context(), args); code != want || !strings.Contains(stderr.String(), tc.want) || strings.Contains(stderr.String(), "secret@") {
				t.Errorf("exit code %d: %s", code, stderr.String())
			}
		})
	}
}

// Calls to servers follow the file of their authorities, which may be written
// after the controller has started.
func TestServersAuthoritiesAreFollowed(t *testing.T) {
	first, second := testcert.NewAuthority(t), testcert.NewAuthority(t)
	pair := first.Issue(t, "servers")
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }}
	server.StartTLS()
	defer server.Close()
	file := filepath.Join(t.TempDir(), "ca.crt")
	o := &controllerOptions{caFile: file, policyURL: "https://servers:8081/policy"}
	client, err := o.httpClient(slog.New(slog.DiscardHandler))
	noError(t, err)
	call := func() error {
		defer client.CloseIdleConnections()
		response, err := client.Get(server.URL)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	if call() == nil {
		t.Error("a server was called before there are authorities")
	}
	put := func(a *testcert.Authority, modified time.Time) {
		text, err := os.ReadFile(a.File)
		noError(t, err)
		noError(t, os.WriteFile(file, text, 0o600))
		noError(t, os.Chtimes(file, modified, modified))
	}
	put(first, time.Unix(1, 0))
	if err := call(); err != nil {
		t.Errorf("after the file was written: %v", err)
	}
	put(second, time.Unix(2, 0))
	if call() == nil {
		t.Error("an authority that is no longer in the file is trusted")
	}
	pair = second.Issue(t, "servers")
	if err := call(); err != nil {
		t.Errorf("after the file was changed: %v", err)
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Publishers are native sidecars where the API server says so.
func TestSidecarModeFollowsTheAPIServer(t *testing.T) {
	for version, want := range map[string]string{
		"v1.28.9": "container", "v1.28.9-eks-036c24b": "container", "v1.29.0": "native", "v1.29.3-gke.1282001": "native", "v1.35.4+k3s1": "native",
		"latest": "refused",
	} {
		t.Run(version, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/version" {
					t.Errorf("asked for %s", r.URL.Path)
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, `{"major":"1","minor":"0+","gitVersion":%q}`, version)
			}))
			defer server.Close()
			ordinary, err := ordinaryContainer(t.Context(), sidecarAuto, &rest.Config{Host: server.URL})
			got := map[bool]string{true: sidecarContainer, false: sidecarNative}[ordinary]
			if err != nil {
				got = "refused"
			}
			if got != want {
				t.Errorf("%s, want %s: %v", got, want, err)
			}
		})
	}
	for mode, want := range map[string]bool{sidecarContainer: true, sidecarNative: false} {
		if ordinary, err := ordinaryContainer(t.Context(), mode, nil); err != nil || ordinary != want {
			t.Errorf("%s: %t, %v", mode, ordinary, err)
		}
	}
}
