// SPDX-License-Identifier: Apache-2.0

package index

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// mixer turns keys of eight bytes into words that look random, and back: a
// table needs no other hash of a word, and nothing but the word to give the
// key back. The secret numbers keep a producer from choosing collisions.
type mixer struct {
	secret, a, b       uint64
	inverseA, inverseB uint64
}

// newMixer derives the secret numbers from a seed.
func newMixer(seed uint64) mixer {
	m := mixer{secret: scramble(seed), a: scramble(seed+1) | 1, b: scramble(seed+2) | 1}
	m.inverseA, m.inverseB = inverse(m.a), inverse(m.b)
	return m
}

// scramble is one step of splitmix64.
func scramble(x uint64) uint64 {
	x = (x + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// inverse returns the number that undoes a multiplication by an odd one.
func inverse(odd uint64) uint64 {
	x := odd // right in the lowest 3 bits; each step doubles them
	for range 5 {
		x *= 2 - odd*x
	}
	return x
}

func (m *mixer) word(key uint64) uint64 {
	x := (key ^ m.secret) * m.a
	return (x ^ x>>32) * m.b
}

func (m *mixer) key(word uint64) uint64 {
	x := word * m.inverseB
	return (x^x>>32)*m.inverseA ^ m.secret
}

// wordOfName hashes a long key. The seed, unknown outside, goes in first.
func (x *Index) wordOfName(name []byte) uint64 {
	var buf [MaxKeyBytes + 8]byte
	binary.LittleEndian.PutUint64(buf[:], x.seed)
	n := copy(buf[8:], name)
	return xxhash.Sum64(buf[:8+n])
}

// bytesOf returns the bytes of the key of eight bytes behind a word.
func (x *Index) bytesOf(word uint64) []byte {
	return binary.BigEndian.AppendUint64(nil, x.mixer.key(word))
}
