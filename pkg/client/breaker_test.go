// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/pkg/client"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// switchable is an index that answers with a status code one can set.
type switchable struct {
	code  codes.Code
	calls int
}

func (s *switchable) conn() direct {
	return func(context.Context, *pb.LookupRouteRequest, *pb.LookupRouteResponse) error {
		s.calls++
		return status.Error(s.code, "set by the test")
	}
}

func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		index := &switchable{code: codes.Unavailable}
		var counted tally
		var logged logBuffer
		c := client.New(index.conn(), client.Options{Logger: logged.logger(), Metrics: &counted})
		ask := func(want client.Reason, wantCalls int) {
			t.Helper()
			if got := c.Lookup(t.Context(), question()); got.Reason != want || index.calls != wantCalls {
				t.Fatalf("reason %s after %d calls, want %s after %d", got.Reason, index.calls, want, wantCalls)
			}
		}
		for call := range 5 {
			ask(client.Unavailable, call+1)
		}
		ask(client.BreakerOpen, 5)
		time.Sleep(2*time.Second - time.Nanosecond)
		ask(client.BreakerOpen, 5)
		time.Sleep(time.Nanosecond)
		ask(client.Unavailable, 6)
		ask(client.BreakerOpen, 6)
		if got := c.Breaker(); got != client.BreakerOpened {
			t.Errorf("breaker %s after a failed trial", got)
		}
		time.Sleep(2 * time.Second)
		index.code = codes.OK
		ask(client.NoHint, 7)
		if got := c.Breaker(); got != client.BreakerClosed {
			t.Errorf("breaker %s after a good trial", got)
		}
		index.code = codes.Internal
		for call := range 4 {
			ask(client.Unavailable, 8+call)
		}
		index.code = codes.OK
		ask(client.NoHint, 12)

		if diff := cmp.Diff([]client.BreakerState{client.BreakerOpened, client.BreakerClosed}, counted.states); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[client.Reason]int{client.Unavailable: 10, client.BreakerOpen: 3, client.NoHint: 2}, counted.reasons); diff != "" {
			t.Errorf("reasons (-want +got):\n%s", diff)
		}
		want := `level=WARN msg="index does not answer; routing goes on without hints" reason=UNAVAILABLE code=Unavailable retry_after=2s
level=INFO msg="index answers again"
`
		if diff := cmp.Diff(want, logged.take()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

// What a call counts for, seen by whether five of them open the breaker.
func TestBreakerCounts(t *testing.T) {
	hang := func(ctx context.Context, _ *pb.LookupRouteRequest, _ *pb.LookupRouteResponse) error {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	for name, tc := range map[string]struct {
		conn          direct
		callerTimeout time.Duration
		wantOpen      bool
	}{
		"calls without an answer in time":          {hang, time.Hour, true},
		"callers with less time than the client":   {hang, time.Millisecond, false},
		"servers that keep the callers' deadlines": {(&switchable{code: codes.DeadlineExceeded}).conn(), time.Millisecond, false},
		"servers that give up by themselves":       {(&switchable{code: codes.DeadlineExceeded}).conn(), time.Hour, true},
		"wrong credentials":                        {(&switchable{code: codes.Unauthenticated}).conn(), time.Hour, true},
		"requests too large":                       {(&switchable{code: codes.ResourceExhausted}).conn(), time.Hour, false},
		"answers that the server took too long":    {says("TIMEOUT"), time.Hour, false},
		"answers that the index knows no such key": {says("UNKNOWN_TENANT"), time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := client.New(tc.conn, client.Options{Logger: silent})
				for range 5 {
					ctx, cancel := context.WithTimeout(t.Context(), tc.callerTimeout)
					c.Lookup(ctx, question())
					cancel()
				}
				if open := c.Breaker() == client.BreakerOpened; open != tc.wantOpen {
					t.Errorf("breaker %s", c.Breaker())
				}
			})
		})
	}
}

func TestBreakerTrials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		index := &switchable{code: codes.Unavailable}
		answer := make(chan error)
		conn := direct(func(ctx context.Context, in *pb.LookupRouteRequest, out *pb.LookupRouteResponse) error {
			if in.GetAdapterId() != "held" {
				return index.conn()(ctx, in, out)
			}
			select {
			case err := <-answer:
				return err
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			}
		})
		c := client.New(conn, client.Options{Logger: silent, Timeout: patient})
		held := question()
		held.Adapter = "held"
		var running sync.WaitGroup
		begin := func(ctx context.Context) {
			running.Go(func() { c.Lookup(ctx, held) })
			synctest.Wait()
		}
		want := func(when string, want client.BreakerState) {
			t.Helper()
			if got := c.Breaker(); got != want {
				t.Errorf("%s: breaker %s, want %s", when, got, want)
			}
		}

		for range 5 {
			c.Lookup(t.Context(), question())
		}
		want("after failures", client.BreakerOpened)
		time.Sleep(2 * time.Second)

		ctx, cancel := context.WithCancel(t.Context())
		begin(ctx)
		want("during a trial", client.BreakerHalfOpen)
		if got := c.Lookup(t.Context(), question()); got.Reason != client.BreakerOpen {
			t.Errorf("second trial beside the first: %s", got.Reason)
		}
		cancel()
		synctest.Wait()
		want("after a trial whose caller left", client.BreakerOpened)

		begin(t.Context()) // No waiting: nothing was learned.
		want("during the next trial", client.BreakerHalfOpen)
		answer <- nil
		running.Wait()
		want("after a good trial", client.BreakerClosed)
	})
}

func TestBreakerIgnoresCallsOfAnOlderState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		index := &switchable{code: codes.Unavailable}
		old := make(chan error)
		conn := direct(func(ctx context.Context, in *pb.LookupRouteRequest, out *pb.LookupRouteResponse) error {
			if in.GetAdapterId() == "old" {
				return <-old
			}
			return index.conn()(ctx, in, out)
		})
		c := client.New(conn, client.Options{Logger: silent, Timeout: patient})
		request := question()
		request.Adapter = "old"
		var running sync.WaitGroup
		running.Go(func() { c.Lookup(context.WithoutCancel(t.Context()), request) })
		synctest.Wait()
		for range 5 {
			c.Lookup(t.Context(), question())
		}
		old <- nil
		running.Wait()
		if got := c.Breaker(); got != client.BreakerOpened {
			t.Errorf("breaker %s after a good answer to a call begun before it opened", got)
		}
	})
}

// TestBreakerModel compares the breaker with a plain description of it, one
// call at a time.
func TestBreakerModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"ok", "fail", "refuse", "second"}), 1, 60).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			index := &switchable{}
			c := client.New(index.conn(), client.Options{Logger: silent})
			streak, openUntil, open := 0, time.Time{}, false
			for i, step := range steps {
				if step == "second" {
					time.Sleep(time.Second)
					continue
				}
				index.code = map[string]codes.Code{"ok": codes.OK, "fail": codes.Unavailable, "refuse": codes.InvalidArgument}[step]
				admitted := !open || !time.Now().Before(openUntil)
				before := index.calls
				c.Lookup(context.Background(), question())
				if asked := index.calls > before; asked != admitted {
					rt.Fatalf("step %d of %v: asked %v, want %v", i, steps, asked, admitted)
				}
				switch {
				case !admitted, step == "refuse":
				case step == "ok":
					streak, open = 0, false
				default:
					streak++
					if open || streak >= 5 {
						streak, open, openUntil = 0, true, time.Now().Add(2*time.Second)
					}
				}
			}
		})
	})
}

func TestWarnings(t *testing.T) {
	const advice = "the index knows nothing under this key; do publishers use the same value?"
	for name, tc := range map[string]struct {
		code string
		want string
	}{
		"tenant":      {"UNKNOWN_TENANT", `reason=UNKNOWN_TENANT tenant=team-a`},
		"model":       {"UNKNOWN_MODEL", `reason=UNKNOWN_MODEL model=llama tenant=team-a`},
		"hash scheme": {"UNKNOWN_HASH_SCHEME", `reason=UNKNOWN_HASH_SCHEME hash_scheme=vllm tenant=team-a model=llama`},
	} {
		t.Run("one warning a minute per wrong "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var logged logBuffer
				asked := 0
				c := client.New(direct(func(ctx context.Context, in *pb.LookupRouteRequest, out *pb.LookupRouteResponse) error {
					asked++
					return says(tc.code)(ctx, in, out)
				}), client.Options{Logger: logged.logger()})
				want := "level=WARN msg=\"" + advice + "\" " + tc.want + "\n"
				for range 100 {
					c.Lookup(t.Context(), question())
				}
				if diff := cmp.Diff(want, logged.take()); diff != "" {
					t.Errorf("first minute (-want +got):\n%s", diff)
				}
				if asked != 100 {
					t.Errorf("%d calls for 100 lookups", asked)
				}
				time.Sleep(time.Minute)
				c.Lookup(t.Context(), question())
				if diff := cmp.Diff(want, logged.take()); diff != "" {
					t.Errorf("second minute (-want +got):\n%s", diff)
				}
				other := question()
				other.Tenant, other.Model, other.HashScheme = "team-b", "qwen", "sglang"
				c.Lookup(t.Context(), other)
				if got := logged.take(); strings.Count(got, advice) != 1 {
					t.Errorf("another value: logged %q", got)
				}
			})
		})
	}
	t.Run("many wrong values stay bounded and do not hide other reasons", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var logged logBuffer
			code := "UNKNOWN_MODEL"
			c := client.New(direct(func(ctx context.Context, in *pb.LookupRouteRequest, out *pb.LookupRouteResponse) error {
				return says(code)(ctx, in, out)
			}), client.Options{Logger: logged.logger()})
			flood := func() int {
				for i := range 1000 {
					request := question()
					request.Model = strings.Repeat("m", i%250+1)
					c.Lookup(t.Context(), request)
				}
				return strings.Count(logged.take(), advice)
			}
			if got := flood(); got != 64 {
				t.Errorf("%d warnings for 250 wrong models, want 64", got)
			}
			code = "UNKNOWN_TENANT"
			c.Lookup(t.Context(), question())
			if got := logged.take(); !strings.Contains(got, "UNKNOWN_TENANT") {
				t.Errorf("logged %q", got)
			}
			code = "UNKNOWN_MODEL"
			time.Sleep(time.Minute)
			if got := flood(); got != 64 {
				t.Errorf("%d warnings a minute later, want 64", got)
			}
		})
	})
	t.Run("refusals once a minute and code", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var logged logBuffer
			c := client.New((&switchable{code: codes.ResourceExhausted}).conn(), client.Options{Logger: logged.logger()})
			for range 10 {
				c.Lookup(t.Context(), question())
			}
			want := "level=WARN msg=\"the index refuses lookups\" code=ResourceExhausted\n"
			if diff := cmp.Diff(want, logged.take()); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
		})
	})
}
