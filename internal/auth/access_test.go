// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/gate"
)

// authorizer allows what it lists as "user resource namespace".
type authorizer struct {
	mu            sync.Mutex
	allowed       map[string]bool
	failing       error
	calls         int
	running, most int
	takes         time.Duration
}

func (a *authorizer) ReviewAccess(ctx context.Context, w auth.Wish) (bool, error) {
	a.mu.Lock()
	a.calls++
	a.running++
	a.most = max(a.most, a.running)
	a.mu.Unlock()
	if a.takes > 0 {
		select {
		case <-time.After(a.takes):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running--
	return a.allowed[strings.TrimSpace(w.Subject.User+" "+w.Resource+" "+w.Namespace)], a.failing
}

func (a *authorizer) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// window is an Access with what surrounds it.
type window struct {
	*auth.Access
	t        *testing.T
	judge    *authorizer
	registry *prometheus.Registry
}

func newWindow(t *testing.T, allowed ...string) *window {
	w := &window{t: t, judge: &authorizer{allowed: map[string]bool{}}, registry: prometheus.NewRegistry()}
	for _, wish := range allowed {
		w.judge.allowed[wish] = true
	}
	w.Access = auth.NewAccess(auth.AccessOptions{Reviewer: w.judge, Metrics: auth.NewMetrics(w.registry)})
	t.Cleanup(w.Close)
	return w
}

func account(name string) *auth.Identity {
	return &auth.Identity{Name: name, Subject: auth.NewSubject(name, "", nil, nil)}
}

func (w *window) want(user, tenant string, want gate.Verdict) {
	w.t.Helper()
	if got := w.MayRead(w.t.Context(), account(user), tenant); got != want {
		w.t.Errorf("%s in %.20s: %q, want %q", user, tenant, got, want)
	}
}

func (w *window) wantCalls(want int) {
	w.t.Helper()
	w.judge.change(func() {
		if w.judge.calls != want {
			w.t.Errorf("%d reviews, want %d", w.judge.calls, want)
		}
	})
}

func TestAccessIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(t, "gw lookups team")
		w.want("gw", "team", gate.OK)
		w.want("gw", "other", gate.Forbidden)
		w.judge.change(func() {
			delete(w.judge.allowed, "gw lookups team")
			w.judge.allowed["gw lookups other"] = true
		})
		time.Sleep(5*time.Second - 1)
		w.want("gw", "other", gate.Forbidden)
		w.want("gw", "team", gate.OK)
		w.wantCalls(2)
		time.Sleep(time.Nanosecond)
		w.want("gw", "other", gate.OK)
		time.Sleep(15 * time.Second)
		w.want("gw", "team", gate.OK) // asks again before the answer runs out
		synctest.Wait()
		time.Sleep(time.Second)
		w.want("gw", "team", gate.OK)
		synctest.Wait()
		w.want("gw", "team", gate.Forbidden)
		w.wantCalls(4)
		want := map[string]float64{
			"lookups ok": 2, "lookups denied": 2, "lookups cache_hit": 3, "lookups negative_hit": 2,
		}
		if diff := cmp.Diff(want, results(t, w.registry)); diff != "" {
			t.Errorf("counters (-want +got):\n%s", diff)
		}
	})
}

func TestAccessThatNobodyIsAskedFor(t *testing.T) {
	w := newWindow(t, "gw lookups")
	w.want("", "team", gate.Forbidden)
	w.want("gw", "", gate.Forbidden)
	w.want("gw", strings.Repeat("x", 257), gate.Forbidden)
	w.wantCalls(0)
}

func TestAccessIsNotGuessed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(t, "gw lookups team")
		w.judge.failing = errors.New("down")
		w.want("gw", "team", gate.Error)
		w.judge.change(func() { w.judge.failing = nil })
		w.want("gw", "team", gate.OK)
		w.judge.change(func() { w.judge.failing = errors.New("down") })
		w.want("gw", "team", gate.OK)
		time.Sleep(30 * time.Second)
		w.want("gw", "team", gate.Error)
	})
}

func TestAccessReviewsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(t)
		w.judge.takes = time.Millisecond
		ask := func(user string, n int) map[gate.Verdict]int {
			verdicts := make(chan gate.Verdict, n)
			for i := range n {
				go func() { verdicts <- w.MayRead(t.Context(), account(user), fmt.Sprint(time.Now().UnixNano(), "-", i)) }()
			}
			counts := map[gate.Verdict]int{}
			for range n {
				counts[<-verdicts]++
			}
			return counts
		}
		if diff := cmp.Diff(map[gate.Verdict]int{gate.Forbidden: 500, gate.Error: 100}, ask("flood", 600)); diff != "" {
			t.Errorf("a flood (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[gate.Verdict]int{gate.Forbidden: 10}, ask("other", 10)); diff != "" {
			t.Errorf("another caller (-want +got):\n%s", diff)
		}
		if w.judge.most != 16 {
			t.Errorf("%d reviews ran at once, want 16", w.judge.most)
		}
		ask("flood", 500)
		time.Sleep(time.Second)
		if got := ask("flood", 100)[gate.Forbidden]; got < 50 || got > 51 {
			t.Errorf("%d a second were reviewed, want 50", got)
		}
	})
}

func TestSubjectsDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(t)
		for _, s := range []auth.Subject{
			auth.NewSubject("u", "", nil, nil),
			auth.NewSubject("u", "1", nil, nil),
			auth.NewSubject("u", "", []string{"g"}, nil),
			auth.NewSubject("u", "", []string{"g", "h"}, nil),
			auth.NewSubject("u", "", []string{"gh"}, nil),
			auth.NewSubject("u", "", nil, map[string][]string{"g": {"h"}}),
			auth.NewSubject("u", "", nil, map[string][]string{"gh": {""}}),
		} {
			w.MayRead(t.Context(), &auth.Identity{Subject: s}, "team")
		}
		w.wantCalls(7)
		w.MayRead(t.Context(), &auth.Identity{Subject: auth.NewSubject("u", "", []string{"g"}, nil)}, "team")
		w.wantCalls(7)
	})
}

func TestAPIServerReviewsAccess(t *testing.T) {
	const answer = `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{},"status":`
	wish := auth.Wish{
		Subject:  auth.NewSubject("u", "1", []string{"g"}, map[string][]string{"k": {"v"}}),
		Resource: auth.ResourceLookups, Namespace: "team",
	}
	for name, tc := range map[string]struct {
		code int
		body string
		want bool
		says string
	}{
		"allowed":              {http.StatusCreated, answer + `{"allowed":true}}`, true, ""},
		"not allowed":          {http.StatusCreated, answer + `{"allowed":false,"reason":"no","evaluationError":"e"}}`, false, ""},
		"allowed and denied":   {http.StatusCreated, answer + `{"allowed":true,"denied":true}}`, false, ""},
		"no rights to ask":     {http.StatusForbidden, `{"kind":"Status"}`, false, "403"},
		"another kind":         {http.StatusCreated, `{"kind":"TokenReview","status":{"allowed":true}}`, false, "another kind"},
		"something else":       {http.StatusOK, `<html>`, false, "not an access review"},
		"a redirect":           {http.StatusFound, "", false, "302"},
		"an answer without it": {http.StatusOK, answer + `{}}`, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			web := &apiServer{code: tc.code, body: tc.body}
			client, _ := connect(t, web)
			allowed, err := client.ReviewAccess(t.Context(), wish)
			if allowed != tc.want || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, %v; want %v, an error that says %q", allowed, err, tc.want, tc.says)
			}
			const asked = `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"resourceAttributes":` +
				`{"namespace":"team","verb":"get","group":"inferencecache.io","resource":"lookups"},` +
				`"user":"u","uid":"1","groups":["g"],"extra":{"k":["v"]}}}`
			if web.path != "POST /apis/authorization.k8s.io/v1/subjectaccessreviews" || web.asked != asked {
				t.Errorf("asked %s: %s", web.path, web.asked)
			}
		})
	}
}

// jwt is an unsigned token for an audience, given as JSON.
func jwt(aud, nonce string) string {
	return "e30." + rawBase64(`{"aud":`+aud+`,"n":"`+nonce+`"}`) + ".sig"
}

func TestOperators(t *testing.T) {
	const operator = `["` + auth.AudienceOperator + `"]`
	review := func(user string, groups ...string) auth.Review {
		return auth.Review{Authenticated: true, Username: user, Groups: groups, Audiences: []string{auth.AudienceOperator}}
	}
	tokens := map[string]auth.Review{
		jwt(operator, "user"):                          review("alice"),
		jwt(operator, "group"):                         review("bob", "admins"),
		jwt(operator, "rbac"):                          review("carol"),
		jwt(operator, "other"):                         review("mallory", "users"),
		jwt(`"`+auth.AudienceOperator+`"`, "one name"): review("alice"),
	}
	file := newConfigFile(t, auth.AudienceOperator+" static\n"+audience+" else\n")
	static, err := gate.OpenTokenFile(file.path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w := newWindow(t, "carol operators")
	operators := auth.NewOperators(auth.OperatorOptions{
		Reviewer: &reviewer{reviews: tokens}, Subjects: []string{"alice", "admins"}, Access: w.Access,
		Tokens: static.For(auth.AudienceOperator),
	})
	t.Cleanup(operators.Close)
	for name, tc := range map[string]struct {
		token  string
		claims bool
		want   gate.Verdict
	}{
		"a user of the list":            {jwt(operator, "user"), true, gate.OK},
		"an audience that is no list":   {jwt(`"`+auth.AudienceOperator+`"`, "one name"), true, gate.OK},
		"a member of a group":           {jwt(operator, "group"), true, gate.OK},
		"an operator by access review":  {jwt(operator, "rbac"), true, gate.OK},
		"somebody else":                 {jwt(operator, "other"), true, gate.Forbidden},
		"a forged token":                {jwt(operator, "forged"), true, gate.Unauthenticated},
		"a static token":                {"static", true, gate.OK},
		"a static token for another":    {"else", false, gate.Unauthenticated},
		"a token for another audience":  {jwt(`["x"]`, "user"), false, gate.Unauthenticated},
		"no JSON":                       {"a." + rawBase64("{") + ".c", false, gate.Unauthenticated},
		"no base64":                     {"a.&.c", false, gate.Unauthenticated},
		"a token longer than any":       {strings.Repeat("x", 1<<15), false, gate.Unauthenticated},
		"an audience of another type":   {jwt("7", ""), false, gate.Unauthenticated},
		"nothing":                       {"", false, gate.Unauthenticated},
		"two parts":                     {"a.b", false, gate.Unauthenticated},
		"a claim that only looks right": {jwt(`{"a":"`+auth.AudienceOperator+`"}`, ""), false, gate.Unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			if got := operators.Claims(tc.token); got != tc.claims {
				t.Errorf("claims %v, want %v", got, tc.claims)
			}
			id, verdict := operators.Authenticate(t.Context(), "192.0.2.1", tc.token)
			if verdict != tc.want || (verdict == gate.OK) != id.Reads.Has("any") || id.Producer() {
				t.Errorf("verdict %q, identity %+v; want %q", verdict, id, tc.want)
			}
		})
	}
	if (*auth.Operators)(nil).Claims("static") {
		t.Error("no operators claim a token")
	}
}

func TestOperatorsBeside(t *testing.T) {
	token := jwt(`["`+auth.AudienceOperator+`"]`, "")
	judge := &reviewer{reviews: map[string]auth.Review{token: {
		Authenticated: true, Username: "alice", Audiences: []string{auth.AudienceOperator},
	}}}
	operators := auth.NewOperators(auth.OperatorOptions{Reviewer: judge, Subjects: []string{"alice"}})
	t.Cleanup(operators.Close)
	d := newDesk(t, nil)
	checker := operators.Beside(d.Reviews)
	for name, tc := range map[string]struct {
		header string
		want   gate.Verdict
	}{
		"an operator":        {"Bearer " + token, gate.OK},
		"the one admitted":   {"Bearer good", gate.OK},
		"someone else":       {"Bearer other", gate.Forbidden},
		"nobody":             {"", gate.Unauthenticated},
		"an invalid token":   {"Bearer x", gate.Unauthenticated},
		"an operator, Basic": {"Basic " + token, gate.Unauthenticated},
	} {
		if got := checker.Check(&http.Request{RemoteAddr: "192.0.2.1:9", Header: http.Header{"Authorization": {tc.header}}}); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if strings.Contains(d.logs.String(), auth.AudienceOperator) {
		t.Errorf("an operator's token was reviewed for the other audience: %s", d.logs)
	}
	if (*auth.Operators)(nil).Beside(d.Reviews) != auth.Checker(d.Reviews) {
		t.Error("no operators changed the gate")
	}
}
