// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/bench"
)

// requestLimit bounds one request.
const requestLimit = 30 * time.Second

// client sends streamed chats.
type client struct {
	http *http.Client
}

func newClient() *client {
	return &client{&http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}, Timeout: requestLimit,
	}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// timing is of one request, from when it was due, in microseconds.
type timing struct{ first, whole float64 }

// answers are the timings of a stretch, sorted.
type answers struct {
	first, whole []float64
	sent, failed int
	fault        error // of one that failed
	achieved     float64
}

// load sends requests at a rate for a time, whatever becomes of the others, and
// waits for all answers. The i-th request goes to urls[i % len(urls)].
func (c *client) load(ctx context.Context, urls []string, body func(i int) []byte, rate float64, d time.Duration) answers {
	n := max(int(rate*d.Seconds()), 1)
	bodies := make([][]byte, n)
	for i := range bodies {
		bodies[i] = body(i)
	}
	timings, faults := make([]timing, n), make([]error, n)
	var open sync.WaitGroup
	release := bench.Pacer()
	start := time.Now().Add(10 * time.Millisecond)
	sent := 0
	for ; sent < n && ctx.Err() == nil; sent++ {
		i, due := sent, start.Add(time.Duration(float64(sent)/rate*1e9))
		bench.WaitUntil(due)
		open.Go(func() { timings[i], faults[i] = c.send(ctx, urls[i%len(urls)], bodies[i], due) })
	}
	release()
	open.Wait()
	a := answers{sent: sent, achieved: float64(sent) / time.Since(start).Seconds()}
	for i := range sent {
		if faults[i] != nil {
			a.failed++
			a.fault = faults[i]
			continue
		}
		a.first, a.whole = append(a.first, timings[i].first), append(a.whole, timings[i].whole)
	}
	slices.Sort(a.first)
	slices.Sort(a.whole)
	return a
}

// endOfStream ends a stream that is complete.
var endOfStream = []byte("data: [DONE]")

// send makes one request and reads its stream to the end.
func (c *client) send(ctx context.Context, url string, body []byte, due time.Time) (t timing, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return t, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return t, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return t, fmt.Errorf("%s: %q", response.Status, text)
	}
	buffer, last := make([]byte, 8<<10), make([]byte, 0, 64)
	for err == nil {
		var n int
		n, err = response.Body.Read(buffer)
		if n > 0 && t.first == 0 {
			t.first = micros(time.Since(due))
		}
		last = append(last, buffer[max(n-32, 0):n]...)
		last = last[max(len(last)-32, 0):]
	}
	t.whole = micros(time.Since(due))
	if err != io.EOF {
		return t, err
	}
	if !bytes.Contains(last, endOfStream) {
		return t, fmt.Errorf("the stream ended early: %q", last)
	}
	return t, nil
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// detail adds what is of interest beside a row's value.
func (a answers) detail(to map[string]float64, prefix string) {
	for name, value := range map[string]float64{
		"first_p50_us": bench.Quantile(a.first, 0.5), "first_p99_us": bench.Quantile(a.first, 0.99),
		"whole_p50_us": bench.Quantile(a.whole, 0.5), "whole_p99_us": bench.Quantile(a.whole, 0.99),
		"requests": float64(a.sent), "failed": float64(a.failed), "achieved_per_s": a.achieved,
	} {
		to[prefix+name] = value
	}
}
