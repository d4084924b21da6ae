// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// NewID returns a version 7 UUID: milliseconds, then random bits.
func NewID(now time.Time) string {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], uint64(now.UnixMilli())<<16)
	_, _ = rand.Read(id[6:]) // never fails
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	var text [36]byte
	hex.Encode(text[:8], id[:4])
	hex.Encode(text[9:13], id[4:6])
	hex.Encode(text[14:18], id[6:8])
	hex.Encode(text[19:23], id[8:10])
	hex.Encode(text[24:], id[10:])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

// hashedNameBytes of the hash stand for a replica.
const hashedNameBytes = 4

// hashName hides a replica's name behind a keyed hash.
func hashName(key []byte, name string) string {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(name)) // never fails
	return hex.EncodeToString(mac.Sum(nil)[:hashedNameBytes])
}

// renamed returns a copy of a record in which the replicas have other names.
func (r *Record) renamed(name func(Text) Text) *Record {
	out := *r
	choices := func(in []Choice) []Choice {
		renamed := make([]Choice, len(in))
		for i := range in {
			renamed[i] = in[i].renamed(name)
		}
		return renamed
	}
	switch {
	case r.Dispatch != nil:
		body := *r.Dispatch
		body.Selections = choices(body.Selections)
		out.Dispatch = &body
	case r.Failure != nil:
		body := *r.Failure
		body.Selections = choices(body.Selections)
		out.Failure = &body
	case r.Outcome != nil:
		body := *r.Outcome
		body.Replica = name(body.Replica)
		out.Outcome = &body
	}
	return &out
}

func (c Choice) renamed(name func(Text) Text) Choice {
	c.Replica = name(c.Replica)
	c.Candidates = append(make([]Candidate, 0, len(c.Candidates)), c.Candidates...)
	for i := range c.Candidates {
		c.Candidates[i].Replica = name(c.Candidates[i].Replica)
	}
	c.Gates = append(make([]Gate, 0, len(c.Gates)), c.Gates...)
	for i := range c.Gates {
		c.Gates[i].Replica = name(c.Gates[i].Replica)
	}
	c.Scores = append(make([]Score, 0, len(c.Scores)), c.Scores...)
	for i := range c.Scores {
		c.Scores[i].Replica = name(c.Scores[i].Replica)
	}
	return c
}
