// SPDX-License-Identifier: Apache-2.0

package chatform

import (
	"encoding/json"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// addResponses reads instructions and input of /v1/responses.
func (c *chat) addResponses(instructions, input []byte) error {
	if len(instructions) > 0 {
		system, ok := text(instructions)
		if !ok {
			return errOther
		}
		c.add(message{Role: "system", Content: system})
	}
	if prompt, ok := text(input); ok {
		c.add(message{Role: "user", Content: prompt})
		return nil
	}
	return jsonscan.Array(input, c.addItem)
}

// addItem reads one item of input.
func (c *chat) addItem(raw []byte) error {
	var item struct {
		Type      string          `json:"type"`
		Role      string          `json:"role"`
		Content   json.RawMessage `json:"content"`
		CallID    string          `json:"call_id"`
		Name      string          `json:"name"`
		Arguments string          `json:"arguments"`
		Output    json.RawMessage `json:"output"`
	}
	if err := json.Unmarshal(raw, &item); err != nil {
		return errOther
	}
	switch item.Type {
	case "", "message":
		content, err := responsesContent(item.Content)
		if err != nil || item.Role == "" {
			return errOther
		}
		c.add(message{Role: item.Role, Content: content})
	case "function_call":
		c.addCall(toolCall{
			ID: item.CallID, Type: "function", Function: function{Name: item.Name, Arguments: item.Arguments},
		})
	case "function_call_output":
		output, ok := text(item.Output)
		if !ok {
			return errOther
		}
		c.add(message{Role: "tool", Content: output, ToolCallID: item.CallID})
	default:
		return errOther
	}
	return nil
}

// addCall adds a call to those of the message before, if that holds only calls.
func (c *chat) addCall(call toolCall) {
	if n := len(c.messages); n > 0 && len(c.messages[n-1].ToolCalls) > 0 {
		c.messages[n-1].ToolCalls = append(c.messages[n-1].ToolCalls, call)
		return
	}
	c.add(message{Role: "assistant", ToolCalls: []toolCall{call}})
}

func responsesContent(raw []byte) (any, error) {
	if whole, ok := text(raw); ok {
		return whole, nil
	}
	var parts []struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		ImageURL string `json:"image_url"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil || len(parts) == 0 {
		return nil, errOther
	}
	out := make([]part, len(parts))
	for i, p := range parts {
		switch p.Type {
		case "text", "input_text", "output_text":
			out[i] = part{Type: "text", Text: p.Text}
		case "input_image":
			if p.ImageURL == "" {
				return nil, errOther
			}
			out[i] = part{Type: "image_url", ImageURL: &imageURL{p.ImageURL}}
		default:
			return nil, errOther
		}
	}
	return out, nil
}
