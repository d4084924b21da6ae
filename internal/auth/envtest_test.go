// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package auth_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/testcluster"
)

// reviewerOf is the API server as a service account that may only create
// token reviews sees it.
func reviewerOf(t *testing.T, cluster *testcluster.Cluster) *auth.APIServer {
	t.Helper()
	ctx, admin := t.Context(), cluster.Admin
	must(t, admin.Namespace(ctx, "ic"))
	must(t, admin.ServiceAccount(ctx, "ic", "server"))
	must(t, admin.AllowReviews(ctx, "ic", "server"))
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte(issue(t, cluster, testcluster.TokenRequest{Namespace: "ic", Account: "server"})), 0o600))
	reviewer, err := auth.NewAPIServer(auth.Cluster{URL: cluster.URL, CAFile: cluster.CAFile, TokenFile: file}, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(reviewer.Close)
	return reviewer
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func issue(t *testing.T, cluster *testcluster.Cluster, r testcluster.TokenRequest) string {
	t.Helper()
	token, err := cluster.Admin.Token(t.Context(), r)
	must(t, err)
	return token
}

func TestEnvtestReviews(t *testing.T) {
	cluster := testcluster.ForTest(t)
	reviewer := reviewerOf(t, cluster)
	admin := cluster.Admin
	must(t, admin.Namespace(t.Context(), "team"))
	must(t, admin.ServiceAccount(t.Context(), "team", "engine"))
	uid, err := admin.Pod(t.Context(), "team", "pod-a", "engine")
	must(t, err)
	goneUID, err := admin.Pod(t.Context(), "team", "pod-gone", "engine")
	must(t, err)

	const ingest = "inferencecache.io/ingest"
	base := testcluster.TokenRequest{Namespace: "team", Account: "engine", Audience: ingest}
	bound, gone, elsewhere, own := base, base, base, base
	bound.Pod, bound.PodUID = "pod-a", uid
	gone.Pod, gone.PodUID = "pod-gone", goneUID
	elsewhere.Audience, own.Audience = "inferencecache.io/lookup", ""
	goneToken := issue(t, cluster, gone)
	must(t, admin.Delete(t.Context(), "/api/v1/namespaces/team/pods/pod-gone"))
	boundToken := issue(t, cluster, bound)

	for name, tc := range map[string]struct {
		token string
		want  auth.Review
		says  string
	}{
		"a token bound to a pod": {token: boundToken, want: auth.Review{
			Authenticated: true, Username: "system:serviceaccount:team:engine", Pod: "pod-a", PodUID: uid, Audiences: []string{ingest},
		}},
		"a token bound to nothing": {token: issue(t, cluster, base), want: auth.Review{
			Authenticated: true, Username: "system:serviceaccount:team:engine", Audiences: []string{ingest},
		}},
		"a token for another audience":  {token: issue(t, cluster, elsewhere), says: "is invalid for the target audiences"},
		"a token for the API server":    {token: issue(t, cluster, own), says: "is invalid for the target audiences"},
		"a token of a deleted pod":      {token: goneToken, says: "invalidated"},
		"a token with another ending":   {token: boundToken[:len(boundToken)-8] + "AAAAAAAA", says: "invalid"},
		"something that is not a token": {token: "canary", says: ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := reviewer.Review(t.Context(), tc.token, ingest)
			must(t, err)
			if got.Authenticated != tc.want.Authenticated || got.Username != tc.want.Username || got.Pod != tc.want.Pod ||
				got.PodUID != tc.want.PodUID || strings.Join(got.Audiences, ",") != strings.Join(tc.want.Audiences, ",") {
				t.Errorf("review %+v, want %+v", got, tc.want)
			}
			if !strings.Contains(got.Reason, tc.says) {
				t.Errorf("reason %q, want it to say %q", got.Reason, tc.says)
			}
		})
	}

	t.Run("an account that may not review", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "token")
		must(t, os.WriteFile(file, []byte(issue(t, cluster, own)), 0o600))
		stranger, err := auth.NewAPIServer(auth.Cluster{URL: cluster.URL, CAFile: cluster.CAFile, TokenFile: file}, slog.New(slog.DiscardHandler))
		must(t, err)
		t.Cleanup(stranger.Close)
		if _, err := stranger.Review(t.Context(), boundToken, ingest); err == nil || !strings.Contains(err.Error(), "403") {
			t.Errorf("error %v, want one that says 403", err)
		}
	})

	t.Run("no API server", func(t *testing.T) {
		must(t, cluster.StopAPIServer())
		reviews := auth.NewReviews(auth.ReviewOptions{Reviewer: reviewer, Audience: ingest})
		t.Cleanup(reviews.Close)
		if _, verdict := reviews.Authenticate(context.Background(), "", boundToken); verdict != gate.Error {
			t.Errorf("verdict %q", verdict)
		}
	})
}

func TestEnvtestAccess(t *testing.T) {
	cluster := testcluster.ForTest(t)
	reviewer := reviewerOf(t, cluster)
	admin := cluster.Admin
	must(t, admin.Namespace(t.Context(), "team"))
	must(t, admin.Namespace(t.Context(), "other"))
	must(t, admin.ServiceAccount(t.Context(), "team", "gateway"))
	token := issue(t, cluster, testcluster.TokenRequest{Namespace: "team", Account: "gateway", Audience: "inferencecache.io/lookup"})
	reviews := auth.NewReviews(auth.ReviewOptions{Reviewer: reviewer, Audience: "inferencecache.io/lookup"})
	t.Cleanup(reviews.Close)
	id, verdict := reviews.Authenticate(t.Context(), "", token)
	if verdict != gate.OK {
		t.Fatalf("verdict %q", verdict)
	}
	// may asks anew each time.
	may := func(tenant string) gate.Verdict {
		access := auth.NewAccess(auth.AccessOptions{Reviewer: reviewer})
		defer access.Close()
		return access.MayRead(t.Context(), &id, tenant)
	}
	if got := may("team"); got != gate.Error {
		t.Errorf("a server that may not review access: %q", got)
	}
	must(t, admin.AllowAccessReviews(t.Context(), "ic", "server"))
	eventually(t, func() bool { return may("team") == gate.Forbidden })
	must(t, admin.Allow(t.Context(), testcluster.Grant{
		AccountNamespace: "team", Account: "gateway", Namespace: "team", Group: "inferencecache.io", Resource: "lookups", Verb: "get",
	}))
	eventually(t, func() bool { return may("team") == gate.OK })
	for _, tenant := range []string{"other", "none", "*", "not a namespace"} {
		if got := may(tenant); got != gate.Forbidden {
			t.Errorf("%q: %q", tenant, got)
		}
	}

	operator := func() gate.Verdict {
		access := auth.NewAccess(auth.AccessOptions{Reviewer: reviewer})
		defer access.Close()
		return access.IsOperator(t.Context(), &id)
	}
	if got := operator(); got != gate.Forbidden {
		t.Errorf("no operator yet: %q", got)
	}
	must(t, admin.Allow(t.Context(), testcluster.Grant{
		AccountNamespace: "team", Account: "gateway", Group: "inferencecache.io", Resource: "operators", Verb: "get",
	}))
	eventually(t, func() bool { return operator() == gate.OK })
	must(t, admin.Allow(t.Context(), testcluster.Grant{
		AccountNamespace: "team", Account: "gateway", Group: "inferencecache.io", Resource: "lookups", Verb: "get",
	}))
	eventually(t, func() bool { return may("other") == gate.OK && may("any") == gate.OK })
	must(t, cluster.StopAPIServer())
	if got := may("team"); got != gate.Error {
		t.Errorf("without an API server: %q", got)
	}
}

// eventually waits until an API server acts on what was created.
func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never happened")
		}
	}
}
