// SPDX-License-Identifier: Apache-2.0

package controlclient_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/control"
	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/probe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type holdings struct{}

func (holdings) EachReplica(f func(index.ReplicaRow)) {
	f(index.ReplicaRow{Tenant: "a", Replica: "r", Memberships: 3, HasStats: true, Stats: index.Stats{HitRate: .5, LivenessMillis: noon.UnixMilli()}})
}
func (holdings) EachTenant(f func(index.TenantRow)) { f(index.TenantRow{Tenant: "a", Keys: 3}) }
func (holdings) Counters(int64) index.Counters      { return index.Counters{} }

type prober func(probe.Request) probe.Result

func (p prober) Run(_ context.Context, r probe.Request) (probe.Result, error) { return p(r), nil }

// server is a real internal listener over a small index.
type server struct {
	policies *policy.Store
	tokens   []string // Authorization headers seen
	url      string
}

func startServer(t *testing.T) *server {
	s := &server{policies: policy.NewStore(0)}
	handler := control.New(control.Options{
		Gates:    control.Gates{Snapshot: gate.Open{}, Policy: gate.Open{}, Probe: gate.Open{}},
		Policies: s.policies, Holdings: holdings{}, Epoch: "epoch-1", StartedAt: noon,
		Prober: prober(func(r probe.Request) probe.Result {
			return probe.Result{
				Ingest: probe.OK, Routing: probe.Failed, Tier2: probe.Skipped,
				Problems: []probe.Problem{{Stage: probe.Routing, Message: "no match for " + r.Model}},
			}
		}),
	})
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.tokens = append(s.tokens, r.Header.Get("Authorization"))
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(listener.Close)
	s.url = listener.URL
	return s
}

func (s *server) client(t *testing.T, change ...func(*controlclient.Options)) *controlclient.Client {
	options := controlclient.Options{
		URLs:                controlclient.URLs{Snapshot: s.url + "/snapshot", Policy: s.url + "/policy", Probe: s.url + "/probe"},
		ControllerTokenFile: filepath.Join(t.TempDir(), "absent"),
		PolicyTokenFile:     filepath.Join(t.TempDir(), "absent"),
		HTTP:                &http.Client{Timeout: controlclient.DefaultTimeout, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	for _, c := range change {
		c(&options)
	}
	return controlclient.New(options)
}

func TestPushPolicy(t *testing.T) {
	s := startServer(t)
	body := []byte(`{"version":7,"policies":[]}`)
	identity, err := s.client(t).PushPolicy(t.Context(), body, policy.Revision(body), controlclient.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	want := controlclient.Identity{Epoch: "epoch-1", PolicyRevision: policy.Revision(body), Capabilities: []string{"gzip", "extensions.v1"}}
	if diff := cmp.Diff(want, identity); diff != "" {
		t.Error(diff)
	}
	identity, err = s.client(t).PushExtensions(t.Context(), []byte(`{"version":1,"revision":"e1"}`), identity)
	if err != nil || identity.ExtensionsRevision != "e1" || identity.PolicyRevision != policy.Revision(body) {
		t.Errorf("identity %+v, %v", identity, err)
	}
}

func TestRefusedPushSaysWhy(t *testing.T) {
	s := startServer(t)
	for name, tc := range map[string]struct{ body, revision, want string }{
		"an unknown version":    {`{"version":8}`, "", "unsupported policy snapshot version"},
		"another body's number": {`{"version":7}`, strings.Repeat("0", 64), "policy revision mismatch"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.client(t).PushPolicy(t.Context(), []byte(tc.body), tc.revision, controlclient.Identity{})
			var refused *controlclient.RefusedError
			if !errors.As(err, &refused) || refused.Status != http.StatusBadRequest || !strings.HasPrefix(refused.Text, tc.want) {
				t.Errorf("error %v, want 400 %s", err, tc.want)
			}
		})
	}
}

func TestLongBodiesGoCompressedToServersThatCan(t *testing.T) {
	body := []byte(`{"version":7,"policies":[` + strings.Repeat(`{"namespace":"a"},`, 80_000) + `{"namespace":"a"}]}`)
	silent := new(server)
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		silent.tokens = append(silent.tokens, r.Header.Get("Authorization"))
		http.NotFound(w, r)
	}))
	t.Cleanup(listener.Close)
	silent.url = listener.URL
	for name, tc := range map[string]struct {
		server *server
		known  controlclient.Identity
		calls  int
		want   error
	}{
		"one that can":                     {startServer(t), controlclient.Identity{Capabilities: []string{"gzip"}}, 1, nil},
		"one that cannot":                  {startServer(t), controlclient.Identity{Epoch: "1"}, 0, controlclient.ErrTooLarge},
		"one that can when it is asked":    {startServer(t), controlclient.Identity{}, 2, nil},
		"one that does not say when asked": {silent, controlclient.Identity{}, 1, controlclient.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			identity, err := tc.server.client(t).PushPolicy(t.Context(), body, policy.Revision(body), tc.known)
			if got := len(tc.server.tokens); got != tc.calls || !errors.Is(err, tc.want) {
				t.Errorf("error %v after %d calls, want %v and %d", err, got, tc.want, tc.calls)
			}
			if tc.want == nil && identity.PolicyRevision != policy.Revision(body) {
				t.Errorf("identity %+v", identity)
			}
		})
	}
	listener.Close()
	_, err := silent.client(t).PushPolicy(t.Context(), body, "", controlclient.Identity{})
	var call *controlclient.CallError
	if !errors.As(err, &call) {
		t.Errorf("error %v from a server that does not answer, want one that is worth another try", err)
	}
}

func TestSnapshot(t *testing.T) {
	s := startServer(t)
	snapshot, identity, err := s.client(t).Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := &controlclient.Snapshot{
		Replicas:      []controlclient.Replica{{ReplicaID: "r", Tenant: "a", HitRate: .5, LastUpdate: noon, PrefixCount: 3, StatsReported: true}},
		Tenants:       []controlclient.Tenant{{TenantID: "a", IndexEntries: 3, HitRate: .5, HitRateReported: true}},
		TotalPrefixes: 3,
	}
	if diff := cmp.Diff(want, snapshot); diff != "" {
		t.Error(diff)
	}
	if identity.Epoch != "epoch-1" {
		t.Errorf("identity %+v", identity)
	}
}

func TestProbe(t *testing.T) {
	s := startServer(t)
	result, _, err := s.client(t).Probe(t.Context(), controlclient.ProbeRequest{Backend: "a/b", Model: "m", HashScheme: "vllm"})
	if err != nil {
		t.Fatal(err)
	}
	if result.Ingest != controlclient.StageOK || result.Routing != controlclient.StageFailed || result.T2 != controlclient.StageSkipped ||
		result.Message("routing") != "no match for m" || result.Message("ingest") != "" {
		t.Errorf("result %+v", result)
	}
}

func TestProbeAnswerForAnotherBackendIsAnError(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"backend":"x/y","ingest":"ok","routing":"ok","t2":"ok"}`))
	}))
	defer other.Close()
	s := &server{url: other.URL}
	if _, _, err := s.client(t).Probe(t.Context(), controlclient.ProbeRequest{Backend: "a/b", Model: "m", HashScheme: "vllm"}); err == nil {
		t.Error("no error")
	}
}

func TestTokensAreReadAtEveryCall(t *testing.T) {
	s := startServer(t)
	dir := t.TempDir()
	read, write := filepath.Join(dir, "read"), filepath.Join(dir, "write")
	client := s.client(t, func(o *controlclient.Options) { o.ControllerTokenFile, o.PolicyTokenFile = read, write })
	put := func(file, token string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	calls := func() {
		t.Helper()
		if _, _, err := client.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := client.PushPolicy(t.Context(), []byte(`{"version":7}`), "", controlclient.Identity{}); err != nil {
			t.Fatal(err)
		}
	}
	calls()
	put(read, "r1")
	put(write, "w1")
	calls()
	put(read, "r2")
	calls()
	want := []string{"", "", "Bearer r1", "Bearer w1", "Bearer r2", "Bearer w1"}
	if diff := cmp.Diff(want, s.tokens); diff != "" {
		t.Error(diff)
	}
}

func TestUnreadableTokenFiles(t *testing.T) {
	s := startServer(t)
	unreadable := 0
	dir := t.TempDir() // a directory cannot be read as a file
	client := s.client(t, func(o *controlclient.Options) {
		o.ControllerTokenFile, o.PolicyTokenFile = dir, dir
		o.Unreadable = func(error) { unreadable++ }
	})
	if _, _, err := client.Snapshot(t.Context()); err != nil {
		t.Errorf("snapshot: %v", err)
	}
	if _, err := client.PushPolicy(t.Context(), []byte(`{"version":7}`), "", controlclient.Identity{}); err != nil {
		t.Errorf("push: %v", err)
	}
	if _, _, err := client.Probe(t.Context(), controlclient.ProbeRequest{Backend: "b"}); !errors.Is(err, controlclient.ErrToken) {
		t.Errorf("probe: error %v, want %v", err, controlclient.ErrToken)
	}
	if unreadable != 2 || len(s.tokens) != 2 {
		t.Errorf("told of %d unreadable tokens in %d calls, want 2 in 2", unreadable, len(s.tokens))
	}
}

func TestURLsOnAnotherAddress(t *testing.T) {
	urls := controlclient.URLs{Snapshot: "https://s:8081/snapshot", Policy: "https://s:8081/policy"}
	got, err := urls.On("10.0.0.7:9")
	want := controlclient.URLs{Snapshot: "https://10.0.0.7:9/snapshot", Policy: "https://10.0.0.7:9/policy"}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := (controlclient.URLs{Policy: "http://%zz"}).On("x:1"); err == nil {
		t.Error("a URL that is none was taken")
	}
}
