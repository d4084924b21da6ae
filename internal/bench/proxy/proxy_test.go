// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/bench"
	"github.com/inferencecache/inference-cache/internal/sim/quality"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers chats with a handler and returns its URL.
func serve(t *testing.T, handler http.HandlerFunc) string {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// stream answers with a whole stream.
func stream(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "data: {\"choices\":[]}\n\n")
	_ = http.NewResponseController(w).Flush()
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

func TestClientTellsWhichAnswersAreWhole(t *testing.T) {
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		fault   string
	}{
		"a whole stream":        {stream, ""},
		"a refusal":             {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "too busy", http.StatusTooManyRequests) }, "too busy"},
		"a stream without end":  {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "data: {}\n\n") }, "ended early"},
		"a broken connection":   {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
		"an end in two pieces":  {splitEnd, ""},
		"an answer of no bytes": {func(http.ResponseWriter, *http.Request) {}, "ended early"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient()
			defer c.close()
			_, err := c.send(t.Context(), serve(t, tc.handler), chat(0, 100), time.Now())
			if tc.fault == "" && err != nil || tc.fault != "" && (err == nil || !strings.Contains(err.Error(), tc.fault)) {
				t.Errorf("send() = %v, want %q", err, tc.fault)
			}
		})
	}
}

func splitEnd(w http.ResponseWriter, _ *http.Request) {
	for _, part := range []string{"data: {}\n\ndata: [DO", "NE]\n\n"} {
		_, _ = io.WriteString(w, part)
		_ = http.NewResponseController(w).Flush()
	}
}

func TestLoadSpreadsRequestsAndCountsFailures(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	handler := func(name string, answer http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			seen[name]++
			mu.Unlock()
			answer(w, r)
		}
	}
	urls := []string{
		serve(t, handler("good", stream)),
		serve(t, handler("bad", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })),
	}
	c := newClient()
	defer c.close()
	a := c.load(t.Context(), urls, func(i int) []byte { return chat(i, 200) }, 1000, 10*time.Millisecond)
	if a.sent != 10 || a.failed != 5 || len(a.first) != 5 || len(a.whole) != 5 || a.fault == nil {
		t.Errorf("%d sent, %d failed, %d and %d timings: %v", a.sent, a.failed, len(a.first), len(a.whole), a.fault)
	}
	if seen["good"] != 5 || seen["bad"] != 5 {
		t.Errorf("requests went to %v", seen)
	}
	if err := a.err(t.Context(), "x"); err != nil {
		t.Errorf("some answers are enough, but: %v", err)
	}
	bad := c.load(t.Context(), urls[1:], func(i int) []byte { return chat(i, 200) }, 1000, 3*time.Millisecond)
	if err := bad.err(t.Context(), "the router"); err == nil || !strings.Contains(err.Error(), "the router answered no request: 502") {
		t.Errorf("no answer at all gives %v", err)
	}
}

func TestChatsShareTheirBeginning(t *testing.T) {
	content := func(body []byte) (out []string) {
		var c struct {
			Stream   bool
			Messages []struct{ Content string }
		}
		if err := json.Unmarshal(body, &c); err != nil || !c.Stream {
			t.Fatalf("%v: %s", err, body)
		}
		for _, m := range c.Messages {
			out = append(out, m.Content)
		}
		return out
	}
	a, b, other := content(chat(1, 2048)), content(chat(1+systems, 2048)), content(chat(2, 2048))
	if a[0] != b[0] || a[1] == b[1] {
		t.Error("two requests of one system prompt do not share it, or share all")
	}
	if a[0][:16] == other[0][:16] {
		t.Error("two system prompts begin alike")
	}
	if n := len(a[0]) + len(a[1]); n != 2048 {
		t.Errorf("%d bytes of text", n)
	}
}

func TestOverheadIsTheDifferenceOfTheSameRun(t *testing.T) {
	var out bytes.Buffer
	base := &arm{name: direct, answers: []answers{{first: []float64{10, 20, 30}}, {first: []float64{100, 200, 300}}}}
	routed := &arm{name: "gateway", goal: true, answers: []answers{{first: []float64{11, 25, 39}}, {first: []float64{150, 207, 310}}}}
	reportOverhead(bench.NewReport(&out), base, routed)
	var rows []bench.Result
	for decoder := json.NewDecoder(&out); decoder.More(); {
		var row bench.Result
		if err := decoder.Decode(&row); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	if len(rows) != 2 || rows[0].Low != 5 || rows[0].High != 7 || rows[0].Limit != mostAddedP50 || rows[1].Low != 9 || rows[1].Limit != mostAddedP99 {
		t.Errorf("rows %+v", rows)
	}
}

func TestChildrenTellWhatTheySaid(t *testing.T) {
	_, err := startChild(t.Context(), "http://127.0.0.1:1/", "sh", "-c", "echo 'no such flag' >&2; exit 2")
	if err == nil || !strings.Contains(err.Error(), "no such flag") || !strings.Contains(err.Error(), "it ended") {
		t.Errorf("startChild() = %v", err)
	}
	if _, err := startChild(t.Context(), "http://127.0.0.1:1/", "/none/such"); err == nil {
		t.Error("a program that is not there was started")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := startChild(ctx, "http://127.0.0.1:1/", "cat"); err == nil {
		t.Error("waiting did not end with its context")
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var said tail
	_, _ = said.Write(bytes.Repeat([]byte("a"), tailBytes))
	_, _ = said.Write([]byte("end"))
	if got := said.String(); len(got) != tailBytes || !strings.HasSuffix(got, "aend") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

func TestIdleEnginesAnswer(t *testing.T) {
	urls, stop, err := idleEngines(3)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if len(urls) != 3 || slices.Contains(urls[1:], urls[0]) {
		t.Errorf("urls %v", urls)
	}
	for _, url := range urls {
		if !answersOK(t.Context(), client, url+"/health") || answersOK(t.Context(), client, url+"/sleep") {
			t.Errorf("%s is no idle engine", url)
		}
	}
}

func TestQualityHasRowsForReuseLoadAndLatency(t *testing.T) {
	for name, tc := range map[string]struct {
		reuse bool
		want  int
	}{"with reuse": {true, 4}, "without": {false, 3}} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			result := quality.Result{ReusedOfOracle: 0.98}
			result.Router.FirstTokenMean, result.LeastLoad.FirstTokenMean, result.RoundRobin.FirstTokenMean = 106, 100, 212
			result.Router.MaxMeanLoad = 1.1
			reportQuality(bench.NewReport(&out), quality.Workload{Name: "w", Reuse: tc.reuse}, []quality.Result{result})
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(lines) != tc.want {
				t.Fatalf("%d rows, want %d: %s", len(lines), tc.want, out.String())
			}
			for i, line := range lines {
				if late := i >= len(lines)-2; strings.Contains(line, `"ok":true`) == late {
					t.Errorf("a mean of 1.06 times least load's alone is too much: %s", line)
				}
			}
		})
	}
}

func TestPeersThatAreNotThereAreLeftOut(t *testing.T) {
	folder := t.TempDir()
	place := filepath.Join(folder, "smg", "bin")
	if err := os.MkdirAll(place, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(folder, "smg", "installed"): "1.2.3 smg==1.2.3\n",
		filepath.Join(place, "smg"):               "#!/bin/sh\necho broken wheel >&2\nexit 1\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	arms, err := startPeers(t.Context(), bench.NewReport(&out), Options{Peers: folder}, &rig{children: map[string]*child{}})
	if err != nil || len(arms) != 0 {
		t.Fatalf("%d arms, %v", len(arms), err)
	}
	for _, want := range []string{`"peer":"smg","version":"1.2.3"`, "broken wheel", "not installed in " + folder} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %s", want, out.String())
		}
	}
	if arms, err := startPeers(t.Context(), nil, Options{}, nil); err != nil || arms != nil {
		t.Errorf("without a folder: %v, %v", arms, err)
	}
}
