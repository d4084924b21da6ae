// SPDX-License-Identifier: Apache-2.0

package chat_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/internal/tokenize/chat"
)

// benchTemplate does what templates of models with tools do.
const benchTemplate = `{%- if tools %}<|im_start|>system
{%- if messages[0].role == 'system' %}
{{ messages[0].content }}
{%- endif %}
# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
{%- if ns.last < 0 and message.role == 'user' %}{% set ns.last = messages | length - 1 - loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{%- if message.reasoning_content is defined and loop.index0 > ns.last %}
<think>{{ message.reasoning_content.strip() }}</think>
{%- endif %}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// BenchmarkRender renders a chat of 20 messages with 10 tools, about 12 KiB.
func BenchmarkRender(b *testing.B) {
	conversation, err := chat.NewConversation(benchTemplate, nil, chat.Options{})
	if err != nil {
		b.Fatal(err)
	}
	var messages, tools []map[string]any
	for i := range 20 {
		role := map[int]string{0: "user", 1: "assistant"}[i%2]
		messages = append(messages, map[string]any{"role": role, "content": fmt.Sprintf("Turn %d. ", i) + strings.Repeat("Some words. ", 40)})
	}
	for i := range 10 {
		tools = append(tools, map[string]any{"type": "function", "function": map[string]any{
			"name": fmt.Sprintf("tool_%d", i), "description": "Does something.",
			"parameters": map[string]any{"type": "object", "properties": map[string]any{"a": map[string]any{"type": "string"}}},
		}})
	}
	var request chat.Request
	if request.Messages, err = json.Marshal(messages); err != nil {
		b.Fatal(err)
	}
	if request.Tools, err = json.Marshal(tools); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := conversation.Render(b.Context(), chat.VLLM, &request); err != nil {
			b.Fatal(err)
		}
	}
}
