// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/gateway"
)

// TestUsageSample checks that the gateway learns the usage of a stream and the
// client sees the stream it would have got without that.
func TestUsageSample(t *testing.T) {
	const (
		first  = `data: {"id":"x","choices":[{"text":"a \"usage\": b"}],"usage":null}` + "\n\n"
		second = `data: {"id":"x","usage":null,"choices":[{"text":"c"}]}` + "\n\n"
		last   = `data: {"id":"x","choices":[],"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"
		done   = "data: [DONE]\n\n"
		plain  = `data: {"id":"x","choices":[{"text":"a \"usage\": b"}]}` + "\n\n" +
			`data: {"id":"x","choices":[{"text":"c"}]}` + "\n\n" + done
	)
	const asked = `{"model":"base/model","prompt":"x","stream":true,"stream_options":{"include_usage":true}}`
	tests := map[string]struct {
		sample     int
		body       string
		wantBodies []string
		wantStream string
		wantCached float64
	}{
		"one in two asks for usage, unseen": {
			sample: 2, body: streamBody, wantBodies: []string{asked, streamBody, asked},
			wantStream: plain, wantCached: 3 * 4,
		},
		"trailing space stays": {
			sample: 1, body: streamBody + " \n", wantBodies: []string{asked + " \n", asked + " \n", asked + " \n"},
			wantStream: plain, wantCached: 3 * 4,
		},
		"a client that asks gets everything": {
			sample: 1, body: asked, wantBodies: []string{asked, asked, asked},
			wantStream: first + second + last + done, wantCached: 3 * 4,
		},
		"never": {
			sample: -1, body: streamBody, wantBodies: []string{streamBody, streamBody, streamBody},
			wantStream: first + second + last + done, wantCached: 3 * 4,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			whole := first + second + last + done
			steps := []func(io.Writer, *http.Request){}
			for len(whole) > 0 { // in pieces that end anywhere
				n := min(7, len(whole))
				steps = append(steps, event(whole[:n]))
				whole = whole[n:]
			}
			a := newEngine(t, "a", func(e *engine) { e.generate = events(steps...) })
			f := start(t, gateway.Options{UsageSample: tc.sample}, a)
			for i := range 3 {
				got := f.post("/v1/completions", tc.body)
				want := tc.wantStream
				if !strings.Contains(string(a.requests()[i].body), "stream_options") {
					want = first + second + last + done
				}
				if diff := cmp.Diff(want, got.body); diff != "" {
					t.Errorf("stream %d (-want +got):\n%s", i, diff)
				}
			}
			var bodies []string
			for _, r := range a.requests() {
				bodies = append(bodies, string(r.body))
			}
			if diff := cmp.Diff(tc.wantBodies, bodies); diff != "" {
				t.Errorf("bodies at the engine (-want +got):\n%s", diff)
			}
			f.idle()
			if got := f.value("routing_tokens_total", "kind", "engine_cached"); got != tc.wantCached {
				t.Errorf("%v cached tokens, want %v", got, tc.wantCached)
			}
		})
	}
}
