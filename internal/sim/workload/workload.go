// SPDX-License-Identifier: Apache-2.0

// Package workload makes requests for fleets of simulated engines: chats of
// several turns that share system prompts. A workload is open loop: arrival
// times, prompts and even the engines' answers, which later turns repeat, are
// fixed by the seed before anything is sent.
package workload

import (
	"cmp"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
)

// Config of a workload. Sizes of texts are in bytes, which are the tokens of
// simulated engines. Ranges include both ends.
type Config struct {
	// Seed chooses everything. Default 1.
	Seed uint64
	// AnswerSeed is the engines' answer seed. Default 0.
	AnswerSeed uint64
	// Duration is the time in which requests arrive. Default 30 s.
	Duration time.Duration
	// Conversations is the number of chats. Default 90.
	Conversations int
	// SystemPrompts is the number of different system prompts; a few of them
	// are much more popular than others. Default 12.
	SystemPrompts int
	// SystemBytes is the length of a system prompt. Default 1600.
	SystemBytes int
	// Turns is the range of turns of a chat. Default 3 to 7.
	Turns [2]int
	// UserBytes is the range of a user message. Default 80 to 320.
	UserBytes [2]int
	// AnswerTokens is the range of an answer. Default 16 to 48.
	AnswerTokens [2]int
	// Pause is the mean time between two turns of a chat. Default 3 s.
	Pause time.Duration
	// Unique makes each chat one turn with a system prompt of its own, so
	// that nothing can be reused. Default false.
	Unique bool
}

func (c Config) withDefaults() Config {
	c.Seed = cmp.Or(c.Seed, 1)
	c.Duration = cmp.Or(c.Duration, 30*time.Second)
	c.Conversations = cmp.Or(c.Conversations, 90)
	c.SystemPrompts = cmp.Or(c.SystemPrompts, 12)
	c.SystemBytes = cmp.Or(c.SystemBytes, 1600)
	c.Turns = cmp.Or(c.Turns, [2]int{3, 7})
	c.UserBytes = cmp.Or(c.UserBytes, [2]int{80, 320})
	c.AnswerTokens = cmp.Or(c.AnswerTokens, [2]int{16, 48})
	c.Pause = cmp.Or(c.Pause, 3*time.Second)
	return c
}

// Request is one turn of a chat.
type Request struct {
	// At is when it arrives, from the start of the workload.
	At time.Duration
	// Conversation and Turn count from 0; System names the system prompt.
	Conversation, Turn, System int
	Messages                   []tinymodel.Message
	// AnswerTokens is the length of the answer.
	AnswerTokens int
	// Prompt is what an engine makes of Messages.
	Prompt []uint32
}

// Body is the request as POST /v1/chat/completions takes it, streaming.
func (r Request) Body(model string) []byte {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := make([]message, len(r.Messages))
	for i, m := range r.Messages {
		messages[i] = message{m.Role, m.Content}
	}
	body, err := json.Marshal(map[string]any{
		"model": model, "messages": messages, "max_tokens": r.AnswerTokens, "ignore_eos": true,
		"stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return body
}

// Answer is the answer every engine with the workload's answer seed gives.
func (r Request) Answer(answerSeed uint64) string {
	answer := tinymodel.NewAnswer(r.Prompt, answerSeed)
	ids := make([]uint32, r.AnswerTokens)
	for i := range ids {
		ids[i], _ = answer.Token(i, true)
	}
	return tinymodel.Decode(ids, false)
}

// Generate returns the requests in order of arrival.
func Generate(config Config) []Request {
	config = config.withDefaults()
	random := rand.New(rand.NewPCG(config.Seed, 0))
	systems := make([]string, config.SystemPrompts)
	for i := range systems {
		systems[i] = text(random, config.SystemBytes)
	}
	var all []Request
	for conversation := range config.Conversations {
		all = append(all, converse(config, random, systems, conversation)...)
	}
	slices.SortStableFunc(all, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return all
}

// converse returns the turns of one chat that arrive in time.
func converse(config Config, random *rand.Rand, systems []string, conversation int) []Request {
	system := popular(random, len(systems))
	prompt := systems[system]
	turns := between(random, config.Turns)
	if config.Unique {
		prompt, turns = text(random, config.SystemBytes), 1
	}
	messages := []tinymodel.Message{{Role: "system", Content: prompt}}
	at := time.Duration(random.Float64() * 0.8 * float64(config.Duration))
	var requests []Request
	for turn := range turns {
		if at >= config.Duration {
			break
		}
		messages = append(messages, tinymodel.Message{Role: "user", Content: text(random, between(random, config.UserBytes))})
		request := Request{
			At: at, Conversation: conversation, Turn: turn, System: system,
			Messages:     slices.Clone(messages),
			AnswerTokens: between(random, config.AnswerTokens),
			Prompt:       tinymodel.Chat(messages, nil, true),
		}
		requests = append(requests, request)
		messages = append(messages, tinymodel.Message{Role: "assistant", Content: request.Answer(config.AnswerSeed)})
		at += config.Pause/3 + time.Duration(random.ExpFloat64()*float64(config.Pause)*2/3)
	}
	return requests
}

// popular picks one of n with a probability that falls with its number.
func popular(random *rand.Rand, n int) int {
	return min(int(float64(n)*math.Pow(random.Float64(), 1.5)), n-1)
}

func between(random *rand.Rand, limits [2]int) int {
	return limits[0] + random.IntN(max(limits[1]-limits[0], 0)+1)
}

const letters = "etaoinshrdlcumwfgypbvk"

// text returns words of n bytes together.
func text(random *rand.Rand, n int) string {
	var out strings.Builder
	for out.Len() < n {
		for range 2 + random.IntN(7) {
			out.WriteByte(letters[random.IntN(len(letters))])
		}
		out.WriteByte(' ')
	}
	return out.String()[:n]
}
