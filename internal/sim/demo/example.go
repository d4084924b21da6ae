// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strings"

	"github.com/inferencecache/inference-cache/internal/sim/workload"
)

// examples picks three decisions that differ in kind: the last turn of the
// longest chat, a new chat under a known system prompt, and the first chat.
func examples(requests []workload.Request, samples []sample) []Example {
	followUp, known, unknown := -1, -1, -1
	systems := make(map[int]bool)
	for i, request := range requests {
		if samples[i].Failure != "" {
			continue
		}
		switch {
		case request.Turn > 0:
			if followUp < 0 || request.Turn >= requests[followUp].Turn {
				followUp = i
			}
		case systems[request.System]:
			known = i
		case unknown < 0:
			unknown = i
		}
		systems[request.System] = true
	}
	var picked []Example
	for _, pick := range []struct {
		index int
		what  string
	}{
		{unknown, "The first request ever"},
		{known, "A new chat whose system prompt is known"},
		{followUp, "The latest turn of a long chat"},
	} {
		if pick.index >= 0 {
			picked = append(picked, explain(requests[pick.index], samples[pick.index], pick.what))
		}
	}
	return picked
}

func explain(request workload.Request, s sample, what string) Example {
	e := Example{
		Conversation: request.Conversation, Turn: request.Turn, PromptTokens: len(request.Prompt),
		CachedTokens: s.CachedTokens, Replica: s.Replica, Reason: s.Reason,
	}
	to := "one engine"
	if s.Replica != "" {
		to = s.Replica
	}
	e.Words = fmt.Sprintf("%s (chat %d, turn %d) went to %s%s; the engine reused %s of its %s prompt tokens and answered after %.0f ms.",
		what, request.Conversation+1, request.Turn+1, to, because(s.Reason),
		thousands(s.CachedTokens), thousands(len(request.Prompt)), milliseconds(s.FirstToken))
	return e
}

// because puts a reason header, "origin=...; branch=...; code=...", into words.
func because(reason string) string {
	fields := make(map[string]string)
	for _, field := range strings.Split(reason, ";") {
		key, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		fields[key] = value
	}
	switch {
	case fields["origin"] == "load_spill":
		return " because the engines that held its prefix had too much to do"
	case fields["origin"] == "index_hint" && fields["code"] == "PREFIX_MATCH":
		return " because the index knew that its prefix was there"
	case fields["origin"] == "index_hint" && fields["code"] == "AFFINITY_HINT":
		return " because nobody held its prefix, and equal prompts meet there"
	case fields["origin"] == "policy":
		return " because nobody was known to hold its prefix, and it had the least to do"
	case reason != "":
		return " (" + reason + ")"
	default:
		return ""
	}
}
