// SPDX-License-Identifier: Apache-2.0

// Package blockhash computes the chained block digests that engines announce
// in their KV events, for simulated engines and diagnostics.
//
// vLLM hashes the parent digest, the block's tokens and what else separates
// caches (adapter, salt); SGLang hashes the parent digest and the tokens only
// and keeps adapters and salts apart by other means.
package blockhash

import (
	"crypto/sha256"
	"encoding/binary"
)

// Digest is one engine block hash.
type Digest [sha256.Size]byte

// Uint64 is the integer vLLM puts into events: the last 8 bytes, big-endian.
func (d Digest) Uint64() uint64 { return binary.BigEndian.Uint64(d[len(d)-8:]) }

// Int64 is the integer SGLang puts into events: the first 8 bytes, big-endian.
func (d Digest) Int64() int64 { return int64(binary.BigEndian.Uint64(d[:8])) }

// Identity is what separates the caches of two requests with equal tokens.
// Empty strings mean the base model and no salt.
type Identity struct {
	Adapter string
	Salt    string
}

// ExtraKeys returns vLLM's extra keys of block index of a chain: the adapter,
// then the salt in the first block only. Nil means none.
func (id Identity) ExtraKeys(index int) []string {
	var extra []string
	if id.Adapter != "" {
		extra = append(extra, id.Adapter)
	}
	if id.Salt != "" && index == 0 {
		extra = append(extra, id.Salt)
	}
	return extra
}

// Chainer yields the digest of one block after another. Parent is the digest
// of block index-1 and is not read for index 0.
type Chainer interface {
	Next(parent Digest, index int, tokens []uint32, id Identity) Digest
}

// VLLM is vLLM's sha256_cbor algorithm.
type VLLM struct{ root Digest }

// NewVLLM returns the chain of processes started with PYTHONHASHSEED=seed.
func NewVLLM(seed string) VLLM {
	return VLLM{root: sha256.Sum256(appendText(nil, seed))}
}

// NewVLLMRandom returns the chain of a process without PYTHONHASHSEED, whose
// root is random.
func NewVLLMRandom(root Digest) VLLM { return VLLM{root: root} }

// Next implements Chainer.
func (v VLLM) Next(parent Digest, index int, tokens []uint32, id Identity) Digest {
	if index == 0 {
		parent = v.root
	}
	var stack [512]byte
	buffer := appendHead(stack[:0], cborArray, 3)
	buffer = appendHead(buffer, cborBytes, uint64(len(parent)))
	buffer = append(buffer, parent[:]...)
	buffer = appendHead(buffer, cborArray, uint64(len(tokens)))
	for _, token := range tokens {
		buffer = appendHead(buffer, cborUint, uint64(token))
	}
	extra := id.ExtraKeys(index)
	if extra == nil {
		return sha256.Sum256(append(buffer, cborNull))
	}
	buffer = appendHead(buffer, cborArray, uint64(len(extra)))
	for _, text := range extra {
		buffer = appendText(buffer, text)
	}
	return sha256.Sum256(buffer)
}

// SGLang is SGLang's algorithm; it ignores the identity.
type SGLang struct{}

// Next implements Chainer.
func (SGLang) Next(parent Digest, index int, tokens []uint32, _ Identity) Digest {
	var stack [512]byte
	buffer := stack[:0]
	if index > 0 {
		buffer = append(buffer, parent[:]...)
	}
	for _, token := range tokens {
		buffer = binary.LittleEndian.AppendUint32(buffer, token)
	}
	return sha256.Sum256(buffer)
}

var (
	_ Chainer = VLLM{}
	_ Chainer = SGLang{}
)
