// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
)

type responsesRequest struct {
	sampling
	Input              json.RawMessage `json:"input"`
	Instructions       *string         `json:"instructions"`
	MaxOutputTokens    *int            `json:"max_output_tokens"`
	PreviousResponseID *string         `json:"previous_response_id"`
	Tools              []responsesTool `json:"tools"`
}

type responsesTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

// tokens renders the request like the chat completion it stands for.
func (r *responsesRequest) tokens() ([]uint32, error) {
	if r.PreviousResponseID != nil {
		return nil, notFound("Response with id '" + *r.PreviousResponseID + "' not found.")
	}
	var messages []tinymodel.Message
	if r.Instructions != nil {
		messages = append(messages, tinymodel.Message{Role: "system", Content: *r.Instructions})
	}
	var prompt string
	if json.Unmarshal(r.Input, &prompt) == nil && len(r.Input) > 0 {
		messages = append(messages, tinymodel.Message{Role: "user", Content: prompt})
	} else {
		items, err := responsesItems(r.Input)
		if err != nil {
			return nil, err
		}
		messages = append(messages, items...)
	}
	tools, err := chatTools(r.Tools)
	if err != nil {
		return nil, err
	}
	return tinymodel.Chat(messages, tools, true), nil
}

func responsesItems(raw json.RawMessage) ([]tinymodel.Message, error) {
	var items []struct {
		Type, Role, Name, Arguments string
		CallID                      string          `json:"call_id"`
		Content                     json.RawMessage `json:"content"`
		Output                      string          `json:"output"`
	}
	if json.Unmarshal(raw, &items) != nil || len(items) == 0 {
		return nil, badRequest("input", "input: a string or a list of items is expected")
	}
	var messages []tinymodel.Message
	var calls []call
	flush := func() {
		if len(calls) > 0 {
			raw, _ := json.Marshal(calls) // strings always encode
			messages = append(messages, tinymodel.Message{Role: "assistant", ToolCalls: raw})
			calls = nil
		}
	}
	for _, item := range items {
		if item.Type == "function_call" {
			calls = append(calls, newCall(item.CallID, item.Name, item.Arguments))
			continue
		}
		flush()
		switch item.Type {
		case "", "message":
			content, err := textOf(item.Content, "", "input_text", "output_text", "text")
			if err != nil {
				return nil, badRequest("input", "input: this model takes text only")
			}
			messages = append(messages, tinymodel.Message{Role: item.Role, Content: content})
		case "function_call_output":
			messages = append(messages, tinymodel.Message{Role: "tool", Content: item.Output})
		default:
			return nil, badRequest("input", "input: items of this type are not taken")
		}
	}
	flush()
	return messages, nil
}

// chatTools turns tools into those of a chat completion.
func chatTools(tools []responsesTool) (json.RawMessage, error) {
	if len(tools) == 0 {
		return nil, nil
	}
	type function struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
	}
	out := make([]struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}, len(tools))
	for i, tool := range tools {
		if tool.Type != "function" {
			return nil, badRequest("tools", "tools: only functions are taken")
		}
		out[i].Type, out[i].Function = "function", function{tool.Name, tool.Description, tool.Parameters}
	}
	return json.Marshal(out)
}

func (h *Handler) responses(w http.ResponseWriter, r *http.Request) {
	h.open.Add(1)
	defer h.open.Add(-1)
	var request responsesRequest
	if err := readJSON(r, &request); err != nil {
		writeError(w, err)
		return
	}
	tokens, err := request.tokens()
	if err != nil {
		writeError(w, err)
		return
	}
	request.MaxCompletionTokens = request.MaxOutputTokens
	s, ok := h.startSequence(w, r, request.sampling, tokens, withPrefix("resp_", requestID(r)))
	if !ok {
		return
	}
	defer s.close()
	if request.Stream {
		s.streamResponse(r)
		return
	}
	if err := s.run(r, func(string) error { return nil }); err != nil {
		s.fail(r, false, err)
		return
	}
	writeJSON(w, s.response())
}

// response is the object in its present state.
func (s *sequence) response() map[string]any {
	status, incomplete, output := "in_progress", any(nil), []any{}
	var used any
	if s.finish != sched.Running {
		status = "completed"
		if s.finish != sched.Stop {
			status, incomplete = "incomplete", map[string]string{"reason": "max_output_tokens"}
		}
		output = append(output, s.responseItem("completed"))
		used = s.responseUsage()
	}
	return map[string]any{
		"id": s.id, "object": "response", "created_at": s.created, "status": status, "incomplete_details": incomplete,
		"model": s.sampling.Model, "output": output, "parallel_tool_calls": true, "tool_choice": "auto", "tools": []any{},
		"usage": used,
	}
}

func (s *sequence) responseUsage() map[string]any {
	details := map[string]int{"cached_tokens": 0}
	if s.usage.Details != nil {
		details["cached_tokens"] = s.usage.Details.CachedTokens
	}
	return map[string]any{
		"input_tokens": s.usage.PromptTokens, "input_tokens_details": details,
		"output_tokens": s.usage.CompletionTokens, "output_tokens_details": map[string]int{"reasoning_tokens": 0},
		"total_tokens": s.usage.TotalTokens,
	}
}

func (s *sequence) responseItem(status string) map[string]any {
	content := []any{}
	if status == "completed" {
		content = append(content, s.responsePart())
	}
	return map[string]any{
		"id": "msg_" + strings.TrimPrefix(s.id, "resp_"), "type": "message", "role": "assistant", "status": status, "content": content,
	}
}

func (s *sequence) responsePart() map[string]any {
	return map[string]any{"type": "output_text", "text": s.answerText(), "annotations": []any{}}
}

// streamResponse sends the events of a response; they end without [DONE].
func (s *sequence) streamResponse(r *http.Request) {
	s.begin(r)
	send := func(name string, data map[string]any) error {
		data["sequence_number"] = s.sent
		return s.event(name, data)
	}
	place := func(more map[string]any) map[string]any {
		more["item_id"], more["output_index"], more["content_index"] = "msg_"+strings.TrimPrefix(s.id, "resp_"), 0, 0
		return more
	}
	_ = send("response.created", map[string]any{"response": s.response()})
	_ = send("response.in_progress", map[string]any{"response": s.response()})
	_ = send("response.output_item.added", map[string]any{"output_index": 0, "item": s.responseItem("in_progress")})
	_ = send("response.content_part.added", place(map[string]any{"part": s.responsePart()}))
	err := s.run(r, func(text string) error {
		return send("response.output_text.delta", place(map[string]any{"delta": text}))
	})
	if err != nil {
		s.fail(r, true, err)
		return
	}
	_ = send("response.output_text.done", place(map[string]any{"text": s.answerText()}))
	_ = send("response.content_part.done", place(map[string]any{"part": s.responsePart()}))
	_ = send("response.output_item.done", map[string]any{"output_index": 0, "item": s.responseItem("completed")})
	_ = send("response.completed", map[string]any{"response": s.response()})
}
