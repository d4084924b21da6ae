// SPDX-License-Identifier: Apache-2.0

// Package fingerprint turns token ids into a chain of block keys.
//
// A prompt is cut into full blocks. Each block's content is hashed, and each
// key hashes the key before it together with that content, so equal keys mean
// equal history. Every hash is XXH3-64 with Seed. Keys never depend on tenant,
// model or adapter; a cache salt or an image only chooses the parent a run
// starts from. All keys are compared inside one hash scheme only.
package fingerprint

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Seed is the XXH3 seed of every hash in this package.
const Seed = 1337

// KeyBytes is the length of a key on the wire.
const KeyBytes = 8

const (
	saltMarker       = "inferencecache.io/salt/v1\n"
	multimodalMarker = "inferencecache.io/mm/v1\n"
)

// Parent is what a chain continues from. The zero value starts a chain at
// token 0 without salt.
type Parent struct {
	Key     uint64
	Present bool
}

// Child returns the parent that makes a chain continue after key.
func Child(key uint64) Parent { return Parent{Key: key, Present: true} }

// Append appends the keys of all full blocks of tokens to dst and returns it.
// A tail shorter than blockSize tokens is dropped; blockSize <= 0 yields
// nothing. It does not allocate when dst has room for the keys and blockSize
// is at most 1024.
func Append(dst []uint64, parent Parent, tokens []uint32, blockSize int) []uint64 {
	if blockSize <= 0 {
		return dst
	}
	for len(tokens) >= blockSize {
		key := Next(parent, Content(tokens[:blockSize]))
		dst = append(dst, key)
		parent = Child(key)
		tokens = tokens[blockSize:]
	}
	return dst
}

// Content hashes one block: its tokens as 4-byte little-endian integers.
func Content(block []uint32) uint64 {
	const stackTokens = 1024
	if len(block) > stackTokens {
		return xxh3.HashSeed(appendTokens(make([]byte, 0, 4*len(block)), block), Seed)
	}
	var buffer [4 * stackTokens]byte
	return xxh3.HashSeed(appendTokens(buffer[:0], block), Seed)
}

// Next returns the key of a block with the given content after parent.
func Next(parent Parent, content uint64) uint64 {
	if !parent.Present {
		return content
	}
	return pair(parent.Key, content)
}

// SaltParent returns the parent of a chain whose request carries a cache
// salt. An empty salt is no salt.
func SaltParent(salt string) Parent {
	if salt == "" {
		return Parent{}
	}
	return Child(xxh3.HashStringSeed(saltMarker+salt, Seed))
}

// Identifier names one multimodal input that touches a block. Offset is its
// start relative to the block's first token and may be negative.
type Identifier struct {
	ID     string
	Offset int64
}

// MultimodalParent returns the parent of a block with multimodal inputs, given
// the parent it would have without them. Without identifiers it is parent.
func MultimodalParent(parent Parent, identifiers []Identifier) Parent {
	if len(identifiers) == 0 {
		return parent
	}
	buffer := append(make([]byte, 0, 128), multimodalMarker...)
	for _, identifier := range identifiers {
		buffer = binary.LittleEndian.AppendUint32(buffer, uint32(len(identifier.ID)))
		buffer = append(buffer, identifier.ID...)
		buffer = binary.LittleEndian.AppendUint64(buffer, uint64(identifier.Offset))
	}
	return Child(pair(parent.Key, xxh3.HashSeed(buffer, Seed)))
}

// AppendWire appends the contract's form of a key: 8 bytes, big-endian.
func AppendWire(dst []byte, key uint64) []byte {
	return binary.BigEndian.AppendUint64(dst, key)
}

// Wire returns the contract's form of all keys. The slices share one array.
func Wire(keys []uint64) [][]byte {
	flat := make([]byte, 0, KeyBytes*len(keys))
	hashes := make([][]byte, len(keys))
	for i, key := range keys {
		flat = AppendWire(flat, key)
		hashes[i] = flat[KeyBytes*i : KeyBytes*(i+1) : KeyBytes*(i+1)]
	}
	return hashes
}

func pair(first, second uint64) uint64 {
	var buffer [16]byte
	binary.LittleEndian.PutUint64(buffer[:8], first)
	binary.LittleEndian.PutUint64(buffer[8:], second)
	return xxh3.HashSeed(buffer[:], Seed)
}

func appendTokens(dst []byte, tokens []uint32) []byte {
	for _, token := range tokens {
		dst = binary.LittleEndian.AppendUint32(dst, token)
	}
	return dst
}
