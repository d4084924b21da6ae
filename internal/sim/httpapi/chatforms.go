// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/inferencecache/inference-cache/internal/sim/rank"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
)

// sequence is the one answer of a chat that is no chat completion.
type sequence struct {
	*generation
	writer http.ResponseWriter
	text   []uint32
	finish sched.Finish
	sent   int // events so far
}

// startSequence queues a prompt; on false the answer was an error.
func (h *Handler) startSequence(w http.ResponseWriter, r *http.Request, s sampling, prompt []uint32, id string) (*sequence, bool) {
	if err := h.injectedFailure(); err != nil {
		writeError(w, err)
		return nil, false
	}
	g := &generation{handler: h, sampling: s, prompts: [][]uint32{prompt}, id: id, created: h.options.Clock.Now().Unix()}
	if g.sampling.Model == "" {
		g.sampling.Model = h.options.Model
	}
	if err := g.submit(r); err != nil {
		g.close()
		writeError(w, err)
		return nil, false
	}
	return &sequence{generation: g, writer: w}, true
}

// run reads the whole sequence and passes each piece of text to each.
func (s *sequence) run(r *http.Request, each func(text string) error) error {
	return s.read(r, func(_ int, token rank.Token) error {
		s.text, s.finish = append(s.text, token.Token), token.Finish
		if text := tinymodel.Decode([]uint32{token.Token}, false); text != "" {
			return each(text)
		}
		return nil
	})
}

// answerText is what was generated.
func (s *sequence) answerText() string { return tinymodel.Decode(s.text, false) }

// begin opens the stream of events.
func (s *sequence) begin(r *http.Request) {
	header := s.writer.Header()
	header.Set("Content-Type", "text/event-stream; charset=utf-8")
	header.Set("Cache-Control", "no-cache")
	header.Set("X-Request-Id", requestID(r))
	s.writer.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(s.writer).Flush()
}

// event sends one named event.
func (s *sequence) event(name string, data map[string]any) error {
	data["type"] = name
	raw, err := json.Marshal(data)
	if err != nil {
		return err
	}
	s.sent++
	if _, err := s.writer.Write([]byte("event: " + name + "\ndata: " + string(raw) + "\n\n")); err != nil {
		return err
	}
	return http.NewResponseController(s.writer).Flush()
}

// fail ends a request that broke off.
func (s *sequence) fail(r *http.Request, streamed bool, err error) {
	switch {
	case r.Context().Err() != nil:
	case streamed:
		body, _ := bodyOf(unavailable(err))
		_ = s.event("error", map[string]any{"error": body})
	default:
		writeError(s.writer, unavailable(err))
	}
}

var errForm = errors.New("a form that is not taken")

// textOf reads a string, or parts of the given types whose texts are joined.
func textOf(raw json.RawMessage, separator string, types ...string) (string, error) {
	var whole string
	if json.Unmarshal(raw, &whole) == nil {
		return whole, nil
	}
	var parts []struct{ Type, Text string }
	if json.Unmarshal(raw, &parts) != nil {
		return "", errForm
	}
	texts := make([]string, len(parts))
	for i, part := range parts {
		known := false
		for _, name := range types {
			known = known || part.Type == name
		}
		if !known {
			return "", errForm
		}
		texts[i] = part.Text
	}
	return strings.Join(texts, separator), nil
}

// call is one tool call as chat templates see it.
type call struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

func newCall(id, name, arguments string) call {
	c := call{ID: id, Type: "function"}
	c.Function.Name, c.Function.Arguments = name, arguments
	return c
}

// dumps writes an object as Python's json module does.
func dumps(raw json.RawMessage) string {
	if len(raw) == 0 {
		return "{}"
	}
	var compacted bytes.Buffer
	if json.Compact(&compacted, raw) != nil {
		return string(raw)
	}
	var out strings.Builder
	quoted, escaped := false, false
	for _, c := range compacted.Bytes() {
		out.WriteByte(c)
		switch {
		case escaped:
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == ':'):
			out.WriteByte(' ')
		}
	}
	return out.String()
}
