// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"encoding/json"
	"strings"

	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
)

// maxPrompts bounds the sequences of one request.
const maxPrompts = 128

// sampling holds what completions and chat have in common.
type sampling struct {
	Model               string         `json:"model"`
	MaxTokens           *int           `json:"max_tokens"`
	MaxCompletionTokens *int           `json:"max_completion_tokens"`
	N                   *int           `json:"n"`
	Stream              bool           `json:"stream"`
	StreamOptions       *streamOptions `json:"stream_options"`
	IgnoreEOS           bool           `json:"ignore_eos"`
	CacheSalt           *string        `json:"cache_salt"`
	ReturnTokenIDs      bool           `json:"return_token_ids"`

	Transfer      *transferParams   `json:"kv_transfer_params"`
	BootstrapHost oneOrMany[string] `json:"bootstrap_host"`
	BootstrapPort oneOrMany[int]    `json:"bootstrap_port"`
	Room          oneOrMany[int64]  `json:"bootstrap_room"`
	// Rank is where the request belongs, PrefillRank where its prefill is.
	Rank        *int `json:"routed_dp_rank"`
	PrefillRank *int `json:"disagg_prefill_dp_rank"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type completionRequest struct {
	sampling
	Prompt           promptList `json:"prompt"`
	AddSpecialTokens *bool      `json:"add_special_tokens"`
}

type chatRequest struct {
	sampling
	Messages            []chatMessage   `json:"messages"`
	Tools               json.RawMessage `json:"tools"`
	AddGenerationPrompt *bool           `json:"add_generation_prompt"`
}

func (r *chatRequest) tokens() ([]uint32, error) {
	if len(r.Messages) == 0 {
		return nil, badRequest("messages", "messages: at least one message is expected")
	}
	messages := make([]tinymodel.Message, len(r.Messages))
	for i, message := range r.Messages {
		messages[i] = tinymodel.Message{
			Role: message.Role, Content: string(message.Content), ToolCalls: message.ToolCalls,
		}
	}
	generation := r.AddGenerationPrompt == nil || *r.AddGenerationPrompt
	return tinymodel.Chat(messages, r.Tools, generation), nil
}

type chatMessage struct {
	Role      string          `json:"role"`
	Content   content         `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

// content is a message's text: a string, null, or a list of text parts.
type content string

// UnmarshalJSON implements json.Unmarshaler.
func (c *content) UnmarshalJSON(raw []byte) error {
	var text *string
	if json.Unmarshal(raw, &text) == nil {
		if text != nil {
			*c = content(*text)
		}
		return nil
	}
	var parts []struct{ Type, Text string }
	if json.Unmarshal(raw, &parts) != nil {
		return badRequest("messages", "content: a string or a list of parts is expected")
	}
	var all strings.Builder
	for _, part := range parts {
		if part.Type != "text" {
			return badRequest("messages", "content: this model takes text parts only")
		}
		all.WriteString(part.Text)
	}
	*c = content(all.String())
	return nil
}

// promptList is a completion's prompt: a text, token ids, or a list of either.
type promptList [][]uint32

// UnmarshalJSON implements json.Unmarshaler.
func (p *promptList) UnmarshalJSON(raw []byte) error {
	var text string
	var ids []uint32
	var texts []string
	var lists [][]uint32
	switch {
	case json.Unmarshal(raw, &text) == nil:
		*p = promptList{tinymodel.Encode(text)}
	case json.Unmarshal(raw, &ids) == nil:
		*p = promptList{ids}
	case json.Unmarshal(raw, &texts) == nil:
		*p = nil
		for _, text := range texts {
			*p = append(*p, tinymodel.Encode(text))
		}
	case json.Unmarshal(raw, &lists) == nil:
		*p = lists
	default:
		return badRequest("prompt", "prompt: a string, token ids, or a list of either is expected")
	}
	return nil
}

// prompts returns n copies of each prompt, in order.
func (p promptList) prompts(n *int) ([][]uint32, error) {
	copies := 1
	if n != nil {
		copies = *n
	}
	if copies < 1 || copies > maxPrompts || len(p)*copies > maxPrompts {
		return nil, badRequest("n", "n: at least 1 and at most %d sequences are expected", maxPrompts)
	}
	var all [][]uint32
	for _, prompt := range p {
		if len(prompt) == 0 {
			return nil, badRequest("prompt", "prompt: at least one token is expected")
		}
		for range copies {
			all = append(all, prompt)
		}
	}
	if len(all) == 0 {
		return nil, badRequest("prompt", "prompt: at least one prompt is expected")
	}
	return all, nil
}

// limit returns how many tokens to generate after a prompt. A limit the
// caller did not give is fallback, or what fits when fallback is 0.
func (s *sampling) limit(prompt, room, fallback int) (int, error) {
	limit := fallback
	if s.MaxTokens != nil {
		limit = *s.MaxTokens
	}
	if s.MaxCompletionTokens != nil {
		limit = *s.MaxCompletionTokens
	}
	explicit := s.MaxTokens != nil || s.MaxCompletionTokens != nil
	switch {
	case explicit && limit < 1:
		return 0, badRequest("max_tokens", "max_tokens must be at least 1, got %d", limit)
	case prompt >= room:
		return 0, badRequest("prompt", "This model's maximum context length is %d tokens. However, "+
			"your request has %d input tokens. Please reduce the length of the input.", room, prompt)
	case explicit && prompt+limit > room:
		return 0, badRequest("max_tokens", "'max_tokens' is too large: %d. This model's maximum context "+
			"length is %d tokens and your request has %d input tokens.", limit, room, prompt)
	case limit == 0:
		return room - prompt, nil
	default:
		return min(limit, room-prompt), nil
	}
}
