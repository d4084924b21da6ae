// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type recorder struct {
	mu    sync.Mutex
	times []time.Duration // since start
	start time.Time
}

func (r *recorder) Publish([]byte) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times = append(r.times, time.Since(r.start))
	return uint64(len(r.times) - 1)
}

func (*recorder) Restart() {}

func request(tokens uint32, maxTokens int) *sched.Request {
	prompt := make([]uint32, tokens)
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	return &sched.Request{
		Prompt:    prompt,
		MaxTokens: maxTokens,
		Sample:    func(int) (uint32, bool) { return 7, false },
	}
}

var timing = sched.Timing{
	PrefillTokensPerSecond: 1000,
	DecodeStep:             9 * time.Millisecond,
	DecodeSequence:         time.Millisecond,
}

// start runs a rank inside a synctest bubble and returns its stop function.
func start(options Options) (*Rank, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	r := New(options)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	return r, func() {
		cancel()
		<-done
	}
}

func submit(t *testing.T, r *Rank, request *sched.Request) *Stream {
	t.Helper()
	stream, err := r.Submit(request)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func TestTokensArriveInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shape, err := wire.ParseShape("vllm-0.24")
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		published := &recorder{start: begin}
		r, stop := start(Options{Timing: timing, Publisher: published, Encoder: wire.Encoder{Shape: shape}})
		defer stop()
		stream := submit(t, r, request(100, 14))
		var arrivals []time.Duration
		for {
			token, err := stream.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			arrivals = append(arrivals, time.Since(begin))
			if token.Finish != sched.Running {
				break
			}
		}
		var want []time.Duration
		for i := range 14 {
			want = append(want, 100*time.Millisecond+time.Duration(i)*10*time.Millisecond)
		}
		if diff := cmp.Diff(want, arrivals); diff != "" {
			t.Error(diff)
		}
		// The prompt's blocks at schedule time, the block that ends with token
		// 112 in the twelfth decode step.
		if diff := cmp.Diff([]time.Duration{0, 210 * time.Millisecond}, published.times); diff != "" {
			t.Error(diff)
		}
	})
}

func TestClear(t *testing.T) {
	cases := map[string]struct {
		flush bool
		want  int
	}{
		"an idle engine keeps its clear back":  {false, 1},
		"an engine with an idle loop sends it": {true, 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				published := &recorder{start: time.Now()}
				r, stop := start(Options{Timing: timing, Publisher: published, FlushWhenIdle: tc.flush})
				defer stop()
				stream := submit(t, r, request(16, 1))
				if _, err := stream.Next(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if !r.Reset() {
					t.Fatal("the idle cache was not reset")
				}
				synctest.Wait()
				if got := len(published.times); got != tc.want {
					t.Errorf("%d batches, want %d", got, tc.want)
				}
				r.Flush()
				if got := len(published.times); got != 2 {
					t.Errorf("%d batches after a flush, want 2", got)
				}
			})
		})
	}
}

func TestEndOfStreams(t *testing.T) {
	cases := map[string]struct {
		end  func(r *Rank, stop func())
		want error
	}{
		"stop ends open streams":    {func(_ *Rank, stop func()) { stop() }, ErrStopped},
		"restart ends open streams": {func(r *Rank, _ func()) { r.Restart() }, ErrStopped},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, stop := start(Options{Timing: timing})
				defer stop()
				stream := submit(t, r, request(100, 10))
				tc.end(r, stop)
				if _, err := stream.Next(t.Context()); !errors.Is(err, tc.want) {
					t.Errorf("error %v, want %v", err, tc.want)
				}
				if stats := r.Stats(); name == "restart ends open streams" && stats.Running+stats.Waiting != 0 {
					t.Errorf("%+v after a restart", stats)
				}
			})
		})
	}
}

func TestCloseAborts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stop := start(Options{Timing: timing})
		defer stop()
		stream := submit(t, r, request(100, 1000))
		if _, err := stream.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		stream.Close()
		if stats := r.Stats(); stats.Running != 0 || stats.UsedBlocks != 0 {
			t.Errorf("%+v after the only request was closed", stats)
		}
	})
}

func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stop := start(Options{Timing: timing})
		defer stop()
		r.Stall(time.Second)
		begin := time.Now()
		stream := submit(t, r, request(100, 1))
		if _, err := stream.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, want := time.Since(begin), 1100*time.Millisecond; got != want {
			t.Errorf("first token after %v, want %v", got, want)
		}
	})
}
