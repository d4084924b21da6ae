// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/gate"
)

func TestPodIdentity(t *testing.T) {
	for name, tc := range map[string]struct {
		review       auth.Review
		wantProducer bool
	}{
		"a token bound to a pod":       {auth.Review{Username: "system:serviceaccount:team:engine", Pod: "pod-a", PodUID: "u"}, true},
		"a token bound to nothing":     {auth.Review{Username: "system:serviceaccount:team:engine"}, false},
		"a user, whatever pod he says": {auth.Review{Username: "alice", Pod: "pod-a"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.review.Authenticated, tc.review.Audiences = true, []string{audience}
			d := newDesk(t, func(o *auth.ReviewOptions) { o.Username = "" })
			d.reviewer.reviews["t"] = tc.review
			id, verdict := d.Authenticate(t.Context(), "", "t")
			if verdict != gate.OK || id.Name != tc.review.Username || id.Producer() != tc.wantProducer {
				t.Errorf("%q, producer %v, verdict %q", id.Name, id.Producer(), verdict)
			}
			if id.Producer() && (!id.Writes.Has("team") || id.Writes.Has("other") || !id.OwnsReplica("pod-a")) {
				t.Error("it may not write as its pod, or as more")
			}
		})
	}
}

func TestReplicasOfAPod(t *testing.T) {
	for replica, want := range map[string]string{
		"pod": "pod", "pod#0": "pod", "pod#1023": "pod", "pod#1024": "pod#1024", "pod#-1": "pod#-1",
		"pod#01": "pod#01", "pod#+1": "pod#+1", "pod#": "pod#", "pod#1#2": "pod#1", "#3": "", "": "",
	} {
		if got := auth.PodOf(replica); got != want {
			t.Errorf("pod of %q is %q, want %q", replica, got, want)
		}
	}
}

func TestCertificateIdentity(t *testing.T) {
	for name, tc := range map[string]struct {
		uris              []string
		namespace, pod    string
		refused, noWriter bool
	}{
		"a pod":                 {uris: []string{"spiffe://cluster.local/ns/team/pod/pod-a"}, namespace: "team", pod: "pod-a"},
		"a service account":     {uris: []string{"spiffe://cluster.local/ns/team/sa/engine"}, noWriter: true},
		"another scheme":        {uris: []string{"https://cluster.local/ns/team/pod/pod-a"}, noWriter: true},
		"a longer path":         {uris: []string{"spiffe://cluster.local/ns/team/pod/pod-a/x"}, noWriter: true},
		"an empty namespace":    {uris: []string{"spiffe://cluster.local/ns//pod/pod-a"}, noWriter: true},
		"every pod":             {uris: []string{"spiffe://cluster.local/ns/team/pod/*"}, refused: true},
		"no name":               {refused: true},
		"two names":             {uris: []string{"spiffe://a/ns/t/pod/p", "spiffe://a/ns/t/pod/q"}, refused: true},
		"a list for a name":     {uris: []string{"spiffe://a/ns/team,other/pod/p"}, namespace: "team,other", pod: "p"},
		"a star as a namespace": {uris: []string{"spiffe://a/ns/*/pod/p"}, namespace: "*", pod: "p"},
	} {
		t.Run(name, func(t *testing.T) {
			var uris []*url.URL
			for _, text := range tc.uris {
				uri, err := url.Parse(text)
				if err != nil {
					t.Fatal(err)
				}
				uris = append(uris, uri)
			}
			id, ok := auth.CertificateIdentity(uris)
			if ok == tc.refused {
				t.Fatalf("named: %v", ok)
			}
			if id.Producer() != (tc.namespace != "") || tc.noWriter && id.Producer() {
				t.Fatalf("producer: %v", id.Producer())
			}
			if id.Producer() && (!id.Writes.Has(tc.namespace) || id.Writes.Has("other") || id.Replica != tc.pod) {
				t.Errorf("it may write %v as %q", id.Writes, id.Replica)
			}
		})
	}
}

// configFile is a file whose modification time moves with each write.
type configFile struct {
	t       *testing.T
	path    string
	written time.Time
}

func newConfigFile(t *testing.T, text string) *configFile {
	f := &configFile{t: t, path: filepath.Join(t.TempDir(), "file"), written: time.Now().Add(-time.Hour)}
	f.write(text)
	return f
}

func (f *configFile) write(text string) {
	f.t.Helper()
	f.written = f.written.Add(time.Second)
	if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Chtimes(f.path, f.written, f.written); err != nil {
		f.t.Fatal(err)
	}
}

func TestTokenFile(t *testing.T) {
	var logs strings.Builder
	file := newConfigFile(t, "# who\n\ningest w-1 team,other pod-a\n lookup  r-1\t* *\ningest w-2 * *\n")
	tokens, err := auth.OpenTokenFile(file.path, slog.New(slog.NewTextHandler(&logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	who := func(audience, token string) string {
		id, verdict := tokens.For(audience).Authenticate(t.Context(), "", token)
		if (verdict == gate.OK) != (id.Name != "") {
			t.Errorf("%q with verdict %q", id.Name, verdict)
		}
		return id.Name
	}
	for name, tc := range map[string]struct{ audience, token, want string }{
		"a writer":                     {"ingest", "w-1", "token-file:3"},
		"a reader":                     {"lookup", "r-1", "token-file:4"},
		"a writer that reads":          {"lookup", "w-1", ""},
		"the start of a token":         {"ingest", "w-", ""},
		"no token":                     {"ingest", "", ""},
		"an audience nobody has":       {"none", "w-1", ""},
		"the sum of a token, in bytes": {"ingest", "\x00\x01", ""},
	} {
		if got := who(tc.audience, tc.token); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	id, _ := tokens.For("ingest").Authenticate(t.Context(), "", "w-1")
	if !id.Writes.Has("team") || !id.Reads.Has("other") || id.Writes.Has("third") || !id.OwnsReplica("pod-a#7") || id.OwnsReplica("pod-b") {
		t.Errorf("rights %+v", id)
	}
	id, _ = tokens.For("ingest").Authenticate(t.Context(), "", "w-2")
	if !id.Writes.Has("anything") || !id.OwnsReplica("anyone") {
		t.Errorf("rights %+v", id)
	}

	file.write("ingest w-3 team pod-a\n")
	if who("ingest", "w-1") != "" || who("ingest", "w-3") == "" {
		t.Error("a change is not followed")
	}
	file.write("ingest secret team\n")
	if who("ingest", "w-3") == "" {
		t.Error("a broken file took the tokens away")
	}
	if !strings.Contains(logs.String(), "line 1") || strings.Contains(logs.String(), "secret") {
		t.Errorf("log %q", logs.String())
	}
}

func TestTenantMap(t *testing.T) {
	file := newConfigFile(t, "# readers\nsystem:serviceaccount:gw:gateway a,b\nspiffe://d/gw *\nsystem:serviceaccount:gw:gateway c\n")
	tenants, err := auth.OpenTenantMap(file.path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	gateway := tenants.Of("system:serviceaccount:gw:gateway")
	if !gateway.Has("a") || !gateway.Has("c") || gateway.Has("d") || gateway.Has("*") || gateway.Empty() {
		t.Errorf("gateway: %+v", gateway)
	}
	if !tenants.Of("spiffe://d/gw").Has("any") || !tenants.Of("nobody").Empty() || tenants.Of("nobody").Has("a") {
		t.Error("rights of others are wrong")
	}
	file.write("nobody a\n")
	if !tenants.Of("spiffe://d/gw").Empty() || !tenants.Of("nobody").Has("a") {
		t.Error("a change is not followed")
	}
}

func TestFilesThatNobodyCanUse(t *testing.T) {
	for name, text := range map[string]string{"a line of one word": "x\n", "five words": "a b c d e\n", "too long": strings.Repeat("#", 1<<20+1)} {
		path := newConfigFile(t, text).path
		if _, err := auth.OpenTokenFile(path, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: accepted as tokens", name)
		}
		if _, err := auth.OpenTenantMap(path, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: accepted as tenants", name)
		}
	}
	if _, err := auth.OpenTokenFile(filepath.Join(t.TempDir(), "none"), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a missing file was opened")
	}
}
