// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// Request is the part of a chat request that a template sees, as raw members;
// nil is absent.
type Request struct {
	Messages, Tools, Documents, TemplateArguments, ReasoningEffort, AddGenerationPrompt json.RawMessage
}

// ErrUnsupported marks requests that only an engine can render: with images,
// or in a form unknown here.
var ErrUnsupported = errors.New("the request cannot be rendered here")

// Dialect is how an engine prepares a request for its template.
type Dialect string

// Dialects.
const (
	VLLM   Dialect = "vllm"
	SGLang Dialect = "sglang"
)

// Conversation renders chat requests as an engine would. It is safe for
// concurrent use.
type Conversation struct {
	template Template
	// fixed are variables every rendering gets: the special tokens.
	fixed []Variable
	// parts is set for templates that take a message's content as a list.
	parts bool
}

// NewConversation makes a Conversation of a template's source. fixed are
// variables of every rendering.
func NewConversation(source string, fixed []Variable, options Options) (*Conversation, error) {
	compiled, err := Compile(source, options)
	if err != nil {
		return nil, err
	}
	return &Conversation{template: compiled, fixed: fixed, parts: takesParts(source)}, nil
}

// variables returns them in the order in which later ones win.
func (c *Conversation) variables(dialect Dialect, request *Request) ([]Variable, error) {
	messages, err := c.messages(dialect, request.Messages)
	if err != nil {
		return nil, err
	}
	variables := append([]Variable{}, c.fixed...)
	if len(request.TemplateArguments) > 0 {
		err := jsonscan.Object(request.TemplateArguments, func(name, value []byte) error {
			variables = append(variables, Variable{Name: string(name), Value: value})
			return nil
		})
		if err != nil {
			return nil, ErrUnsupported
		}
	}
	generation := request.AddGenerationPrompt
	if len(generation) == 0 {
		generation = json.RawMessage("true")
	}
	variables = append(variables, Variable{"messages", messages}, Variable{"add_generation_prompt", generation})
	for name, value := range map[string]json.RawMessage{
		"documents": request.Documents, "reasoning_effort": request.ReasoningEffort,
	} {
		if len(value) > 0 {
			variables = append(variables, Variable{name, value})
		}
	}
	tools, err := prepareTools(dialect, request.Tools)
	if err != nil {
		return nil, err
	}
	return append(variables, Variable{"tools", tools}), nil
}

// prepareTools writes tools with the members an engine's own types have, in
// their order.
func prepareTools(dialect Dialect, raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 {
		return json.RawMessage("null"), nil
	}
	out := newListWriter()
	err := jsonscan.Array(raw, func(tool []byte) error {
		var members orderedObject
		if err := members.read(tool); err != nil {
			return err
		}
		var function orderedObject
		if err := function.read(members.get("function")); err != nil {
			return err
		}
		described := function.ordered("name", "description", "parameters")
		if dialect == SGLang {
			described = function.ordered("description", "name", "parameters", "strict")
			out.add(described)
			return nil
		}
		if members.get("type") == nil {
			members.set("type", []byte(`"function"`))
		}
		members.set("function", described)
		out.add(members.ordered("type", "function"))
		return nil
	})
	switch {
	case err != nil:
		return nil, ErrUnsupported
	case out.empty():
		return json.RawMessage("null"), nil
	default:
		return out.bytes(), nil
	}
}

// messages writes the messages as an engine hands them to its template.
func (c *Conversation) messages(dialect Dialect, raw json.RawMessage) (json.RawMessage, error) {
	out := newListWriter()
	err := jsonscan.Array(raw, func(message []byte) error {
		prepared, err := c.message(dialect, message)
		out.add(prepared)
		return err
	})
	if err != nil || out.empty() {
		return nil, ErrUnsupported
	}
	return out.bytes(), nil
}

func (c *Conversation) message(dialect Dialect, raw []byte) ([]byte, error) {
	var given orderedObject
	if err := given.read(raw); err != nil {
		return nil, err
	}
	role, ok := jsonscan.String(given.get("role"))
	if !ok {
		return nil, ErrUnsupported
	}
	content, err := c.content(dialect, given.get("content"))
	if err != nil {
		return nil, err
	}
	var message orderedObject
	message.set("role", given.get("role"))
	message.set("content", content)
	take := func(names ...string) {
		for _, name := range names {
			if value := given.get(name); value != nil && !bytes.Equal(value, null) {
				message.set(name, value)
			}
		}
	}
	take("name")
	switch role {
	case "assistant":
		reasoning := given.get("reasoning")
		if reasoning == nil || bytes.Equal(reasoning, null) {
			reasoning = given.get("reasoning_content")
		}
		if reasoning != nil && !bytes.Equal(reasoning, null) {
			message.set("reasoning", reasoning)
			message.set("reasoning_content", reasoning)
		}
		calls, err := prepareCalls(given.get("tool_calls"))
		if err != nil {
			return nil, err
		}
		if calls != nil {
			message.set("tool_calls", calls)
		}
	case "tool":
		take("tool_call_id")
	case "developer":
		take("tools")
	}
	return message.ordered(), nil
}

var null = []byte("null")

// content writes a message's content in the form the template takes.
func (c *Conversation) content(dialect Dialect, raw []byte) ([]byte, error) {
	var texts [][]byte
	switch {
	case len(raw) == 0 || bytes.Equal(raw, null):
	case raw[0] == '"':
		texts = append(texts, raw)
	case raw[0] == '[':
		err := jsonscan.Array(raw, func(part []byte) error {
			text, err := partText(part)
			texts = append(texts, text)
			return err
		})
		if err != nil {
			return nil, err
		}
	default:
		return nil, ErrUnsupported
	}
	plain := len(raw) > 0 && raw[0] == '"'
	if c.parts && (dialect == VLLM || !plain) {
		out := newListWriter()
		for _, text := range texts {
			out.add(append(append([]byte(`{"type":"text","text":`), text...), '}'))
		}
		return out.bytes(), nil
	}
	if len(texts) == 1 {
		return texts[0], nil
	}
	between := "\n"
	if dialect == SGLang {
		between = " "
	}
	var joined bytes.Buffer
	for i, raw := range texts {
		text, ok := jsonscan.String(raw)
		if !ok {
			return nil, ErrUnsupported
		}
		if i > 0 {
			joined.WriteString(between)
		}
		joined.WriteString(text)
	}
	return json.Marshal(joined.String())
}

// partText returns the text of a content part, raw. Other parts change the
// prompt in ways only the engine knows.
func partText(part []byte) ([]byte, error) {
	if len(part) > 0 && part[0] == '"' {
		return part, nil
	}
	var members orderedObject
	if err := members.read(part); err != nil {
		return nil, err
	}
	kind, _ := jsonscan.String(members.get("type"))
	text := members.get("text")
	if kind != "text" || len(text) == 0 || text[0] != '"' {
		return nil, ErrUnsupported
	}
	return text, nil
}

// prepareCalls turns the arguments of tool calls, which clients send as JSON
// text, into values.
func prepareCalls(raw []byte) ([]byte, error) {
	if len(raw) == 0 || bytes.Equal(raw, null) {
		return nil, nil
	}
	out := newListWriter()
	err := jsonscan.Array(raw, func(call []byte) error {
		var members, function orderedObject
		if err := members.read(call); err != nil {
			return err
		}
		if err := function.read(members.get("function")); err != nil {
			return err
		}
		arguments := function.get("arguments")
		if text, isText := jsonscan.String(arguments); isText && text != "" {
			arguments = []byte(text)
			if !json.Valid(arguments) {
				return ErrUnsupported
			}
		} else if len(arguments) == 0 || isText || bytes.Equal(arguments, null) {
			arguments = []byte("{}")
		}
		function.set("arguments", arguments)
		members.set("function", function.ordered())
		out.add(members.ordered())
		return nil
	})
	if err != nil {
		return nil, err
	}
	if out.empty() {
		return nil, nil
	}
	return out.bytes(), nil
}
