// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"github.com/inferencecache/inference-cache/internal/sim/rank"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
)

// format shapes the choices of one endpoint.
type format interface {
	object(stream bool) string
	// choice is one complete answer.
	choice(index int, ids []uint32, finish string, shown *tokenIDs) any
	// deltas are the choices of the chunks that carry one token.
	deltas(index int, token rank.Token, first bool, shown *tokenIDs) []any
}

// tokenIDs are shown when the caller asked for them.
type tokenIDs struct{ Prompt, Generated []uint32 }

// finishReason is null while a sequence runs.
func finishReason(finish sched.Finish) any {
	if finish == sched.Running {
		return nil
	}
	return string(finish)
}

func withTokenIDs(choice map[string]any, shown *tokenIDs) map[string]any {
	if shown != nil {
		choice["token_ids"] = shown.Generated
		if shown.Prompt != nil {
			choice["prompt_token_ids"] = shown.Prompt
		}
	}
	return choice
}

type textFormat struct{}

func (textFormat) object(bool) string { return "text_completion" }

func (textFormat) choice(index int, ids []uint32, finish string, shown *tokenIDs) any {
	return withTokenIDs(map[string]any{
		"index": index, "text": tinymodel.Decode(ids, false), "logprobs": nil, "finish_reason": finish,
	}, shown)
}

func (textFormat) deltas(index int, token rank.Token, _ bool, shown *tokenIDs) []any {
	return []any{withTokenIDs(map[string]any{
		"index": index, "text": tinymodel.Decode([]uint32{token.Token}, false),
		"logprobs": nil, "finish_reason": finishReason(token.Finish),
	}, shown)}
}

type chatFormat struct{}

func (chatFormat) object(stream bool) string {
	if stream {
		return "chat.completion.chunk"
	}
	return "chat.completion"
}

func (chatFormat) choice(index int, ids []uint32, finish string, shown *tokenIDs) any {
	return withTokenIDs(map[string]any{
		"index":         index,
		"message":       map[string]string{"role": "assistant", "content": tinymodel.Decode(ids, false)},
		"logprobs":      nil,
		"finish_reason": finish,
	}, shown)
}

func (chatFormat) deltas(index int, token rank.Token, first bool, shown *tokenIDs) []any {
	var deltas []any
	if first {
		deltas = append(deltas, map[string]any{
			"index": index, "delta": map[string]string{"role": "assistant", "content": ""},
			"logprobs": nil, "finish_reason": nil,
		})
	}
	return append(deltas, withTokenIDs(map[string]any{
		"index": index, "delta": map[string]string{"content": tinymodel.Decode([]uint32{token.Token}, false)},
		"logprobs": nil, "finish_reason": finishReason(token.Finish),
	}, shown))
}
