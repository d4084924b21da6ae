// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
)

// NoRank leaves the rank of a batch nil.
const NoRank = -1

const fullAttention = "full_attention"

// Encoder writes batches of one engine rank.
type Encoder struct {
	Shape Shape
	// ByteHashes sends whole digests instead of integers.
	ByteHashes bool
	// Rank is the data-parallel rank, or NoRank.
	Rank int
}

// Append appends one batch and returns dst. Seconds is the batch's Unix time.
func (e Encoder) Append(dst []byte, seconds float64, events []Event) []byte {
	events = e.split(events)
	elements := uint32(3)
	if e.Shape.noRank {
		elements = 2
	}
	dst = msgp.AppendArrayHeader(dst, elements)
	dst = msgp.AppendFloat64(dst, seconds)
	dst = msgp.AppendArrayHeader(dst, uint32(len(events)))
	for i := range events {
		if e.Shape.fields > 0 {
			dst = e.appendArray(dst, &events[i])
		} else {
			dst = e.appendMap(dst, &events[i])
		}
	}
	switch {
	case e.Shape.noRank:
		return dst
	case e.Rank < 0:
		return msgp.AppendNil(dst)
	default:
		return appendInt(dst, int64(e.Rank))
	}
}

// split cuts stored events into single blocks for shapes that send them so.
func (e Encoder) split(events []Event) []Event {
	if !e.Shape.perBlock {
		return events
	}
	var single []Event
	for _, event := range events {
		if event.Kind != Stored || len(event.Hashes) < 2 {
			single = append(single, event)
			continue
		}
		for i := range event.Hashes {
			one := event
			one.Hashes = event.Hashes[i : i+1]
			one.Tokens = event.Tokens[i*event.BlockSize:][:event.BlockSize]
			one.FirstIndex = event.FirstIndex + i
			if i > 0 {
				one.Parent = &event.Hashes[i-1]
			}
			single = append(single, one)
		}
	}
	return single
}

func (e Encoder) appendArray(dst []byte, event *Event) []byte {
	switch event.Kind {
	case Cleared:
		return msgp.AppendString(msgp.AppendArrayHeader(dst, 1), "AllBlocksCleared")
	case Removed:
		return e.appendRemovedArray(dst, event)
	default:
		return e.appendStoredArray(dst, event)
	}
}

func (e Encoder) appendRemovedArray(dst []byte, event *Event) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(1+e.Shape.removed))
	dst = msgp.AppendString(dst, "BlockRemoved")
	dst = e.appendHashes(dst, event.Hashes)
	if e.Shape.removed > 1 {
		dst = msgp.AppendString(dst, event.medium())
	}
	if e.Shape.removed > 2 {
		dst = appendInt(dst, 0)
	}
	return dst
}

func (e Encoder) appendStoredArray(dst []byte, event *Event) []byte {
	fields := e.Shape.fields
	salted := e.Shape.metadata && event.Identity.Salt != ""
	elements := uint32(1 + fields)
	if salted {
		elements++
	}
	dst = msgp.AppendArrayHeader(dst, elements)
	dst = msgp.AppendString(dst, "BlockStored")
	dst = e.appendHashes(dst, event.Hashes)
	dst = e.appendParent(dst, event)
	dst = appendTokens(dst, event.Tokens)
	dst = appendInt(dst, int64(event.BlockSize))
	dst = e.appendAdapterID(dst, event)
	tail := []func([]byte) []byte{
		func(dst []byte) []byte { return msgp.AppendString(dst, event.medium()) },
		func(dst []byte) []byte { return appendName(dst, event.Identity.Adapter) },
		func(dst []byte) []byte { return appendExtraKeys(dst, event) },
		func(dst []byte) []byte { return appendInt(dst, 0) },
		func(dst []byte) []byte { return appendSpecKind(dst, event) },
		msgp.AppendNil, // sliding window
	}
	for _, write := range tail[:fields-5] {
		dst = write(dst)
	}
	if salted {
		dst = msgp.AppendMapHeader(dst, 1)
		dst = msgp.AppendString(msgp.AppendString(dst, "cache_salt"), event.Identity.Salt)
	}
	return dst
}

func (e Encoder) appendMap(dst []byte, event *Event) []byte {
	switch event.Kind {
	case Cleared:
		return msgp.AppendString(msgp.AppendString(msgp.AppendMapHeader(dst, 1), "type"), "AllBlocksCleared")
	case Removed:
		return e.appendRemovedMap(dst, event)
	default:
		return e.appendStoredMap(dst, event)
	}
}

func (e Encoder) appendRemovedMap(dst []byte, event *Event) []byte {
	keys := uint32(3)
	if e.Shape.groupDetails {
		keys++
	}
	dst = msgp.AppendMapHeader(dst, keys)
	dst = msgp.AppendString(msgp.AppendString(dst, "type"), "BlockRemoved")
	dst = e.appendHashes(msgp.AppendString(dst, "block_hashes"), event.Hashes)
	dst = msgp.AppendString(msgp.AppendString(dst, "medium"), event.medium())
	if e.Shape.groupDetails {
		dst = appendInt(msgp.AppendString(dst, "group_idx"), 0)
	}
	return dst
}

func (e Encoder) appendStoredMap(dst []byte, event *Event) []byte {
	salted := e.Shape.metadata && event.Identity.Salt != ""
	keys := uint32(7)
	if !e.Shape.sglang {
		keys++
	}
	placeholder := len(event.Tokens) == 0
	if e.Shape.groupDetails {
		keys++
		if !placeholder {
			keys += 2
		}
	}
	if salted {
		keys++
	}
	dst = msgp.AppendMapHeader(dst, keys)
	dst = msgp.AppendString(msgp.AppendString(dst, "type"), "BlockStored")
	dst = e.appendHashes(msgp.AppendString(dst, "block_hashes"), event.Hashes)
	dst = e.appendParent(msgp.AppendString(dst, "parent_block_hash"), event)
	dst = appendTokens(msgp.AppendString(dst, "token_ids"), event.Tokens)
	dst = appendInt(msgp.AppendString(dst, "block_size"), int64(event.BlockSize))
	dst = e.appendAdapterID(msgp.AppendString(dst, "lora_id"), event)
	dst = msgp.AppendString(msgp.AppendString(dst, "medium"), event.medium())
	if !e.Shape.sglang {
		dst = appendName(msgp.AppendString(dst, "lora_name"), event.Identity.Adapter)
	}
	if e.Shape.groupDetails {
		if !placeholder {
			dst = appendExtraKeys(msgp.AppendString(dst, "extra_keys"), event)
		}
		dst = appendInt(msgp.AppendString(dst, "group_idx"), 0)
		if !placeholder {
			dst = msgp.AppendString(msgp.AppendString(dst, "kv_cache_spec_kind"), fullAttention)
		}
	}
	if salted {
		dst = msgp.AppendString(msgp.AppendString(dst, "cache_salt"), event.Identity.Salt)
	}
	return dst
}

func (e Encoder) appendHashes(dst []byte, hashes []blockhash.Digest) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(hashes)))
	for i := range hashes {
		dst = e.appendHash(dst, hashes[i])
	}
	return dst
}

func (e Encoder) appendParent(dst []byte, event *Event) []byte {
	if event.Parent == nil {
		return msgp.AppendNil(dst)
	}
	return e.appendHash(dst, *event.Parent)
}

func (e Encoder) appendHash(dst []byte, digest blockhash.Digest) []byte {
	switch {
	case e.ByteHashes:
		return msgp.AppendBytes(dst, digest[:])
	case e.Shape.firstBytes:
		return appendInt(dst, digest.Int64())
	case e.Shape.signed:
		return appendInt(dst, int64(digest.Uint64()))
	default:
		return msgp.AppendUint64(dst, digest.Uint64())
	}
}

func (e Encoder) appendAdapterID(dst []byte, event *Event) []byte {
	if event.Identity.Adapter == "" || e.Shape.sglang {
		return msgp.AppendNil(dst)
	}
	return appendInt(dst, int64(event.AdapterID))
}

func appendTokens(dst []byte, tokens []uint32) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(tokens)))
	for _, token := range tokens {
		dst = msgp.AppendUint64(dst, uint64(token))
	}
	return dst
}

func appendName(dst []byte, name string) []byte {
	if name == "" {
		return msgp.AppendNil(dst)
	}
	return msgp.AppendString(dst, name)
}

// appendExtraKeys appends one entry a hash: nil or a list.
func appendExtraKeys(dst []byte, event *Event) []byte {
	if len(event.Tokens) == 0 {
		return msgp.AppendNil(dst)
	}
	dst = msgp.AppendArrayHeader(dst, uint32(len(event.Hashes)))
	for i := range event.Hashes {
		extra := event.Identity.ExtraKeys(event.FirstIndex + i)
		if extra == nil {
			dst = msgp.AppendNil(dst)
			continue
		}
		dst = msgp.AppendArrayHeader(dst, uint32(len(extra)))
		for _, text := range extra {
			dst = msgp.AppendString(dst, text)
		}
	}
	return dst
}

func appendSpecKind(dst []byte, event *Event) []byte {
	if len(event.Tokens) == 0 {
		return msgp.AppendNil(dst)
	}
	return msgp.AppendString(dst, fullAttention)
}

// appendInt appends an integer in its shortest form, as msgspec does.
func appendInt(dst []byte, value int64) []byte {
	if value >= 0 {
		return msgp.AppendUint64(dst, uint64(value))
	}
	return msgp.AppendInt64(dst, value)
}
