// SPDX-License-Identifier: Apache-2.0

package lookup

import "context"

// Limits of a request's input.
const (
	MaxTokenIDs    = 1 << 20
	MaxPromptBytes = 1 << 20
	maxIDBytes     = 256
)

// Request is one question. The Decider reads it and keeps nothing of it.
type Request struct {
	Tenant, Model, Scheme, Adapter string

	// BlockHashes with one count each describe a prompt block by block,
	// PrefixHash with PrefixTokens as a whole. TokenIDs and Prompt are hashed
	// here when neither is given.
	BlockHashes      [][]byte
	BlockTokenCounts []int32
	PrefixHash       []byte
	PrefixTokens     int32
	TokenIDs         []uint32
	Prompt           string

	// TTFTMillis is the time to first token the caller asks for; 0 or below
	// means nothing.
	TTFTMillis int32

	// Among restricts the answer to these replicas, sorted, as if no others
	// served; nil = all. Diagnoses of a miss are about the whole index.
	Among []string
}

// Form is the part of a request that describes its prompt.
type Form uint8

// Forms of input.
const (
	FormNothing  Form = iota // no description: can only miss
	FormChain                // block hashes
	FormExact                // prefix hash
	FormTokenIDs             // token ids, hashed here
	FormPrompt               // text, tokenized and hashed here
	FormUnusable             // only block hashes, while policy switches chains off
)

// String returns the form's name.
func (f Form) String() string {
	return [...]string{"nothing", "chain", "exact", "token_ids", "prompt_text", "unusable"}[f]
}

// form returns which part of the request counts.
func (r *Request) form(chainMatching bool) Form {
	hasChain := len(r.BlockHashes) > 0 || len(r.BlockTokenCounts) > 0
	switch {
	case hasChain && chainMatching:
		return FormChain
	case len(r.PrefixHash) > 0:
		return FormExact
	case len(r.TokenIDs) > 0:
		return FormTokenIDs
	case r.Prompt != "":
		return FormPrompt
	case hasChain:
		return FormUnusable
	default:
		return FormNothing
	}
}

// evenChain reports whether the chain fields, as sent, have equal lengths.
func (r *Request) evenChain() bool {
	return len(r.BlockHashes) == len(r.BlockTokenCounts)
}

// hasChain reports whether the request brings a chain of its own.
func (r *Request) hasChain() bool {
	return len(r.BlockHashes) > 0 && r.evenChain()
}

// named reports whether tenant, model and scheme are all given.
func (r *Request) named() bool {
	return r.Tenant != "" && r.Model != "" && r.Scheme != ""
}

func (r *Request) idTooLong() bool {
	return max(len(r.Tenant), len(r.Model), len(r.Scheme), len(r.Adapter)) > maxIDBytes
}

// Tokenizer turns text into the token ids an engine would see for it, as the
// one user message of a chat with the generation prompt added. It must obey
// the context's deadline and is called from many goroutines at once.
type Tokenizer interface {
	Tokenize(ctx context.Context, model, prompt string) ([]uint32, error)
}
