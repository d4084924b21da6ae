// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/inferencecache/inference-cache/internal/routing"
)

const (
	// chunkBytes of a prompt's text are one key where there are no token ids;
	// chunkTokens is what they are estimated at.
	chunkBytes  = 256
	chunkTokens = chunkBytes / 4
	// maxChunks bounds the keys of one text.
	maxChunks = 4096
)

// scopeKey tells apart requests whose equal prompts mean different blocks.
func (x *exchange) scopeKey() uint64 {
	h := xxh3.New()
	for _, part := range []string{x.partition(), x.model.base, x.model.adapter, x.fields.salt} {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		_, _ = h.WriteString(part)
	}
	return h.Sum64()
}

// tokenChain is the prompt as the gateway remembers it by its block keys.
func (x *exchange) tokenChain(keys []uint64, blockSize int) routing.Chain {
	scope := x.scopeKey()
	own := make([]uint64, len(keys))
	for i, key := range keys {
		own[i] = key ^ scope
	}
	return routing.Chain{Keys: own, KeyTokens: blockSize}
}

// textChain is the prompt as the gateway remembers it without token ids: by
// pieces of its JSON text.
func (x *exchange) textChain() routing.Chain {
	text, others := x.prompt.Text()
	h := xxh3.New()
	_, _ = h.Write(binary.BigEndian.AppendUint64([]byte("text"), x.scopeKey()))
	for _, other := range others {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(other))))
		_, _ = h.Write(other)
	}
	key := h.Sum64()
	keys := make([]uint64, 0, min(len(text)/chunkBytes, maxChunks))
	var piece [8 + chunkBytes]byte
	for len(text) >= chunkBytes && len(keys) < maxChunks {
		binary.BigEndian.PutUint64(piece[:], key)
		copy(piece[8:], text[:chunkBytes])
		key = xxh3.Hash(piece[:])
		keys, text = append(keys, key), text[chunkBytes:]
	}
	return routing.Chain{Keys: keys, KeyTokens: chunkTokens, Text: true}
}
