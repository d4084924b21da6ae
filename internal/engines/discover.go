// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	maxModels     = 1024
	maxModelBytes = 512
	maxRanks      = 1024
)

// Model is one name an engine serves.
type Model struct {
	ID string
	// Parent is the base model of an adapter, else empty.
	Parent string
}

// EventSource is the KV event socket of one data-parallel rank.
type EventSource struct {
	Rank int
	// Endpoint and Replay (empty if there is none) can be dialled.
	Endpoint, Replay string
	Topic            string
}

// Discovery is what an engine tells about itself over HTTP.
type Discovery struct {
	Models []Model
	// BlockSize is in tokens; 0 is unknown.
	BlockSize int
	// Sources is empty if the engine does not tell.
	Sources []EventSource
	// LoRA is true when the engine is known to serve adapters.
	LoRA bool
}

// BaseModel returns the first name that is no adapter, "" if there is none.
func (d Discovery) BaseModel() string {
	for _, m := range d.Models {
		if m.Parent == "" {
			return m.ID
		}
	}
	return ""
}

// Discover asks the engine at baseURL (scheme, host and port). Only its list
// of models is required; the rest is filled as far as the engine tells.
func Discover(ctx context.Context, client *http.Client, baseURL, runtime string) (Discovery, error) {
	base, err := url.Parse(baseURL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return Discovery{}, fmt.Errorf("engine URL %.200q: http://host:port expected", baseURL)
	}
	var d Discovery
	if d.Models, err = models(ctx, client, base); err != nil {
		return Discovery{}, err
	}
	profile, _ := ProfileOf(runtime)
	switch profile.Runtime {
	case SGLang:
		d.askSGLang(ctx, client, base)
	case VLLM:
		d.askVLLM(ctx, client, base, profile)
	}
	for _, m := range d.Models {
		d.LoRA = d.LoRA || m.Parent != ""
	}
	return d, nil
}

func models(ctx context.Context, client *http.Client, base *url.URL) ([]Model, error) {
	var answer struct {
		Data []struct {
			ID     string  `json:"id"`
			Parent *string `json:"parent"`
		} `json:"data"`
	}
	if err := getJSON(ctx, client, base, "/v1/models", &answer); err != nil {
		return nil, err
	}
	var out []Model
	for _, m := range answer.Data {
		if m.ID == "" || len(m.ID) > maxModelBytes || len(out) == maxModels {
			continue
		}
		model := Model{ID: m.ID}
		if m.Parent != nil && len(*m.Parent) <= maxModelBytes {
			model.Parent = *m.Parent
		}
		out = append(out, model)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s lists no model", base.JoinPath("/v1/models"))
	}
	return out, nil
}

// askVLLM reads the block size from the metrics and, of recent versions, the
// event sockets.
func (d *Discovery) askVLLM(ctx context.Context, client *http.Client, base *url.URL, p Profile) {
	if families, err := Scrape(ctx, client, base.JoinPath(p.MetricsPath).String()); err == nil {
		d.BlockSize = families.blockSize("vllm:cache_config_info")
	}
	var sources eventSources
	if getJSON(ctx, client, base, "/kv_event_sources", &sources) != nil || len(sources) > maxRanks {
		return
	}
	for _, s := range sources {
		endpoint, ok := reachable(s.Endpoint, base)
		if !ok || s.Rank < 0 || s.Rank >= maxRanks {
			continue
		}
		source := EventSource{Rank: s.Rank, Endpoint: endpoint}
		if s.Replay != nil {
			source.Replay, _ = reachable(*s.Replay, base)
		}
		if s.Topic != nil {
			source.Topic = *s.Topic
		}
		d.Sources = append(d.Sources, source)
	}
}

// eventSources is a vLLM engine's answer, in either of its forms: a list
// whose members name their rank, or an object keyed by rank.
type eventSources []eventSource

type eventSource struct {
	Rank     int     `json:"data_parallel_rank"`
	Endpoint string  `json:"endpoint"`
	Replay   *string `json:"replay_endpoint"`
	Topic    *string `json:"topic"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *eventSources) UnmarshalJSON(data []byte) error {
	var byRank map[int]eventSource
	if data[0] != '{' {
		return json.Unmarshal(data, (*[]eventSource)(s))
	}
	if err := json.Unmarshal(data, &byRank); err != nil {
		return err
	}
	for _, rank := range slices.Sorted(maps.Keys(byRank)) {
		source := byRank[rank]
		source.Rank = rank
		*s = append(*s, source)
	}
	return nil
}

// blockSize reads the label block_size of an information metric.
func (f Families) blockSize(name string) int {
	for _, m := range f[name].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() != "block_size" {
				continue
			}
			if n, err := strconv.Atoi(l.GetValue()); err == nil && n > 0 {
				return n
			}
		}
	}
	return 0
}

func (d *Discovery) askSGLang(ctx context.Context, client *http.Client, base *url.URL) {
	var info struct {
		PageSize   int  `json:"page_size"`
		EnableLoRA bool `json:"enable_lora"`
		KVEvents   *struct {
			Host      string `json:"endpoint_host"`
			PortBase  int    `json:"endpoint_port_base"`
			Topic     string `json:"topic"`
			BlockSize int    `json:"block_size"`
			DPSize    int    `json:"dp_size"`
		} `json:"kv_events"`
	}
	if getJSON(ctx, client, base, "/server_info", &info) != nil {
		return
	}
	d.LoRA = info.EnableLoRA
	d.BlockSize = max(info.PageSize, 0)
	events := info.KVEvents
	if events == nil {
		return
	}
	if events.BlockSize > 0 {
		d.BlockSize = events.BlockSize
	}
	for rank := range min(max(events.DPSize, 1), maxRanks) {
		port := events.PortBase + rank
		endpoint, ok := reachable("tcp://"+net.JoinHostPort(events.Host, strconv.Itoa(port)), base)
		if !ok || events.PortBase <= 0 || port > 65535 {
			return
		}
		d.Sources = append(d.Sources, EventSource{Rank: rank, Endpoint: endpoint, Topic: events.Topic})
	}
}

// reachable returns an announced endpoint as it can be dialled: a wildcard
// stands for the host of the engine's HTTP API. An engine cannot name any
// other host, or it could make us connect wherever it likes.
func reachable(endpoint string, base *url.URL) (string, bool) {
	hostPort, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", false
	}
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return "", false
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", false
	}
	switch host {
	case "*", "", "0.0.0.0", "::", base.Hostname():
		return "tcp://" + net.JoinHostPort(base.Hostname(), port), true
	default:
		return "", false
	}
}

func getJSON(ctx context.Context, client *http.Client, base *url.URL, path string, v any) error {
	target := base.JoinPath(path).String()
	body, err := get(ctx, client, target, "application/json")
	if err != nil {
		return err
	}
	defer body.Close()
	data, err := io.ReadAll(&limitedReader{r: body, left: maxJSONBytes})
	if err != nil {
		return fmt.Errorf("GET %s: %w", target, err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			return fmt.Errorf("GET %s: no valid JSON at byte %d", target, syntax.Offset)
		case errors.As(err, &kind):
			return fmt.Errorf("GET %s: field %.100q: %s expected", target, kind.Field, kind.Type)
		}
		return fmt.Errorf("GET %s: no valid JSON", target)
	}
	return nil
}
