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
		"servers without a port":           {"--publisher-server-address=dns:///servers", "--publisher-server-address: expected host:port"},
		"secure metrics without a pair":    {"--metrics-secure --webhook-bind-address=0", "--metrics-secure uses the webhooks' certificate"},
		"authorities that are none":        {"--server-ca-file=controller.go", "--server-ca-file: "},
		"a time that ends before it began": {"--webhook-shutdown-delay=-1s", "--webhook-shutdown-delay -1s: expected 0 to 1m"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			c := &cli{stdin: strings.NewReader(""), stdout: io.Discard, stderr: &stderr}
			args := append([]string{"controller", "--kubeconfig=/nonexistent"}, strings.Fields(tc.flags)...)
			if code := c.run(t.Context(), args); code == exitOK || !strings.Contains(stderr.String(), tc.want) {
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
