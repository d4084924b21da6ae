// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/inferencecache/inference-cache/internal/sim/eventsock"
	"github.com/inferencecache/inference-cache/internal/sim/httpapi"
)

// engineEvents is the value of --kv-events-config of vLLM and SGLang.
type engineEvents struct {
	Enable    bool    `json:"enable_kv_cache_events"`
	Publisher *string `json:"publisher"`
	Endpoint  *string `json:"endpoint"`
	Replay    *string `json:"replay_endpoint"`
	Topic     string  `json:"topic"`
	// BufferSteps is how many batches are kept for replay.
	BufferSteps *int `json:"buffer_steps"`
	// Bounds of vLLM's own queues, which are not simulated.
	HighWaterMark *int `json:"hwm"`
	MaxQueueSize  *int `json:"max_queue_size"`
}

// applyEventsConfig replaces the flags of the event sockets by what
// --kv-events-config says, with the defaults of the engine that is simulated.
func (o *simEngineOptions) applyEventsConfig() error {
	if o.eventsConfig == "" {
		return nil
	}
	var c engineEvents
	decoder := json.NewDecoder(bytes.NewBufferString(o.eventsConfig))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return usagef("--kv-events-config: expected a JSON object with enable_kv_cache_events, publisher, endpoint, replay_endpoint, buffer_steps, hwm, max_queue_size, topic: %v", err)
	}
	if c.Publisher != nil && *c.Publisher != "zmq" && *c.Publisher != "null" {
		return usagef("--kv-events-config: publisher %q: expected zmq or null", *c.Publisher)
	}
	o.config.Events.Topic = c.Topic
	o.events, o.config.Events.Replay = "tcp://*:5557", eventsock.NoReplay
	if c.Endpoint != nil {
		o.events = *c.Endpoint
	}
	if c.Replay != nil && *c.Replay != "" {
		o.config.Events.Replay = *c.Replay
	}
	if c.BufferSteps != nil {
		o.config.Events.BufferSteps = *c.BufferSteps
	}
	sglang := o.runtime == string(httpapi.SGLang)
	o.config.Events.Connect = connects(o.events, sglang)
	on := c.Publisher != nil && *c.Publisher == "zmq"
	if !sglang {
		on = c.Enable && (c.Publisher == nil || on)
	}
	if !on {
		o.events, o.config.Events.Connect = eventsock.NoReplay, false
	}
	return nil
}

// connects says whether an engine connects its event socket to an endpoint: it
// binds wildcards and what is no network, and SGLang binds 0.0.0.0 too.
func connects(endpoint string, sglang bool) bool {
	binds := strings.Contains(endpoint, "*") || strings.Contains(endpoint, "::") ||
		strings.HasPrefix(endpoint, "ipc://") || strings.HasPrefix(endpoint, "inproc://") ||
		sglang && strings.HasPrefix(endpoint, "tcp://0.0.0.0:")
	return !binds
}
