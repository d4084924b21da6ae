// SPDX-License-Identifier: Apache-2.0

// Package chatform reads bodies of /v1/responses and /v1/messages as the chat
// messages that engines make of them, so that their prompts can be tokenized
// like those of chat completions.
package chatform

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// Form is the form of a body.
type Form uint8

// Forms. None is a body that is no other form of a chat.
const (
	None Form = iota
	Responses
	Messages
)

// Request gathers what decides the prompt of one body.
type Request struct {
	Form Form

	system, turns, tools []byte
	// stored is set when a part of the prompt is kept by the engine.
	stored bool
}

// Add takes a member of the body; the last of repeated members counts. The
// request keeps value.
func (r *Request) Add(key, value []byte) {
	if bytes.Equal(value, []byte("null")) {
		value = nil
	}
	name := string(key)
	switch {
	case name == "tools":
		r.tools = value
	case r.Form == Responses && name == "instructions", r.Form == Messages && name == "system":
		r.system = value
	case r.Form == Responses && name == "input", r.Form == Messages && name == "messages":
		r.turns = value
	case r.Form == Responses && (name == "previous_response_id" || name == "conversation" || name == "prompt"):
		r.stored = r.stored || value != nil
	}
}

// errOther means that a part has a form that is not read here.
var errOther = errors.New("form of a chat that is not known")

// Chat returns the members messages and tools of the chat completion with the
// same prompt; tools is nil without tools. False means that only the engine
// knows the prompt.
func (r *Request) Chat() (messages, tools []byte, ok bool) {
	if r.stored || len(r.turns) == 0 {
		return nil, nil, false
	}
	c := &chat{}
	var err error
	if r.Form == Messages {
		err = c.addMessages(r.system, r.turns)
	} else {
		err = c.addResponses(r.system, r.turns)
	}
	if err != nil || len(c.messages) == 0 {
		return nil, nil, false
	}
	if tools, err = r.chatTools(); err != nil {
		return nil, nil, false
	}
	messages, err = json.Marshal(c.messages)
	return messages, tools, err == nil
}

// Text returns the prompt as one JSON array that grows as the chat does.
func (r *Request) Text() []byte {
	text := make([]byte, 0, len(r.system)+len(r.turns)+3)
	text = append(text, '[')
	if len(r.system) > 0 {
		text = append(append(text, r.system...), ',')
	}
	if len(r.turns) > 0 && r.turns[0] == '[' {
		return append(text, r.turns[1:]...)
	}
	return append(append(text, r.turns...), ']')
}

// message is one of a chat completion.
type message struct {
	Role       string     `json:"role"`
	Content    any        `json:"content,omitempty"` // string or []part
	ToolCalls  []toolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type part struct {
	Type     string    `json:"type"`
	Text     string    `json:"text,omitempty"`
	ImageURL *imageURL `json:"image_url,omitempty"`
}

type imageURL struct {
	URL string `json:"url"`
}

type toolCall struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name        string          `json:"name"`
	Arguments   string          `json:"arguments,omitempty"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
}

// chat collects messages.
type chat struct{ messages []message }

func (c *chat) add(m message) { c.messages = append(c.messages, m) }

// text reads a JSON string.
func text(raw []byte) (string, bool) { return jsonscan.String(raw) }

// chatTools turns tools into those of a chat completion; all must be functions.
func (r *Request) chatTools() ([]byte, error) {
	if len(r.tools) == 0 {
		return nil, nil
	}
	var tools []struct {
		Type        string          `json:"type"`
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
		InputSchema json.RawMessage `json:"input_schema"`
		Strict      *bool           `json:"strict"`
	}
	if err := json.Unmarshal(r.tools, &tools); err != nil {
		return nil, errOther
	}
	if len(tools) == 0 {
		return nil, nil
	}
	type tool struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}
	out := make([]tool, len(tools))
	for i, t := range tools {
		f := function{Name: t.Name, Description: t.Description, Parameters: t.Parameters, Strict: t.Strict}
		if r.Form == Messages {
			f.Parameters, f.Strict = t.InputSchema, nil
		}
		functionTool := t.Type == "function" || r.Form == Messages && (t.Type == "" || t.Type == "custom")
		if !functionTool || t.Name == "" {
			return nil, errOther
		}
		out[i] = tool{Type: "function", Function: f}
	}
	return json.Marshal(out)
}
