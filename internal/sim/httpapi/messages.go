// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
)

type messagesRequest struct {
	sampling
	System   json.RawMessage `json:"system"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		InputSchema json.RawMessage `json:"input_schema"`
	} `json:"tools"`
}

// tokens renders the request like the chat completion it stands for.
func (r *messagesRequest) tokens() ([]uint32, error) {
	if r.MaxTokens == nil {
		return nil, badRequest("max_tokens", "max_tokens: a number is expected")
	}
	if len(r.Messages) == 0 {
		return nil, badRequest("messages", "messages: at least one message is expected")
	}
	var messages []tinymodel.Message
	if len(r.System) > 0 && string(r.System) != "null" {
		system, err := textOf(r.System, "", "text")
		if err != nil {
			return nil, badRequest("system", "system: a string or blocks of text are expected")
		}
		messages = append(messages, tinymodel.Message{Role: "system", Content: system})
	}
	for _, message := range r.Messages {
		turns, err := messageTurns(message.Role, message.Content)
		if err != nil {
			return nil, err
		}
		messages = append(messages, turns...)
	}
	tools := make([]responsesTool, len(r.Tools))
	for i, tool := range r.Tools {
		tools[i] = responsesTool{Type: "function", Name: tool.Name, Description: tool.Description, Parameters: tool.InputSchema}
	}
	chat, err := chatTools(tools)
	if err != nil {
		return nil, err
	}
	return tinymodel.Chat(messages, chat, true), nil
}

// messageTurns returns the results of tools in a message, then the rest of it.
func messageTurns(role string, content json.RawMessage) ([]tinymodel.Message, error) {
	var whole string
	if json.Unmarshal(content, &whole) == nil {
		return []tinymodel.Message{{Role: role, Content: whole}}, nil
	}
	var blocks []struct {
		Type, Text, ID, Name string
		Input                json.RawMessage `json:"input"`
		Content              json.RawMessage `json:"content"`
	}
	if json.Unmarshal(content, &blocks) != nil {
		return nil, badRequest("messages", "content: a string or a list of blocks is expected")
	}
	var turns []tinymodel.Message
	var calls []call
	text, texts := "", 0
	for _, block := range blocks {
		switch block.Type {
		case "text":
			text += block.Text
			texts++
		case "tool_use":
			calls = append(calls, newCall(block.ID, block.Name, dumps(block.Input)))
		case "tool_result":
			result := ""
			if len(block.Content) > 0 {
				var err error
				if result, err = textOf(block.Content, "\n", "text"); err != nil {
					return nil, badRequest("messages", "content: this model takes text only")
				}
			}
			turns = append(turns, tinymodel.Message{Role: "tool", Content: result})
		default:
			return nil, badRequest("messages", "content: this model takes text only")
		}
	}
	if texts == 0 && len(calls) == 0 {
		return turns, nil
	}
	own := tinymodel.Message{Role: role, Content: text}
	if len(calls) > 0 {
		own.ToolCalls, _ = json.Marshal(calls) // strings always encode
	}
	return append(turns, own), nil
}

func (h *Handler) messages(w http.ResponseWriter, r *http.Request) {
	h.open.Add(1)
	defer h.open.Add(-1)
	var request messagesRequest
	if err := readJSON(r, &request); err != nil {
		writeError(w, err)
		return
	}
	tokens, err := request.tokens()
	if err != nil {
		writeError(w, err)
		return
	}
	s, ok := h.startSequence(w, r, request.sampling, tokens, withPrefix("msg_", requestID(r)))
	if !ok {
		return
	}
	defer s.close()
	if request.Stream {
		s.streamMessage(r)
		return
	}
	if err := s.run(r, func(string) error { return nil }); err != nil {
		s.fail(r, false, err)
		return
	}
	message := s.message()
	message["content"] = []any{map[string]string{"type": "text", "text": s.answerText()}}
	writeJSON(w, message)
}

// stopReason is null while the sequence runs.
func (s *sequence) stopReason() any {
	switch s.finish {
	case sched.Running:
		return nil
	case sched.Stop:
		return "end_turn"
	default:
		return "max_tokens"
	}
}

func (s *sequence) message() map[string]any {
	return map[string]any{
		"id": s.id, "type": "message", "role": "assistant", "model": s.sampling.Model, "content": []any{},
		"stop_reason": s.stopReason(), "stop_sequence": nil, "usage": s.messageUsage(),
	}
}

func (s *sequence) messageUsage() map[string]any {
	usage := map[string]any{"input_tokens": s.usage.PromptTokens, "output_tokens": s.usage.CompletionTokens}
	if s.usage.Details != nil {
		usage["cache_read_input_tokens"] = s.usage.Details.CachedTokens
	}
	return usage
}

// streamMessage sends the events of a message.
func (s *sequence) streamMessage(r *http.Request) {
	s.begin(r)
	_ = s.event("message_start", map[string]any{"message": s.message()})
	_ = s.event("content_block_start", map[string]any{"index": 0, "content_block": map[string]string{"type": "text", "text": ""}})
	err := s.run(r, func(text string) error {
		return s.event("content_block_delta", map[string]any{"index": 0, "delta": map[string]string{"type": "text_delta", "text": text}})
	})
	if err != nil {
		s.fail(r, true, err)
		return
	}
	_ = s.event("content_block_stop", map[string]any{"index": 0})
	_ = s.event("message_delta", map[string]any{
		"delta": map[string]any{"stop_reason": s.stopReason(), "stop_sequence": nil}, "usage": s.messageUsage(),
	})
	_ = s.event("message_stop", map[string]any{})
}
