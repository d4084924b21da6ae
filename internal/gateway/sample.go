// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"encoding/json"

	"github.com/inferencecache/inference-cache/internal/chatform"
	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// askForUsage makes one streamed request in UsageSample ask for its usage,
// unless the client decides that itself. What this adds to the answer is taken
// out again by withoutUsage.
func (x *exchange) askForUsage() {
	g := x.gateway
	every := g.options.UsageSample
	if every > 1 && g.trace.Switches().Outcome {
		every = 1
	}
	if every < 1 || !x.route.generates || x.route.form != chatform.None || !x.fields.stream || x.fields.hasStreamOptions {
		return
	}
	if g.streams.Add(1)%uint64(every) != 1%uint64(every) {
		return
	}
	x.body = withMember(x.body, `"stream_options":{"include_usage":true}`)
	x.usageAdded = true
}

// withMember returns a copy of a JSON object with one more member.
func withMember(object []byte, member string) []byte {
	end := bytes.LastIndexByte(object, '}') // the gateway parsed it before
	before := bytes.TrimRight(object[:end], " \t\r\n")
	grown := make([]byte, 0, len(object)+len(member)+1)
	grown = append(grown, before...)
	if before[len(before)-1] != '{' {
		grown = append(grown, ',')
	}
	return append(append(grown, member...), object[end:]...)
}

var (
	dataField  = []byte("data:")
	emptyArray = []byte("[]")
	null       = []byte("null")
)

// withoutUsage removes from whole lines of events what askForUsage added: the
// event that only carries usage, and members that say there is none yet.
func (r *relay) withoutUsage(lines []byte) []byte {
	out := make([]byte, 0, len(lines))
	for len(lines) > 0 {
		end := bytes.IndexByte(lines, '\n') + 1
		if end == 0 {
			end = len(lines)
		}
		line := lines[:end]
		lines = lines[end:]
		if r.dropBlank && len(bytes.TrimSpace(line)) == 0 {
			r.dropBlank = false
			continue
		}
		r.dropBlank = false
		if !bytes.HasPrefix(line, dataField) || !bytes.Contains(line, usageKey) {
			out = append(out, line...)
			continue
		}
		payload := line[len(dataField):]
		kept, drop := stripUsage(payload)
		switch {
		case drop:
			r.dropBlank = true
		case kept == nil:
			out = append(out, line...)
		default:
			out = append(out, "data: "...)
			out = append(append(out, kept...), '\n')
		}
	}
	return out
}

// stripUsage rebuilds an event's object without a usage of null. It returns
// nil if there is nothing to remove; drop means that the event holds nothing
// but usage.
func stripUsage(payload []byte) (kept []byte, drop bool) {
	removed, noChoices, hasUsage := false, false, false
	kept = append(make([]byte, 0, len(payload)), '{')
	err := jsonscan.Object(payload, func(key, value []byte) error {
		switch string(key) {
		case "usage":
			if bytes.Equal(value, null) {
				removed = true
				return nil
			}
			hasUsage = true
		case "choices":
			noChoices = bytes.Equal(value, emptyArray)
		}
		name, err := json.Marshal(string(key))
		if err != nil {
			return err
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(append(append(kept, name...), ':'), value...)
		return nil
	})
	switch {
	case err != nil:
		return nil, false
	case hasUsage && noChoices:
		return nil, true
	case !removed:
		return nil, false
	default:
		return append(kept, '}'), false
	}
}
