// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

func TestGenerate(t *testing.T) {
	cases := map[string]Config{
		"defaults":           {},
		"another seed":       {Seed: 7},
		"nothing to share":   {Unique: true},
		"one turn each":      {Turns: [2]int{1, 1}},
		"one system prompt":  {SystemPrompts: 1},
		"a short experiment": {Duration: time.Second},
	}
	for name, config := range cases {
		t.Run(name, func(t *testing.T) {
			requests := Generate(config)
			if !reflect.DeepEqual(requests, Generate(config)) {
				t.Fatal("equal configurations give different workloads")
			}
			full := config.withDefaults()
			if !slices.IsSortedFunc(requests, func(a, b Request) int { return int(a.At - b.At) }) {
				t.Error("arrivals are not in order")
			}
			last := map[int]Request{}
			for _, request := range requests {
				if request.At < 0 || request.At >= full.Duration {
					t.Errorf("arrival at %v", request.At)
				}
				if before, ok := last[request.Conversation]; ok {
					checkFollows(t, full, before, request)
				} else if request.Turn != 0 {
					t.Errorf("conversation %d starts with turn %d", request.Conversation, request.Turn)
				}
				last[request.Conversation] = request
			}
			if len(last) != full.Conversations {
				t.Errorf("%d conversations, want %d", len(last), full.Conversations)
			}
		})
	}
}

// checkFollows checks that a turn repeats the one before and its answer.
func checkFollows(t *testing.T, config Config, before, request Request) {
	t.Helper()
	if request.Turn != before.Turn+1 || request.At <= before.At {
		t.Errorf("turn %d at %v follows turn %d at %v", request.Turn, request.At, before.Turn, before.At)
	}
	n := len(before.Messages)
	if !reflect.DeepEqual(before.Messages, request.Messages[:n]) {
		t.Errorf("conversation %d, turn %d: the history changed", request.Conversation, request.Turn)
	}
	if got, want := request.Messages[n].Content, before.Answer(config.AnswerSeed); got != want {
		t.Errorf("the answer in the history is %q, want %q", got, want)
	}
}

func TestUniqueSharesNothing(t *testing.T) {
	seen := map[string]bool{}
	for _, request := range Generate(Config{Unique: true}) {
		system := request.Messages[0].Content[:16]
		if seen[system] {
			t.Errorf("two chats start alike")
		}
		seen[system] = true
	}
}
