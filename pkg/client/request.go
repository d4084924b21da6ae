// SPDX-License-Identifier: Apache-2.0

package client

import (
	"math"
	"strconv"
	"strings"
	"time"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const maxIdentifierBytes = 256

// TTFTHeader is the request header in which a client states the time to first
// token it hopes for, in milliseconds.
const TTFTHeader = "x-inference-cache-ttft-ms"

// ParseTTFT returns the duration of a TTFTHeader value: a whole number of
// milliseconds from 1 to 2^31-1. Otherwise ok is false and the header is to be
// ignored. Headers of untrusted callers should not get here.
func ParseTTFT(value string) (ttft time.Duration, ok bool) {
	millis, err := strconv.ParseUint(strings.TrimSpace(value), 10, 31)
	if err != nil || millis == 0 {
		return 0, false
	}
	return time.Duration(millis) * time.Millisecond, true
}

// Request is one question to the index. Tenant, Model and HashScheme are
// required; each is at most 256 bytes.
type Request struct {
	// Tenant is the namespace of the engine pods.
	Tenant string
	// Model is the model's name as publishers report it.
	Model string
	// HashScheme is the engine's domain of block keys: "vllm", "sglang".
	HashScheme string
	// Adapter is the LoRA adapter's name, "" for the base model.
	Adapter string

	// Chain is the prompt's blocks. It decides when it is not empty, unless
	// the tenant's policy turns chain matching off. Without it and all below,
	// only warm replicas can be named.
	Chain Chain
	// PrefixHash and PrefixTokens name one whole prefix by an engine's own
	// hash, matched exactly.
	PrefixHash   []byte
	PrefixTokens int32
	// TokenIDs and PromptText make the server hash, or tokenize and hash. They
	// count only when Chain and PrefixHash are empty, never carry a salt, and
	// need a longer Options.Timeout.
	TokenIDs   []uint32
	PromptText string

	// TTFT is the time to first token hoped for, 0 for none. It is sent in
	// whole milliseconds, rounded down, at least 1.
	TTFT time.Duration
}

// problem says why no server could answer, "" when one could. It names no
// value of the request.
func (r *Request) problem() string {
	switch {
	case r.Tenant == "":
		return "tenant is empty"
	case r.Model == "":
		return "model is empty"
	case r.HashScheme == "":
		return "hash scheme is empty"
	case len(r.Tenant) > maxIdentifierBytes:
		return "tenant is longer than 256 bytes"
	case len(r.Model) > maxIdentifierBytes:
		return "model is longer than 256 bytes"
	case len(r.HashScheme) > maxIdentifierBytes:
		return "hash scheme is longer than 256 bytes"
	case len(r.Adapter) > maxIdentifierBytes:
		return "adapter is longer than 256 bytes"
	case len(r.Chain.Hashes) != len(r.Chain.TokenCounts):
		return "chain has not one token count for each hash"
	}
	return ""
}

// wire returns the contract's message. It shares the request's slices.
func (r *Request) wire() *pb.LookupRouteRequest {
	message := &pb.LookupRouteRequest{
		TenantId: r.Tenant, ModelId: r.Model, HashScheme: r.HashScheme, AdapterId: r.Adapter,
		BlockHashes: r.Chain.Hashes, BlockTokenCounts: r.Chain.TokenCounts,
		PrefixHash: r.PrefixHash, PrefixTokenCount: r.PrefixTokens,
		TokenIds: r.TokenIDs, PromptText: r.PromptText,
	}
	if r.TTFT > 0 {
		millis := min(max(r.TTFT.Milliseconds(), 1), math.MaxInt32)
		message.Slo = &pb.SLO{TtftMs: int32(millis)}
	}
	return message
}
