// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"net/http"

	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
)

// tokenizeRequest is either form of /tokenize.
type tokenizeRequest struct {
	chatRequest
	Prompt *string `json:"prompt"`
}

func (h *Handler) tokenize(w http.ResponseWriter, r *http.Request) {
	var request tokenizeRequest
	if err := readJSON(r, &request); err != nil {
		writeError(w, err)
		return
	}
	if _, _, err := h.adapter(request.Model); err != nil {
		writeError(w, err)
		return
	}
	var tokens []uint32
	if request.Prompt != nil {
		tokens = tinymodel.Encode(*request.Prompt)
	} else {
		var err error
		if tokens, err = request.tokens(); err != nil {
			writeError(w, err)
			return
		}
	}
	writeJSON(w, map[string]any{
		"count": len(tokens), "max_model_len": h.maxModelTokens(), "tokens": tokens, "token_strs": nil,
	})
}

func (h *Handler) detokenize(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Model  string   `json:"model"`
		Tokens []uint32 `json:"tokens"`
	}
	if err := readJSON(r, &request); err != nil {
		writeError(w, err)
		return
	}
	if _, _, err := h.adapter(request.Model); err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, map[string]string{"prompt": tinymodel.Decode(request.Tokens, true)})
}

// rendered is what the render endpoints answer for one prompt.
type rendered struct {
	TokenIDs  []uint32 `json:"token_ids"`
	CacheSalt *string  `json:"cache_salt"`
	Features  any      `json:"features"`
}

// renderCompletion answers a list, one element a prompt.
func (h *Handler) renderCompletion(w http.ResponseWriter, r *http.Request) {
	var request completionRequest
	if err := readJSON(r, &request); err != nil {
		writeError(w, err)
		return
	}
	prompts, err := request.Prompt.prompts(nil)
	if err != nil {
		writeError(w, err)
		return
	}
	list := make([]rendered, len(prompts))
	for i, prompt := range prompts {
		list[i] = rendered{TokenIDs: prompt, CacheSalt: request.CacheSalt}
	}
	writeJSON(w, list)
}

func (h *Handler) renderChat(w http.ResponseWriter, r *http.Request) {
	var request chatRequest
	if err := readJSON(r, &request); err != nil {
		writeError(w, err)
		return
	}
	tokens, err := request.tokens()
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, rendered{TokenIDs: tokens, CacheSalt: request.CacheSalt})
}
