// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/gateway"
	sim "github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/httpapi"
)

// bootstrapped starts a gateway with decode and prefill engines of SGLang.
func bootstrapped(t *testing.T, options gateway.Options, prefill, decode []*engine) *fixture {
	t.Helper()
	var replicas []gateway.Replica
	for _, e := range prefill {
		replicas = append(replicas, as(prefillRole, "sglang", e))
	}
	for _, e := range decode {
		replicas = append(replicas, as(decodeRole, "sglang", e))
	}
	return paired(t, options, replicas...)
}

// meeting is what both legs say of where they meet.
type meeting struct {
	Host        json.RawMessage `json:"bootstrap_host"`
	Port        json.RawMessage `json:"bootstrap_port"`
	Room        json.RawMessage `json:"bootstrap_room"`
	PrefillRank *int            `json:"disagg_prefill_dp_rank"`
	Rank        *int            `json:"routed_dp_rank"`
}

func meetingOf(t *testing.T, e *engine, request int) (m meeting) {
	t.Helper()
	if err := json.Unmarshal(e.requests()[request].body, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestBootstrapLegsCarryTheirMeeting(t *testing.T) {
	one, two := 1, 2
	p := newEngine(t, "p#1", func(e *engine) { e.rank = &one })
	d := newEngine(t, "d#2", func(e *engine) { e.rank = &two })
	f := bootstrapped(t, gateway.Options{}, []*engine{p}, []*engine{d})
	seen := map[string]bool{}
	const requests = 20
	for range requests {
		if got := f.post("/v1/completions", completion("short ones too: these engines compute no prompt alone")); got.status != 200 {
			t.Fatal(got.status, got.body)
		}
		f.idle() // these engines do not wait for each other
	}
	for i := range requests {
		first, second := meetingOf(t, p, i), meetingOf(t, d, i)
		if string(first.Room) != string(second.Room) || string(first.Host) != `"127.0.0.1"` || string(first.Port) != "8998" ||
			string(second.Host) != string(first.Host) || string(second.Port) != string(first.Port) {
			t.Fatalf("prefill is to meet at %+v, decode at %+v", first, second)
		}
		if *first.Rank != 1 || *second.Rank != 2 || *second.PrefillRank != 1 || first.PrefillRank != nil {
			t.Errorf("ranks of prefill %+v, of decode %+v", first, second)
		}
		var room int64
		if err := json.Unmarshal(first.Room, &room); err != nil || room < 0 {
			t.Errorf("room %s: %v", first.Room, err)
		}
		seen[string(first.Room)] = true
	}
	if len(seen) != requests {
		t.Errorf("%d different rooms for %d requests", len(seen), requests)
	}
	f.pdCounts(map[string]float64{"two_legs": requests})
	f.idle()
}

func TestBootstrapBatchesHaveLists(t *testing.T) {
	p, d := newEngine(t, "p"), newEngine(t, "d")
	f := bootstrapped(t, gateway.Options{}, []*engine{p}, []*engine{d})
	for i, tc := range []struct {
		prompt string
		rooms  int // 0: no list
	}{{`["a","b","c"]`, 3}, {`["a"]`, 1}, {`[[1,2],[3]]`, 2}, {`[1,2,3]`, 0}, {`"a"`, 0}} {
		if got := f.post("/v1/completions", `{"model":"`+testModel+`","prompt":`+tc.prompt+`}`); got.status != 200 {
			t.Fatal(got.status, got.body)
		}
		f.idle()
		m := meetingOf(t, p, i)
		var rooms []int64
		var hosts []string
		var ports []int
		listed := json.Unmarshal(m.Room, &rooms) == nil && json.Unmarshal(m.Host, &hosts) == nil && json.Unmarshal(m.Port, &ports) == nil
		if listed != (tc.rooms > 0) || len(rooms) != tc.rooms || listed && (len(hosts) != tc.rooms || len(ports) != tc.rooms) {
			t.Errorf("prompt %s: %+v", tc.prompt, m)
		}
	}
	f.idle()
}

// TestBootstrapBatchesAndRanksMeetEndToEnd uses simulated engines with ranks.
func TestBootstrapBatchesAndRanksMeetEndToEnd(t *testing.T) {
	p := simulated(t, httpapi.SGLang, gateway.Options{UsageSample: -1}, func(c *sim.Config) { c.Ranks = 2 })
	for i := range 4 {
		body := fmt.Sprintf(`{"model":"tiny","max_tokens":2,"prompt":["first of %d","second of %d"]}`, i, i)
		if got := p.post("/v1/completions", body); got.status != 200 || strings.Count(got.body, `"index"`) != 2 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	p.pdCounts(map[string]float64{"two_legs": 4})
	p.settled()
}

// TestBootstrapAnswerIsTheDecodeEngines drops what the prefill engine says.
func TestBootstrapAnswerIsTheDecodeEngines(t *testing.T) {
	p, d := newEngine(t, "p"), newEngine(t, "d")
	f := bootstrapped(t, gateway.Options{}, []*engine{p}, []*engine{d})
	got := f.post("/v1/completions", completion(longText("x")), "X-Request-Id", "root")
	if got.status != 200 || !strings.Contains(got.body, `"text":"d"`) || strings.Contains(got.body, `"text":"p"`) {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := kinds(f.legsOf("root")); got != "dispatch 0, outcome 0, outcome 0" {
		t.Errorf("records %s", got)
	}
	for _, leg := range []string{"prefill", "decode"} {
		if got := f.value("gateway_pd_legs_total", "leg", leg, "result", "ok"); got != 1 {
			t.Errorf("%v %s legs were good", got, leg)
		}
	}
	f.idle()
}

// ended is closed when a request at an engine ends.
func ended(e *engine, begin http.HandlerFunc) <-chan struct{} {
	over := make(chan struct{}, 8)
	e.generate = func(w http.ResponseWriter, r *http.Request) {
		defer func() { over <- struct{}{} }()
		begin(w, r)
	}
	return over
}

func waitFor(t *testing.T, what string, happened <-chan struct{}) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(patience):
		t.Fatalf("never happened: %s", what)
	}
}

// TestBootstrapFailureOfALegEndsTheOther fails one leg while the other waits.
func TestBootstrapFailureOfALegEndsTheOther(t *testing.T) {
	for name, tc := range map[string]struct {
		prefill, decode http.HandlerFunc
		// status is what the client gets when a leg always fails so.
		status, attempts int
		failed           string
		failures         float64
	}{
		"prefill answers 503":          {answerStatus(503), hang, 503, 3, "prefill", 3},
		"decode answers 503":           {hang, answerStatus(503), 503, 3, "decode", 3},
		"prefill breaks off":           {crashHandler, hang, 502, 3, "prefill", 3},
		"decode breaks off":            {hang, crashHandler, 502, 3, "decode", 3},
		"prefill refuses the request":  {answerStatus(400), hang, 400, 1, "prefill", 1},
		"decode refuses the request":   {hang, answerStatus(400), 400, 1, "decode", 1},
		"decode answers 500, and lost": {hang, answerStatus(500), 500, 3, "decode", 3},
	} {
		t.Run(name, func(t *testing.T) {
			p, d := newEngine(t, "p"), newEngine(t, "d")
			prefilled, decoded := ended(p, tc.prefill), ended(d, tc.decode)
			f := bootstrapped(t, gateway.Options{}, []*engine{p}, []*engine{d})
			got := inTime(t, "the request", f.inBackgroundWith(completion(longText("x"))))
			if got.status != tc.status {
				t.Errorf("%d %s", got.status, got.body)
			}
			f.idle()
			for range len(p.requests()) {
				waitFor(t, "the prefill engine's request ends", prefilled)
			}
			for range len(d.requests()) {
				waitFor(t, "the decode engine's request ends", decoded)
			}
			if got := f.value("gateway_pd_legs_total", "leg", tc.failed, "result", "failed"); got != tc.failures {
				t.Errorf("%v %s legs failed, want %v", got, tc.failed, tc.failures)
			}
			if got := f.value("routing_pd_total", "outcome", "two_legs"); int(got) != tc.attempts {
				t.Errorf("%v attempts, want %d", got, tc.attempts)
			}
		})
	}
}

// inBackgroundWith posts a completion from another goroutine.
func (f *fixture) inBackgroundWith(body string) <-chan answer {
	done := make(chan answer, 1)
	go func() { done <- f.post("/v1/completions", body) }()
	return done
}

// TestBootstrapLegsAreRedoneTogether fails each leg once before the first byte.
func TestBootstrapLegsAreRedoneTogether(t *testing.T) {
	// The failing leg waits until the other one has arrived.
	arrived := make(chan struct{}, 1)
	waits := func(w http.ResponseWriter, r *http.Request) { arrived <- struct{}{}; hang(w, r) }
	fails := func(w http.ResponseWriter, r *http.Request) { <-arrived; answerStatus(503)(w, r) }
	for name, tc := range map[string]struct{ prefill, decode http.HandlerFunc }{
		"prefill": {inTurn(fails, answerJSON("p", 0)), inTurn(waits, answerJSON("d", 0))},
		"decode":  {inTurn(waits, answerJSON("p", 0)), inTurn(fails, answerJSON("d", 0))},
	} {
		t.Run(name, func(t *testing.T) {
			p, d := newEngine(t, "p"), newEngine(t, "d")
			p.generate, d.generate = tc.prefill, tc.decode
			f := bootstrapped(t, gateway.Options{}, []*engine{p}, []*engine{d})
			got := f.post("/v1/completions", completion(longText("x")))
			f.idle()
			if got.status != 200 || len(p.requests()) != 2 || len(d.requests()) != 2 {
				t.Fatalf("%d %s, %d and %d requests", got.status, got.body, len(p.requests()), len(d.requests()))
			}
			if string(meetingOf(t, p, 0).Room) == string(meetingOf(t, p, 1).Room) {
				t.Error("both attempts meet in one room")
			}
			f.pdCounts(map[string]float64{"two_legs": 2, "leg_failed": 1})
			f.idle()
		})
	}
}

// TestBootstrapFailureAfterTheFirstByte fails a leg while the answer is on its
// way.
func TestBootstrapFailureAfterTheFirstByte(t *testing.T) {
	body := strings.Replace(completion(longText("x")), "{", `{"stream":true,`, 1)
	for name, prefillFails := range map[string]bool{"of the prefill leg": true, "of the decode leg": false} {
		t.Run(name, func(t *testing.T) {
			p, d := newEngine(t, "p"), newEngine(t, "d")
			seen, asked := make(chan struct{}), make(chan struct{})
			decode := events(func(io.Writer, *http.Request) { <-asked }, event("data: one\n\n"), crash)
			p.generate = func(w http.ResponseWriter, r *http.Request) { close(asked); answerJSON("p", 0)(w, r) }
			if prefillFails {
				decode = events(event("data: one\n\n"), func(_ io.Writer, r *http.Request) { <-r.Context().Done() })
				p.generate = func(http.ResponseWriter, *http.Request) { <-seen; panic(http.ErrAbortHandler) }
			}
			decoded := ended(d, decode)
			f := bootstrapped(t, gateway.Options{}, []*engine{p}, []*engine{d})
			response, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			first := make([]byte, len("data: one\n\n"))
			if _, err := io.ReadFull(response.Body, first); err != nil || string(first) != "data: one\n\n" {
				t.Fatalf("%q: %v", first, err)
			}
			close(seen)
			if rest, err := io.ReadAll(response.Body); err != nil || !strings.HasPrefix(string(rest), `data: {"error"`) {
				t.Errorf("%q: %v", rest, err)
			}
			waitFor(t, "the decode engine's request ends", decoded)
			if len(p.requests()) != 1 || len(d.requests()) != 1 {
				t.Errorf("%d and %d requests, want one of each", len(p.requests()), len(d.requests()))
			}
			f.idle()
			f.pdCounts(map[string]float64{"two_legs": 1, "leg_failed": 1})
			leg := map[bool]string{true: "prefill", false: "decode"}[prefillFails]
			if got := f.value("gateway_pd_legs_total", "leg", leg, "result", "failed"); got != 1 {
				t.Errorf("%v %s legs failed", got, leg)
			}
		})
	}
}

// TestBootstrapClientThatLeavesEndsBothLegs cancels while both wait.
func TestBootstrapClientThatLeavesEndsBothLegs(t *testing.T) {
	p, d := newEngine(t, "p"), newEngine(t, "d")
	begun := make(chan struct{})
	prefilled := ended(p, hang)
	decoded := ended(d, func(w http.ResponseWriter, r *http.Request) { close(begun); hang(w, r) })
	f := bootstrapped(t, gateway.Options{}, []*engine{p}, []*engine{d})
	f.leave("/v1/completions", completion(longText("x")), begun)
	waitFor(t, "the decode engine's request ends", decoded)
	if len(p.requests()) > 0 { // it may not have got there
		waitFor(t, "the prefill engine's request ends", prefilled)
	}
	f.idle()
	f.pdCounts(map[string]float64{"two_legs": 1})
}

// TestBootstrapPrefillHasADeadline lets the prefill engine hang.
func TestBootstrapPrefillHasADeadline(t *testing.T) {
	p, d := newEngine(t, "p", func(e *engine) { e.generate = hang }), newEngine(t, "d", func(e *engine) { e.generate = hang })
	f := bootstrapped(t, gateway.Options{Timeouts: gateway.Timeouts{PDPrefill: 20 * time.Millisecond}}, []*engine{p}, []*engine{d})
	if got := f.post("/v1/completions", completion(longText("x"))); got.status != 504 {
		t.Errorf("%d %s", got.status, got.body)
	}
	f.idle()
}

// TestBootstrapDecodeCannotDoWithoutPrefill has no prefill replica: such a
// decode engine refuses whole requests.
func TestBootstrapDecodeCannotDoWithoutPrefill(t *testing.T) {
	d := newEngine(t, "d")
	f := bootstrapped(t, gateway.Options{}, nil, []*engine{d})
	got := f.post("/v1/completions", completion("short"))
	if got.status != 503 || !strings.Contains(got.body, "no prefill replica is ready") || len(d.requests()) != 0 {
		t.Errorf("%d %s, %d requests", got.status, got.body, len(d.requests()))
	}
	s := newEngine(t, "s")
	f = paired(t, gateway.Options{}, as(decodeRole, "sglang", d), as("single", "sglang", s))
	if got := f.post("/v1/completions", completion("short")); got.status != 200 || len(s.requests()) != 1 {
		t.Errorf("with a replica that does both: %d %s", got.status, got.body)
	}
	f.pdCounts(nil)
	f.idle()
}
