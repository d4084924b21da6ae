// SPDX-License-Identifier: Apache-2.0

package chatform

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// addMessages reads system and messages of /v1/messages.
func (c *chat) addMessages(system, messages []byte) error {
	if len(system) > 0 {
		whole, err := joinTexts(system, "")
		if err != nil {
			return err
		}
		c.add(message{Role: "system", Content: whole})
	}
	return jsonscan.Array(messages, c.addTurn)
}

// joinTexts reads a string, or blocks of text.
func joinTexts(raw []byte, separator string) (string, error) {
	if whole, ok := text(raw); ok {
		return whole, nil
	}
	var blocks []struct{ Type, Text string }
	if err := json.Unmarshal(raw, &blocks); err != nil {
		return "", errOther
	}
	texts := make([]string, len(blocks))
	for i, block := range blocks {
		if block.Type != "text" {
			return "", errOther
		}
		texts[i] = block.Text
	}
	return strings.Join(texts, separator), nil
}

// block is one part of a message.
type block struct {
	Type   string `json:"type"`
	Text   string `json:"text"`
	Source struct {
		Type      string `json:"type"`
		MediaType string `json:"media_type"`
		Data      string `json:"data"`
		URL       string `json:"url"`
	} `json:"source"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
}

// addTurn reads one message. Results of tools become messages before it.
func (c *chat) addTurn(raw []byte) error {
	var turn struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(raw, &turn); err != nil || turn.Role == "" {
		return errOther
	}
	if whole, ok := text(turn.Content); ok {
		c.add(message{Role: turn.Role, Content: whole})
		return nil
	}
	var blocks []block
	if err := json.Unmarshal(turn.Content, &blocks); err != nil {
		return errOther
	}
	own := message{Role: turn.Role}
	var parts []part
	for i := range blocks {
		if err := c.addBlock(&blocks[i], &own, &parts); err != nil {
			return err
		}
	}
	switch {
	case len(parts) == 1 && parts[0].Type == "text":
		own.Content = parts[0].Text
	case len(parts) > 0:
		own.Content = parts
	case len(own.ToolCalls) == 0:
		return nil
	}
	c.add(own)
	return nil
}

func (c *chat) addBlock(b *block, own *message, parts *[]part) error {
	switch b.Type {
	case "text":
		*parts = append(*parts, part{Type: "text", Text: b.Text})
	case "image":
		url := b.Source.URL
		if b.Source.Type == "base64" {
			url = "data:" + b.Source.MediaType + ";base64," + b.Source.Data
		}
		if url == "" {
			return errOther
		}
		*parts = append(*parts, part{Type: "image_url", ImageURL: &imageURL{url}})
	case "tool_use":
		own.ToolCalls = append(own.ToolCalls, toolCall{
			ID: b.ID, Type: "function", Function: function{Name: b.Name, Arguments: dumps(b.Input)},
		})
	case "tool_result":
		result := ""
		if len(b.Content) > 0 {
			var err error
			if result, err = joinTexts(b.Content, "\n"); err != nil {
				return err
			}
		}
		c.add(message{Role: "tool", Content: result, ToolCallID: b.ToolUseID})
	default:
		return errOther
	}
	return nil
}

// dumps writes JSON as engines do that decode and encode it again: one space
// after commas and colons, no other space, and ASCII only.
func dumps(raw json.RawMessage) string {
	if len(raw) == 0 {
		return "{}"
	}
	var out strings.Builder
	inString, escaped := false, false
	for i := 0; i < len(raw); {
		r, size := utf8.DecodeRune(raw[i:])
		i += size
		switch {
		case inString && r > '~':
			writeEscaped(&out, r)
		case inString:
			out.WriteRune(r)
			inString, escaped = escaped || r != '"', !escaped && r == '\\'
		case r == ' ' || r == '\t' || r == '\n' || r == '\r':
		case r == ',' || r == ':':
			out.WriteRune(r)
			out.WriteByte(' ')
		default:
			out.WriteRune(r)
			inString = r == '"'
		}
	}
	return out.String()
}

func writeEscaped(out *strings.Builder, r rune) {
	if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
		fmt.Fprintf(out, `\u%04x\u%04x`, high, low)
		return
	}
	fmt.Fprintf(out, `\u%04x`, r)
}
