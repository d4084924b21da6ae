// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
)

// answer is what the tests read of a completion.
type answer struct {
	// Replica and Reason are what `up` tells with exposeReplica.
	Replica, Reason string
	Text            string
	PromptTokens    int
	CachedTokens    int
}

// chatMessage is one turn of a conversation.
type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// complete posts a request to /v1/completions or, when it has messages, to
// /v1/chat/completions.
func complete(t *testing.T, base string, request map[string]any) answer {
	t.Helper()
	path := "/v1/completions"
	if _, ok := request["messages"]; ok {
		path = "/v1/chat/completions"
	}
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.Post(base+path, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatalf("asking %s: %v", base, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("asking %s: status %d, %v: %.500s", base, response.StatusCode, err, text)
	}
	var completion struct {
		Choices []struct {
			Text    string
			Message chatMessage
		}
		Usage struct {
			PromptTokens  int `json:"prompt_tokens"`
			PromptDetails struct {
				CachedTokens int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(text, &completion); err != nil || len(completion.Choices) != 1 {
		t.Fatalf("answer of %s: %d choices, %v", base, len(completion.Choices), err)
	}
	return answer{
		Replica:      response.Header.Get("X-Inference-Cache-Replica"),
		Reason:       response.Header.Get("X-Inference-Cache-Reason"),
		Text:         completion.Choices[0].Text + completion.Choices[0].Message.Content,
		PromptTokens: completion.Usage.PromptTokens,
		CachedTokens: completion.Usage.PromptDetails.CachedTokens,
	}
}
