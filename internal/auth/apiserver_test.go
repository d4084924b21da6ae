// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/auth"
)

// apiServer answers every token review with the same status and body, and
// keeps the last request.
type apiServer struct {
	code          int
	body          string
	header        http.Header
	asked         string
	authorization string
	path          string
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	s.asked, s.authorization, s.path = string(text), r.Header.Get("Authorization"), r.Method+" "+r.URL.Path
	for key, values := range s.header {
		w.Header()[key] = values
	}
	w.WriteHeader(s.code)
	_, _ = io.WriteString(w, s.body)
}

// connect serves s over TLS and returns a client whose own token is in a file.
func connect(t *testing.T, s *apiServer) (*auth.APIServer, *configFile) {
	t.Helper()
	web := httptest.NewTLSServer(s)
	t.Cleanup(web.Close)
	ca := newConfigFile(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})))
	own := newConfigFile(t, "own-token\n")
	client, err := auth.NewAPIServer(auth.Cluster{URL: web.URL, CAFile: ca.path, TokenFile: own.path}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client, own
}

const podReview = `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","metadata":{},"spec":{"token":"t"},"status":{
"authenticated":true,"audiences":["a"],"user":{"username":"system:serviceaccount:team:engine","uid":"1","groups":["g"],
"extra":{"authentication.kubernetes.io/pod-name":["pod-a"],"authentication.kubernetes.io/pod-uid":["uid-a"]}}}}`

func TestAPIServerReview(t *testing.T) {
	for name, tc := range map[string]struct {
		server  apiServer
		want    auth.Review
		wantErr string
	}{
		"a pod's token": {
			server: apiServer{code: http.StatusCreated, body: podReview},
			want: auth.Review{
				Authenticated: true, Username: "system:serviceaccount:team:engine", UID: "1", Groups: []string{"g"},
				Pod: "pod-a", PodUID: "uid-a", Audiences: []string{"a"},
				Extra: map[string][]string{
					"authentication.kubernetes.io/pod-name": {"pod-a"}, "authentication.kubernetes.io/pod-uid": {"uid-a"},
				},
			},
		},
		"a refusal": {
			server: apiServer{code: http.StatusCreated, body: `{"kind":"TokenReview","status":{"error":"expired"}}`},
			want:   auth.Review{Reason: "expired"},
		},
		"nothing":                       {server: apiServer{code: http.StatusCreated}, wantErr: "not a token review"},
		"another kind":                  {server: apiServer{code: http.StatusOK, body: `{"kind":"Status"}`}, wantErr: "another kind"},
		"an authenticated nobody":       {server: apiServer{code: http.StatusOK, body: `{"kind":"TokenReview","status":{"authenticated":true}}`}, wantErr: "without a name"},
		"no permission to review":       {server: apiServer{code: http.StatusForbidden, body: `{"message":"no"}`}, wantErr: "403"},
		"a failure":                     {server: apiServer{code: http.StatusInternalServerError}, wantErr: "500"},
		"a redirect, which is not used": {server: apiServer{code: http.StatusFound, header: http.Header{"Location": {"/elsewhere"}}}, wantErr: "302"},
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := connect(t, &tc.server)
			got, err := client.Review(t.Context(), "canary", "a")
			if (err != nil) != (tc.wantErr != "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("error %v, want %q", err, tc.wantErr)
			}
			if err != nil && strings.Contains(err.Error(), "canary") {
				t.Errorf("the error holds the token: %v", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if tc.server.path != "POST /apis/authentication.k8s.io/v1/tokenreviews" || tc.server.authorization != "Bearer own-token" {
				t.Errorf("asked %s as %q", tc.server.path, tc.server.authorization)
			}
			var asked struct {
				APIVersion, Kind string
				Spec             struct {
					Token     string
					Audiences []string
				}
				Status *struct{}
			}
			if err := json.Unmarshal([]byte(tc.server.asked), &asked); err != nil {
				t.Fatal(err)
			}
			if asked.APIVersion != "authentication.k8s.io/v1" || asked.Kind != "TokenReview" || asked.Status != nil ||
				asked.Spec.Token != "canary" || !cmp.Equal(asked.Spec.Audiences, []string{"a"}) {
				t.Errorf("asked %s", tc.server.asked)
			}
		})
	}
}

func TestAPIServerFollowsItsOwnToken(t *testing.T) {
	server := &apiServer{code: http.StatusCreated, body: podReview}
	client, own := connect(t, server)
	own.write("renewed\n")
	if _, err := client.Review(t.Context(), "t", "a"); err != nil || server.authorization != "Bearer renewed" {
		t.Errorf("reviewed as %q, error %v", server.authorization, err)
	}
}

func TestAPIServerMustBeTheOneOfTheCA(t *testing.T) {
	client, _ := connect(t, &apiServer{code: http.StatusCreated, body: podReview})
	_ = client
	other := httptest.NewTLSServer(&apiServer{code: http.StatusCreated, body: podReview})
	t.Cleanup(other.Close)
	other.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	own := newConfigFile(t, "own")
	ca := newConfigFile(t, selfSignedPEM(t))
	stranger, err := auth.NewAPIServer(auth.Cluster{URL: other.URL, CAFile: ca.path, TokenFile: own.path}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Review(t.Context(), "t", "a"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("error %v, want one about the certificate", err)
	}
}

func TestInCluster(t *testing.T) {
	env := map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
	got, err := auth.InCluster(func(key string) string { return env[key] })
	if err != nil || got.URL != "https://[fd00::1]:443" || got.CAFile == "" || got.TokenFile == "" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := auth.InCluster(func(string) string { return "" }); !errors.Is(err, auth.ErrNoCluster) {
		t.Errorf("error %v", err)
	}
	if _, err := auth.NewAPIServer(auth.Cluster{CAFile: "/none"}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a missing CA file was accepted")
	}
	ca := newConfigFile(t, "no certificate")
	if _, err := auth.NewAPIServer(auth.Cluster{CAFile: ca.path}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a CA file without certificates was accepted")
	}
}
