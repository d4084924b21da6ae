// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/workload"
)

// sample is what a client saw of one request.
type sample struct {
	Failure      string // empty: answered
	FirstToken   time.Duration
	PromptTokens int
	CachedTokens int // as the engine counted
	Replica      string
	Reason       string
}

// driver sends requests and reads the engines' counters.
type driver struct {
	client *http.Client
	base   string
	model  string
}

func newDriver(base, model string) *driver {
	transport := &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}
	return &driver{client: &http.Client{Transport: transport}, base: base, model: model}
}

func (d *driver) close() { d.client.CloseIdleConnections() }

// drive sends every request at its time, whatever became of the others, and
// waits for all answers.
func (d *driver) drive(ctx context.Context, requests []workload.Request, progress func(Progress)) ([]sample, error) {
	var mu sync.Mutex // guards state
	state := Progress{Total: len(requests)}
	progress(state)
	samples := make([]sample, len(requests))
	bodies := make([][]byte, len(requests))
	for i, request := range requests {
		bodies[i] = request.Body(d.model)
	}
	limit := drainLimit
	if len(requests) > 0 {
		limit += requests[len(requests)-1].At
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var open sync.WaitGroup
	defer open.Wait()
	begin := time.Now()
	for i, request := range requests {
		if !sleepUntil(ctx, begin.Add(request.At)) {
			return nil, ctx.Err()
		}
		open.Go(func() {
			samples[i] = d.send(ctx, bodies[i], begin.Add(request.At))
			mu.Lock()
			defer mu.Unlock()
			state.Done++
			state.ReusedTokens += samples[i].CachedTokens
			state.PromptTokens += len(request.Prompt)
			progress(state)
		})
	}
	open.Wait()
	return samples, ctx.Err()
}

func sleepUntil(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// send makes one request. Times count from when it was due.
func (d *driver) send(ctx context.Context, body []byte, due time.Time) sample {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return sample{Failure: err.Error()}
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := d.client.Do(request)
	if err != nil {
		return sample{Failure: err.Error()}
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16))
		return sample{Failure: response.Status}
	}
	s := sample{
		Replica: response.Header.Get("X-Inference-Cache-Replica"),
		Reason:  response.Header.Get("X-Inference-Cache-Reason"),
	}
	if err := s.read(response.Body, due); err != nil {
		s.Failure = err.Error()
	}
	return s
}

// chunk holds what a client needs of a streamed chunk.
type chunk struct {
	Choices []struct {
		Delta struct{ Content string }
	}
	Usage *struct {
		PromptTokens int `json:"prompt_tokens"`
		Details      *struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Error *struct{ Message string }
}

// read follows the stream to its end.
func (s *sample) read(body io.Reader, due time.Time) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return nil
		}
		var c chunk
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return fmt.Errorf("read a chunk: %w", err)
		}
		if c.Error != nil {
			return fmt.Errorf("the engine failed: %s", c.Error.Message)
		}
		if s.FirstToken == 0 && len(c.Choices) > 0 && c.Choices[0].Delta.Content != "" {
			s.FirstToken = time.Since(due)
		}
		if c.Usage != nil {
			s.PromptTokens = c.Usage.PromptTokens
			if c.Usage.Details != nil {
				s.CachedTokens = c.Usage.Details.CachedTokens
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the stream: %w", err)
	}
	return fmt.Errorf("the stream ended early")
}

// counters are an engine's own figures.
type counters struct {
	hitTokens      float64
	computedTokens float64
	requests       float64
}

// scrape reads the counters of one engine.
func (d *driver) scrape(ctx context.Context, engine string) (counters, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, engine+"/metrics", nil)
	if err != nil {
		return counters{}, err
	}
	response, err := d.client.Do(request)
	if err != nil {
		return counters{}, fmt.Errorf("read engine metrics: %w", err)
	}
	defer response.Body.Close()
	var c counters
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		series, text, ok := strings.Cut(lines.Text(), " ")
		value, err := strconv.ParseFloat(text, 64)
		if !ok || err != nil {
			continue
		}
		name, labels, _ := strings.Cut(series, "{")
		switch {
		case name == "vllm:prefix_cache_hits_total":
			c.hitTokens += value
		case name == "vllm:prompt_tokens_by_source_total" && strings.Contains(labels, `source="local_compute"`):
			c.computedTokens += value
		case name == "vllm:request_success_total":
			c.requests += value
		}
	}
	if err := lines.Err(); err != nil {
		return counters{}, fmt.Errorf("read engine metrics: %w", err)
	}
	return c, nil
}
