// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"bytes"
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
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/gate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const audience, controller = "inferencecache.io/policy", "system:serviceaccount:ic:controller"

// reviewer answers from a table and counts the calls.
type reviewer struct {
	mu      sync.Mutex
	reviews map[string]auth.Review
	failing error
	calls   int
	hold    chan struct{} // reviews wait for it, nil = they do not
}

func (r *reviewer) Review(ctx context.Context, token, audience string) (auth.Review, error) {
	if r.hold != nil {
		select {
		case <-r.hold:
		case <-ctx.Done():
			return auth.Review{}, ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if r.failing != nil {
		return auth.Review{}, r.failing
	}
	review, ok := r.reviews[token]
	if !ok {
		return auth.Review{Reason: "invalid bearer token " + token}, nil
	}
	return review, nil
}

func (r *reviewer) change(f func(*reviewer)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

func good(username string) auth.Review {
	return auth.Review{Authenticated: true, Username: username, Audiences: []string{audience}}
}

// desk is Reviews with what surrounds them.
type desk struct {
	*auth.Reviews
	t        *testing.T
	reviewer *reviewer
	registry *prometheus.Registry
	logs     *bytes.Buffer
}

func newDesk(t *testing.T, change func(*auth.ReviewOptions)) *desk {
	d := &desk{t: t, registry: prometheus.NewRegistry(), logs: new(bytes.Buffer), reviewer: &reviewer{reviews: map[string]auth.Review{
		"good":    good(controller),
		"other":   good("system:serviceaccount:ic:other"),
		"default": {Authenticated: true, Username: controller},
		"else":    {Authenticated: true, Username: controller, Audiences: []string{"inferencecache.io/controller"}},
	}}}
	options := auth.ReviewOptions{
		Reviewer: d.reviewer, Audience: audience, Username: controller, Endpoint: auth.EndpointPolicy,
		Metrics: auth.NewMetrics(d.registry), Logger: slog.New(slog.NewTextHandler(d.logs, nil)),
	}
	if change != nil {
		change(&options)
	}
	d.Reviews = auth.NewReviews(options)
	t.Cleanup(d.Close)
	return d
}

func (d *desk) ask(source, token string) gate.Verdict {
	_, verdict := d.Authenticate(context.Background(), source, token)
	return verdict
}

func (d *desk) want(token string, want gate.Verdict) {
	d.t.Helper()
	if got := d.ask("192.0.2.1", token); got != want {
		d.t.Errorf("%s: verdict %q, want %q", token, got, want)
	}
}

func (d *desk) wantCalls(want int) {
	d.t.Helper()
	d.reviewer.change(func(r *reviewer) {
		if r.calls != want {
			d.t.Errorf("%d reviews, want %d", r.calls, want)
		}
	})
}

func (d *desk) results() map[string]float64 {
	d.t.Helper()
	return results(d.t, d.registry)
}

// results are the counters that are not 0.
func results(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if v := metric.GetCounter().GetValue(); v > 0 {
				counts[metric.GetLabel()[0].GetValue()+" "+metric.GetLabel()[1].GetValue()] = v
			}
		}
	}
	return counts
}

func TestReviews(t *testing.T) {
	for name, tc := range map[string]struct {
		header string
		fails  error
		want   gate.Verdict
		logs   string
		counts string
	}{
		"the one admitted":                  {header: "Bearer good", want: gate.OK, counts: "ok"},
		"the scheme in another case":        {header: "bEARER   good ", want: gate.OK, counts: "ok"},
		"no token":                          {want: gate.Unauthenticated},
		"a blank token":                     {header: "Bearer  ", want: gate.Unauthenticated},
		"another scheme":                    {header: "Basic good", want: gate.Unauthenticated},
		"a token that is not good":          {header: "Bearer expired", want: gate.Unauthenticated, logs: "invalid bearer token", counts: "denied"},
		"someone else":                      {header: "Bearer other", want: gate.Forbidden, logs: "not the one admitted", counts: "denied"},
		"a token for the API server":        {header: "Bearer default", want: gate.Unauthenticated, logs: "does not confirm the audience", counts: "denied"},
		"a token for another audience":      {header: "Bearer else", want: gate.Unauthenticated, logs: "does not confirm the audience", counts: "denied"},
		"a reviewer that cannot tell":       {header: "Bearer good", fails: errors.New("connection refused"), want: gate.Error, logs: "connection refused", counts: "error"},
		"a token longer than any":           {header: "Bearer " + strings.Repeat("x", 16<<10+1), want: gate.Unauthenticated},
		"an error that repeats a bad token": {header: "Bearer canary-1", fails: errors.New("bad canary-1"), want: gate.Error, logs: "bad (token)", counts: "error"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, nil)
			d.reviewer.failing = tc.fails
			request := &http.Request{RemoteAddr: "192.0.2.1:99", Header: http.Header{"Authorization": {tc.header}}}
			if got := d.Check(request.WithContext(t.Context())); got != tc.want {
				t.Errorf("verdict %q, want %q", got, tc.want)
			}
			want := map[string]float64{}
			if tc.counts != "" {
				want["policy "+tc.counts] = 1
			}
			if diff := cmp.Diff(want, d.results()); diff != "" {
				t.Errorf("counters (-want +got):\n%s", diff)
			}
			if !strings.Contains(d.logs.String(), tc.logs) || tc.logs == "" && d.logs.Len() > 0 {
				t.Errorf("log %q, want it to say %q", d.logs, tc.logs)
			}
		})
	}
}

func TestReviewsRemember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.want("good", gate.OK)
		d.reviewer.change(func(r *reviewer) { delete(r.reviews, "good") })
		time.Sleep(30*time.Second - 1)
		d.want("good", gate.OK)
		d.wantCalls(1)
		time.Sleep(time.Nanosecond)
		d.want("good", gate.Unauthenticated)
		d.wantCalls(2)

		d.reviewer.change(func(r *reviewer) { r.reviews["good"] = good(controller) })
		time.Sleep(5*time.Second - 1)
		d.want("good", gate.Unauthenticated)
		d.want("other", gate.Forbidden)
		d.want("other", gate.Forbidden)
		d.wantCalls(3)
		time.Sleep(time.Nanosecond)
		d.want("good", gate.OK)
		d.wantCalls(4)

		d.reviewer.change(func(r *reviewer) { r.failing = errors.New("down") })
		d.want("new", gate.Error)
		d.want("new", gate.Error)
		d.want("good", gate.OK)
		d.wantCalls(6)
	})
}

func TestReviewsForgetWhatExpiresSoonest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(o *auth.ReviewOptions) { o.MaxAdmitted = 2 })
		for _, token := range []string{"1", "2", "3"} {
			d.reviewer.reviews[token] = good(controller)
			d.want(token, gate.OK)
			time.Sleep(time.Second)
		}
		d.want("3", gate.OK)
		d.want("2", gate.OK)
		d.wantCalls(3)
		d.want("1", gate.OK)
		d.wantCalls(4)
	})
}

func TestReviewsMergeAndOutliveTheirCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.reviewer.hold = make(chan struct{})
		hasty, leave := context.WithCancel(t.Context())
		verdicts := make(chan gate.Verdict, 8)
		go func() {
			_, verdict := d.Authenticate(hasty, "192.0.2.1", "good")
			verdicts <- verdict
		}()
		synctest.Wait()
		leave()
		if got := <-verdicts; got != gate.Error {
			t.Errorf("who left got %q", got)
		}
		for range cap(verdicts) {
			go func() { verdicts <- d.ask("192.0.2.2", "good") }()
		}
		synctest.Wait()
		close(d.reviewer.hold)
		for range cap(verdicts) {
			if got := <-verdicts; got != gate.OK {
				t.Errorf("verdict %q", got)
			}
		}
		d.wantCalls(1)
	})
}

func TestReviewsEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.reviewer.hold = make(chan struct{})
		began := time.Now()
		d.want("good", gate.Error)
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("a reviewer that hangs was given up after %s", took)
		}
		d.Close()
		d.want("good", gate.Error)
	})
}

func TestReviewsAreLimitedBySource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		flood := func(n int) (reviewed int) {
			for i := range n {
				if d.ask("192.0.2.66", fmt.Sprint("garbage ", time.Now().UnixNano(), i)) == gate.Unauthenticated {
					reviewed++
				}
			}
			return reviewed
		}
		if got := flood(100); got != 20 {
			t.Errorf("a burst of %d was reviewed, want 20", got)
		}
		d.want("good", gate.OK)
		time.Sleep(time.Second)
		if got := flood(100); got != 10 {
			t.Errorf("%d a second were reviewed, want 10", got)
		}
		if got := d.ask("192.0.2.66", "good"); got != gate.OK {
			t.Errorf("a token known to be good: %q", got)
		}
		want := map[string]float64{"policy denied": 30, "policy limited": 170, "policy ok": 1, "policy cache_hit": 1}
		if diff := cmp.Diff(want, d.results()); diff != "" {
			t.Errorf("counters (-want +got):\n%s", diff)
		}
	})
}

func TestReviewsBoundTheSourcesTheyKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		ask := func(n int) (limited int) {
			for i := range n {
				if d.ask(fmt.Sprint("source ", time.Now().UnixNano(), i), fmt.Sprint("token ", i)) == gate.Error {
					limited++
				}
			}
			return limited
		}
		if got := ask(4096); got != 0 {
			t.Errorf("%d of the sources that fit were limited", got)
		}
		time.Sleep(time.Second / 20)
		if got := ask(100); got != 80 {
			t.Errorf("%d of 100 sources without room were limited, want 80", got)
		}
		time.Sleep(10 * time.Second)
		if got := ask(100); got != 0 {
			t.Errorf("%d sources were limited after the others fell silent", got)
		}
	})
}

func TestReviewsRefreshAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(o *auth.ReviewOptions) { o.RefreshAhead = 10 * time.Second })
		d.want("good", gate.OK)
		time.Sleep(21 * time.Second)
		d.reviewer.hold = make(chan struct{})
		d.want("good", gate.OK)
		d.want("good", gate.OK)
		close(d.reviewer.hold)
		synctest.Wait()
		d.wantCalls(2)
		time.Sleep(19 * time.Second)
		d.want("good", gate.OK)
		d.wantCalls(2)

		d.reviewer.change(func(r *reviewer) { delete(r.reviews, "good") })
		time.Sleep(2 * time.Second)
		d.want("good", gate.OK)
		synctest.Wait()
		d.want("good", gate.Unauthenticated)
	})
}
