// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/commandline"
)

const kvEventsFlag = "--kv-events-config"

// sockets is where the publisher finds the events of rank 0.
type sockets struct {
	port, replayPort int32
	topic            string
	// bind means that the engine connects.
	bind bool
}

// declaredSockets are those that the backend says the engine has. Without a
// topic every one is wanted.
func declaredSockets(declared *v1alpha1.KVEventsSpec) sockets {
	e := effectiveEvents(declared)
	s := sockets{port: *e.Port, replayPort: *e.ReplayPort, bind: e.Transport == v1alpha1.TransportLoopback}
	if declared != nil && declared.Topic != nil {
		s.topic = *declared.Topic
	}
	return s
}

// flag is the value of --kv-events-config for these sockets.
func (s sockets) flag(scheme string) (string, error) {
	host := "*"
	if s.bind {
		host = "127.0.0.1"
	}
	c := struct {
		Enable    bool   `json:"enable_kv_cache_events,omitempty"`
		Publisher string `json:"publisher"`
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint,omitempty"`
		Topic     string `json:"topic"`
	}{Enable: scheme != "sglang", Publisher: "zmq", Endpoint: fmt.Sprintf("tcp://%s:%d", host, s.port), Topic: s.topic}
	if s.replayPort != 0 {
		c.Replay = fmt.Sprintf("tcp://%s:%d", host, s.replayPort)
	}
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(c); err != nil {
		return "", fmt.Errorf("encode %s: %w", kvEventsFlag, err)
	}
	return strings.TrimSuffix(text.String(), "\n"), nil
}

// configureEvents reads the engine's own flag, or adds one where the backend
// wants that. It returns where the events are and a warning, "" for none.
func configureEvents(e engine, spec *v1alpha1.KVEventsSpec) (s sockets, warning string, err error) {
	s = declaredSockets(spec)
	if e.Opaque {
		return s, "", nil
	}
	if e.HasPrefix(kvEventsFlag + ".") {
		return s, WarnKVEventsConfigUnreadable, nil
	}
	own, mentions := e.Values(kvEventsFlag), e.Count(kvEventsFlag)
	switch {
	case mentions > 1 || mentions > len(own):
		return s, WarnKVEventsConfigUnreadable, nil
	case len(own) == 1:
		s, warning = readSockets(own[0], e.facts.HashScheme, s)
		return s, warning, nil
	case spec == nil || !spec.Inject:
		return s, WarnKVEventsConfigMissing, nil
	}
	if spec.Topic == nil {
		s.topic = adapter.DefaultTopic
	}
	value, err := s.flag(e.facts.HashScheme)
	if err != nil {
		return s, "", err
	}
	e.container.Args = append(e.container.Args, kvEventsFlag, commandline.Escape(value))
	return s, "", nil
}

// readSockets reads an engine's own configuration; what it leaves out has the
// engine's defaults.
func readSockets(text, scheme string, fallback sockets) (sockets, string) {
	c, err := readEngineEvents(text)
	if err != nil {
		return fallback, WarnKVEventsConfigUnreadable
	}
	s, ok := sockets{port: adapter.DefaultEventPort, topic: c.Topic}, true
	if c.Endpoint != nil {
		if s.port, s.bind, ok = parseEndpoint(*c.Endpoint, scheme); !ok {
			return fallback, WarnKVEventsConfigUnreadable
		}
	}
	if c.Replay != nil && *c.Replay != "" {
		if s.replayPort, _, ok = parseEndpoint(*c.Replay, scheme); !ok {
			return fallback, WarnKVEventsConfigUnreadable
		}
	}
	// vLLM has a switch, and zmq where no publisher is named; SGLang has no
	// switch, and none.
	on := c.Publisher != nil && *c.Publisher == "zmq"
	if scheme != "sglang" {
		on = c.Enable && (c.Publisher == nil || on)
	}
	if !on {
		return s, WarnKVEventsDisabled
	}
	return s, ""
}

// engineEvents is an engine's own configuration, as far as it matters here.
type engineEvents struct {
	Enable                      bool
	Publisher, Endpoint, Replay *string
	Topic                       string
}

// readEngineEvents takes member names as they are written: the engines know no
// others, while encoding/json would match them in any case.
func readEngineEvents(text string) (c engineEvents, err error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &members); err != nil {
		return c, err
	}
	for name, target := range map[string]any{
		"enable_kv_cache_events": &c.Enable, "publisher": &c.Publisher, "endpoint": &c.Endpoint,
		"replay_endpoint": &c.Replay, "topic": &c.Topic,
	} {
		if value, ok := members[name]; ok {
			err = errors.Join(err, json.Unmarshal(value, target))
		}
	}
	return c, err
}

// parseEndpoint reads an address of this pod. The engine listens where there
// is a wildcard and connects to other addresses; 0.0.0.0 is a wildcard to
// SGLang only. One that listens on the loopback of IPv6 alone is out of the
// publisher's reach.
func parseEndpoint(endpoint, scheme string) (port int32, connects, ok bool) {
	address, tcp := strings.CutPrefix(endpoint, "tcp://")
	colon := strings.LastIndexByte(address, ':')
	if !tcp || colon < 0 {
		return 0, false, false
	}
	number, err := strconv.Atoi(address[colon+1:])
	if err != nil || number < 1 || number > 65535 {
		return 0, false, false
	}
	host := strings.Trim(address[:colon], "[]")
	ip := net.ParseIP(host)
	switch {
	case ip != nil && strings.Contains(host, ":") && ip.IsLoopback():
		return 0, false, false
	case host == "*" || ip != nil && strings.Contains(host, "::") && ip.IsUnspecified() || scheme == "sglang" && host == "0.0.0.0":
		return int32(number), false, true
	case host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified()):
		return int32(number), true, true
	}
	return 0, false, false
}
