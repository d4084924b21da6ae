// SPDX-License-Identifier: Apache-2.0

package index

// A holder set says who holds a key, since when and in which tier. Keys with
// equal holders share one set: blocks of a chain that came in one update and
// were kept by the same replicas differ in nothing but their key. Sets are
// immutable to readers; a change moves the key to another set.
//
// Layout of a set in an arena, in words:
//
//	 0  holders:16 | flags:16                        read by readers
//	 1  keys:32 | live holders:16 | marks:16         writer's, from here on
//	 2  log block:32 | log capacity:32
//	 3  log start:32 | log end:32
//	 4  expiry queue: second
//	 5                next:32 | prev:32
//	 6  7  cap queue
//	 8  9  quota queue
//	10  holder 0: slot:14 | tier:3 | last seen:47    sorted by slot; readers
//	 .  ...
//	    counts, two a word                           if flagCounted
//	    tokens, two a word                           if flagTokens
//
// The log lists the words of the keys that were moved to the set, in that
// order, from start to end. It may name keys that left; it names all that did
// not.
const (
	wordShape  = 0
	wordKeys   = 1
	wordLog    = 2
	wordSpan   = 3
	wordExpiry = 4
	wordCap    = 6
	wordQuota  = 8
	setHeader  = 10
)

// Flags of a set.
const (
	// flagCounted: holders have LFU counts, at least one above 0.
	flagCounted = 1 << 0
	// flagTokens: holders stored different token counts; else all stored
	// what the key's entry says.
	flagTokens = 1 << 1
	// flagLong: the keys of the set are in the table of long keys.
	flagLong = 1 << 2
)

// Marks of a set.
const (
	// markPending: no key was left at some point of the running write.
	markPending = 1 << 0
	// markSorted: the log is sorted and names only keys of the set.
	markSorted = 1 << 1
	// markBloated: the log is due for clean-up.
	markBloated = 1 << 2
)

// maxShared bounds the keys of one set, so that steps on a set are bounded.
const maxShared = 1024

// Bits of a holder.
const (
	seenBits   = 47
	tierBits   = 3
	slotShift  = seenBits + tierBits
	seenMask   = 1<<seenBits - 1
	tierMask   = 1<<tierBits - 1
	maxSlots   = 1 << (64 - slotShift)
	maxSeen    = 1<<43 - 1 // the year 2248; a second then takes secondBits
	secondBits = 34
	noSecond   = int64(1)<<62 - 1
	maxCredits = 1<<28 - 1
)

// holder packs one replica's hold: slot, tier and last seen.
type holder uint64

func packHolder(slot uint16, tier Tier, seen int64) holder {
	return holder(uint64(slot)<<slotShift | uint64(tier&tierMask)<<seenBits | uint64(seen))
}

func (h holder) slot() uint16 { return uint16(h >> slotShift) }
func (h holder) tier() Tier   { return Tier(h >> seenBits & tierMask) }
func (h holder) seen() int64  { return int64(h & seenMask) }

// clampSeen keeps a time inside what a holder can store.
func clampSeen(millis int64) int64 { return min(max(millis, 0), maxSeen) }

// holding is a holder with what few sets store.
type holding struct {
	holder
	count  uint32
	tokens int32
}

// record is a set's words, followed by others.
type record []uint64

func (r record) holders() int { return int(r[wordShape] & 0xffff) }
func (r record) flags() int   { return int(r[wordShape] >> 16 & 0xffff) }

func (r record) holder(i int) holder { return holder(r[setHeader+i]) }

// list returns the holders as words.
func (r record) list() []uint64 { return r[setHeader : setHeader+r.holders()] }

// pair reads value i of a list of two a word.
func (r record) pair(at, i int) uint32 { return uint32(r[at+i/2] >> (32 * (i & 1))) }

func (r record) setPair(at, i int, v uint32) {
	shift := 32 * (i & 1)
	r[at+i/2] = r[at+i/2]&^(0xffffffff<<shift) | uint64(v)<<shift
}

func (r record) count(i int) uint32 {
	if r.flags()&flagCounted == 0 {
		return 0
	}
	return r.pair(setHeader+r.holders(), i)
}

// tokens returns what holder i stored for a key whose entry says plain.
func (r record) tokens(i int, plain int32) int32 {
	flags := r.flags()
	if flags&flagTokens == 0 {
		return plain
	}
	at := setHeader + r.holders()
	if flags&flagCounted != 0 {
		at += (r.holders() + 1) / 2
	}
	return int32(r.pair(at, i))
}

// find returns the position of a slot, or -1.
func (r record) find(slot uint16) int {
	list := r.list()
	lo, hi := 0, len(list)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if holder(list[mid]).slot() < slot {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(list) && holder(list[lo]).slot() == slot {
		return lo
	}
	return -1
}

// setWords returns the size of a set.
func setWords(holders, flags int) int {
	words := setHeader + holders
	if flags&flagCounted != 0 {
		words += (holders + 1) / 2
	}
	if flags&flagTokens != 0 {
		words += (holders + 1) / 2
	}
	return words
}

func (r record) size() int { return setWords(r.holders(), r.flags()) }

func (r record) keys() uint32 { return uint32(r[wordKeys]) }
func (r record) addKeys(n int) {
	r[wordKeys] = r[wordKeys]&^0xffffffff | uint64(uint32(int(r.keys())+n))
}
func (r record) live() int         { return int(r[wordKeys] >> 32 & 0xffff) }
func (r record) setLive(n int)     { r[wordKeys] = r[wordKeys]&^(0xffff<<32) | uint64(n)<<32 }
func (r record) marked(m int) bool { return r[wordKeys]>>48&uint64(m) != 0 }
func (r record) mark(m int)        { r[wordKeys] |= uint64(m) << 48 }
func (r record) unmark(m int)      { r[wordKeys] &^= uint64(m) << 48 }

func (r record) log() (block uint32, capacity int) {
	return uint32(r[wordLog]), int(r[wordLog] >> 32)
}
func (r record) setLog(block uint32, capacity int) {
	r[wordLog] = uint64(capacity)<<32 | uint64(block)
}
func (r record) span() (start, end int) { return int(uint32(r[wordSpan])), int(r[wordSpan] >> 32) }
func (r record) setSpan(start, end int) { r[wordSpan] = uint64(end)<<32 | uint64(start) }

// encode writes holdings, sorted by slot, as a fresh set of the given flags.
func (r record) encode(hs []holding, flags int) {
	clear(r[:setWords(len(hs), flags)])
	r[wordShape] = uint64(flags)<<16 | uint64(len(hs))
	at := setHeader + len(hs)
	for i, h := range hs {
		r[setHeader+i] = uint64(h.holder)
	}
	if flags&flagCounted != 0 {
		for i, h := range hs {
			r.setPair(at, i, h.count)
		}
		at += (len(hs) + 1) / 2
	}
	if flags&flagTokens != 0 {
		for i, h := range hs {
			r.setPair(at, i, uint32(h.tokens))
		}
	}
}

// equals says whether the set is what encode would write.
func (r record) equals(hs []holding, flags int) bool {
	if r.holders() != len(hs) || r.flags() != flags {
		return false
	}
	for i, h := range hs {
		if r.holder(i) != h.holder ||
			flags&flagCounted != 0 && r.count(i) != h.count ||
			flags&flagTokens != 0 && r.tokens(i, 0) != h.tokens {
			return false
		}
	}
	return true
}

// shapeOf returns the flags that holdings need.
func shapeOf(hs []holding) (flags int) {
	for _, h := range hs {
		if h.count != 0 {
			flags |= flagCounted
		}
		if h.tokens != hs[0].tokens {
			flags |= flagTokens
		}
	}
	return flags
}

// contentHash identifies a set by content; seed keeps it unpredictable.
func contentHash(seed uint64, hs []holding, flags int) uint64 {
	h := seed ^ uint64(flags)
	for _, x := range hs {
		h = (h ^ uint64(x.holder)) * 0x9e3779b97f4a7c15
		h ^= h >> 29
		if flags&flagCounted != 0 {
			h = (h ^ uint64(x.count)) * 0xd6e8feb86659fd93
		}
		if flags&flagTokens != 0 {
			h = (h ^ uint64(uint32(x.tokens))) * 0xd6e8feb86659fd93
		}
	}
	return h ^ h>>32
}
