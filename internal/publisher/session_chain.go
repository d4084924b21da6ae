// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"math"

	"github.com/inferencecache/inference-cache/internal/kvevents"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// storedRun is a store whose tokens are reduced to content hashes.
type storedRun struct {
	hashes, contents []uint64
	multimodal       [][]fingerprint.Identifier
	// gone marks blocks that were removed while the run was parked.
	gone      []bool
	parent    uint64
	hasParent bool
	// root is what a chain starts from; salt tells blocks apart whose hash
	// ignores it.
	root      fingerprint.Parent
	salt      uint64
	blockSize int32
	adapter   uint16
	group     int32
	tier      kvevents.Tier
}

// chain computes the keys of a run and adds its blocks. It asks to park the
// run when the parent is unknown: it is never taken for the start of a chain.
func (s *Session) chain(r *storedRun) outcome {
	parent, at, withdrawn := r.root, place{}, false
	if r.hasParent {
		b, other := s.mirror.find(r.parent, r.salt, r.adapter)
		switch {
		case b == nil && other:
			return skip(kvevents.ReasonPartitionMismatch)
		case b == nil:
			return outcome{verb: outcomePark, why: string(kvevents.ReasonUnknownParent)}
		}
		parent = fingerprint.Child(b.key)
		at = place{key: b.key, tokens: b.tokens}
		withdrawn = b.flags&flagWithdrawn != 0
	}
	if int64(at.tokens)+int64(len(r.hashes))*int64(r.blockSize) > math.MaxInt32 {
		return skip(kvevents.ReasonMalformed)
	}
	for i, hash := range r.hashes {
		if r.multimodal != nil {
			parent = fingerprint.MultimodalParent(parent, r.multimodal[i])
		}
		key := fingerprint.Next(parent, r.contents[i])
		at = place{
			key: key, parentKey: at.key, hasParent: i > 0 || r.hasParent,
			tokens: at.tokens + r.blockSize,
		}
		parent = fingerprint.Child(key)
		withdrawn = withdrawn || s.mirror.isWithdrawn(node{r.adapter, key})
		if r.gone == nil || !r.gone[i] {
			id := identity{hash: hash, salt: r.salt, group: r.group, adapter: r.adapter}
			b := s.mirror.add(id, at, r.tier, withdrawn)
			withdrawn = withdrawn || s.hidden(r, b)
		}
	}
	if withdrawn {
		return skip(kvevents.ReasonHiddenIdentity)
	}
	return outcome{verb: outcomeIndex}
}

// hidden counts a block that is held under another hash already, and reports
// whether it was withdrawn for that.
func (s *Session) hidden(r *storedRun, b *block) bool {
	// SGLang's hash ignores salts, so it says nothing about them.
	if r.tier != kvevents.TierT1 || s.config.Scheme == "sglang" || !s.mirror.otherHash(b) {
		return false
	}
	s.tally.hidden++
	if s.config.HiddenIdentity != HiddenIdentityWithdraw {
		return false
	}
	s.mirror.withdraw(node{b.adapter, b.key})
	return true
}
