// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"math"
	"slices"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// judge completes an event whose fields are all read: derived values, and the
// first reason it cannot be used. It fails c when a needed field is missing.
func (d *Decoder) judge(c *cursor, e *Event, r *draft) {
	has := func(f field) bool { return r.seen&(1<<f) != 0 }
	if !has(fieldHashes) || e.Kind == KindStored && len(e.Tokens) > 0 && !has(fieldParent) {
		c.fail()
		return
	}
	e.Tier = tierOf(e.Medium)
	if e.Tier == TierNone {
		e.Reason = ReasonUnknownMedium
	}
	// Only what is known to be on this replica is a holding.
	if e.Locality != "" && !strings.EqualFold(e.Locality, "LOCAL") {
		e.Reason = ReasonNonLocal
	}
	if dense, stated := e.Dense(); stated && !dense && e.Reason == ReasonNone {
		e.Reason = ReasonNonMainGroup
	}
	reason := ReasonNone
	if e.Kind == KindStored && len(e.Hashes) > 0 && !e.Placeholder() {
		reason = d.judgeStore(c, e, r)
	}
	if e.Reason == ReasonNone {
		e.Reason = reason
	}
}

func (d *Decoder) judgeStore(c *cursor, e *Event, r *draft) Reason {
	if r.hasText {
		return ReasonMultimodalTokens
	}
	if len(e.Tokens) != len(e.Hashes)*e.BlockSize {
		return ReasonUnaligned
	}
	if !d.resolveAdapter(e) {
		return ReasonUnmappedLoRA
	}
	keys := cursor{rest: r.extraKeys}
	ok := r.extraKeys == nil || d.extraKeys(&keys, e)
	if keys.bad {
		c.fail()
	}
	if !ok || r.mmKeys {
		return ReasonExtraKey
	}
	if e.HasParent && slices.Contains(e.Hashes, e.Parent) {
		return ReasonSelfParent
	}
	return ReasonNone
}

func tierOf(medium string) Tier {
	switch strings.ToUpper(medium) {
	case "", "GPU":
		return TierT1
	case "CPU", "CPU_PINNED":
		return TierT2
	case "DISK", "STORAGE", "FS", "OBJ", "EXTERNAL":
		return TierT3
	default:
		return TierNone
	}
}

// resolveAdapter names the adapter. It fails closed: a number without a name
// could be any.
func (d *Decoder) resolveAdapter(e *Event) bool {
	switch {
	case e.LoRAName != "":
		e.Adapter = e.LoRAName
	case e.HasLoRAID:
		e.Adapter = d.options.LoRAIDs[e.LoRAID]
		return e.Adapter != ""
	}
	return true
}

// extraKeys reads one entry per hash. It reports false for anything whose
// meaning is not known: a false hit is worse than a miss.
func (d *Decoder) extraKeys(c *cursor, e *Event) bool {
	if c.next() != msgp.ArrayType || c.array() != len(e.Hashes) {
		return false
	}
	for block := range e.Hashes {
		if c.takeNil() {
			continue
		}
		if c.next() != msgp.ArrayType || !d.extraKeysOf(c, e, block) {
			return false
		}
	}
	return !c.bad
}

// extraKeysOf reads the entry of one block: the adapter's name first, then
// identifiers of multimodal inputs, the salt, and hashes of prompt embeddings.
func (d *Decoder) extraKeysOf(c *cursor, e *Event, block int) bool {
	salted := false
	n := c.array()
	for i := range n {
		switch c.next() {
		case msgp.StrType:
			text := d.text(c.text())
			if i == 0 && e.Adapter != "" && text == e.Adapter {
				continue
			}
			if salted || block > 0 || e.HasParent || !e.saltedBy(text) {
				return false
			}
			salted = true
		case msgp.ArrayType:
			identifier, ok := multimodalPair(c)
			if !ok {
				return false
			}
			e.identify(block, identifier)
		case msgp.BinType:
			e.identify(block, fingerprint.Identifier{ID: string(c.binary()), Offset: math.MinInt64})
		default:
			return false
		}
	}
	return !c.bad
}

// saltedBy sets the salt from the extra keys, which must not contradict one
// that is stated elsewhere.
func (e *Event) saltedBy(salt string) bool {
	if salt == "" || e.SaltStated && e.Salt != salt {
		return false
	}
	e.Salt = salt
	return true
}

// multimodalPair reads an identifier and its offset.
func multimodalPair(c *cursor) (identifier fingerprint.Identifier, ok bool) {
	if c.array() != 2 || c.next() != msgp.StrType {
		return identifier, false
	}
	identifier.ID = string(c.text())
	if kind := c.next(); kind != msgp.IntType && kind != msgp.UintType {
		return identifier, false
	}
	identifier.Offset = c.signed()
	return identifier, !c.bad
}

func (e *Event) identify(block int, identifier fingerprint.Identifier) {
	if e.Multimodal == nil {
		e.Multimodal = make([][]fingerprint.Identifier, len(e.Hashes))
	}
	e.Multimodal[block] = append(e.Multimodal[block], identifier)
}
