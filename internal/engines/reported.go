// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
)

// ReportedLoad is the load of an engine in its own words.
type ReportedLoad struct {
	// WaitingTokens are uncached prompt tokens of requests that wait.
	WaitingTokens int64
	// Usage of KV blocks, from 0 to 1.
	Usage float64
}

// ErrNoSuchRank: the answer says nothing about the rank asked for.
var ErrNoSuchRank = errors.New("no load of this rank")

// Loads asks an SGLang engine for its load, that of one rank or, if rank is
// nil, of all together: tokens add up, the fullest rank counts. Engines before
// 0.5 answer 404, a *StatusError.
func Loads(ctx context.Context, client *http.Client, baseURL string, rank *int) (ReportedLoad, error) {
	base, err := url.Parse(baseURL)
	if err != nil {
		return ReportedLoad{}, fmt.Errorf("engine URL: %w", err)
	}
	target := base.JoinPath("/v1/loads").String() + "?include=core"
	body, err := get(ctx, client, target, "application/json")
	if err != nil {
		return ReportedLoad{}, err
	}
	defer body.Close()
	data, err := io.ReadAll(&limitedReader{r: body, left: maxJSONBytes})
	if err != nil {
		return ReportedLoad{}, fmt.Errorf("GET %s: %w", target, err)
	}
	load, err := decodeLoads(data, rank)
	if err != nil {
		return load, fmt.Errorf("GET %s: %w", target, err)
	}
	return load, nil
}

func decodeLoads(data []byte, rank *int) (ReportedLoad, error) {
	var answer struct {
		Loads []struct {
			Rank          int     `json:"dp_rank"`
			WaitingTokens float64 `json:"num_waiting_uncached_tokens"`
			Usage         float64 `json:"token_usage"`
		} `json:"loads"`
	}
	if json.Unmarshal(data, &answer) != nil {
		return ReportedLoad{}, errors.New("not the JSON of loads")
	}
	var sum ReportedLoad
	found := false
	for _, load := range answer.Loads {
		if rank != nil && load.Rank != *rank {
			continue
		}
		found = true
		sum.WaitingTokens += int64(min(max(load.WaitingTokens, 0), math.MaxInt32))
		sum.Usage = max(sum.Usage, unit(load.Usage))
	}
	if !found {
		return ReportedLoad{}, ErrNoSuchRank
	}
	return sum, nil
}

// Asleep says whether a vLLM engine sleeps: it then answers health checks, but
// has given up its memory. known is false for engines that do not tell.
func (f Families) Asleep() (asleep, known bool) {
	for _, m := range f["vllm:engine_sleep_state"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() != "sleep_state" {
				continue
			}
			known = true
			awake := l.GetValue() == "awake"
			if on := scalar(m) > 0; on != awake {
				asleep = asleep || awake || on
			}
		}
	}
	return asleep, known
}
