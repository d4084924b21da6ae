// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"errors"
	"math"

	"github.com/tinylib/msgp/msgp"
)

// ErrMalformedBatch is returned for a payload that is not one batch within
// the limits. Nothing of it may be applied.
var ErrMalformedBatch = errors.New("payload is not an event batch")

// Options of a Decoder.
type Options struct {
	// LoRAIDs names adapters that come as a number only, default none.
	LoRAIDs map[int64]string
}

// Decoder decodes batches and reuses its buffers. It is not safe for
// concurrent use.
type Decoder struct {
	options Options
	batch   Batch
	hashes  []uint64
	tokens  []uint32
	names   map[string]string
}

// NewDecoder returns a decoder.
func NewDecoder(options Options) *Decoder {
	return &Decoder{options: options, names: map[string]string{}}
}

// Buffers larger than this are not kept from one batch to the next.
const maxKeptElements = 1 << 20

// Decode reads one payload. The batch and all that hangs on it are valid until
// the next call.
func (d *Decoder) Decode(payload []byte) (*Batch, error) {
	d.reset()
	if len(payload) > maxPayloadBytes {
		return nil, ErrMalformedBatch
	}
	c := cursor{rest: payload}
	if c.next() == msgp.MapType {
		d.batchMap(&c)
	} else {
		d.batchArray(&c)
	}
	if c.bad || len(c.rest) > 0 {
		return nil, ErrMalformedBatch
	}
	return &d.batch, nil
}

// Rank reads only the rank a batch names. ok is false when it names none or
// cannot be read.
func Rank(payload []byte) (rank int64, ok bool) {
	c := cursor{rest: payload}
	if len(payload) > maxPayloadBytes || c.array() < 3 {
		return 0, false
	}
	c.skip(2)
	c.skip(2)
	if c.bad || c.takeNil() {
		return 0, false
	}
	rank = c.signed()
	return rank, !c.bad
}

func (d *Decoder) reset() {
	clear(d.batch.Events)
	d.batch = Batch{Events: d.batch.Events[:0]}
	if cap(d.batch.Events) > maxBatchEvents/16 {
		d.batch.Events = nil
	}
	d.hashes, d.tokens = d.hashes[:0], d.tokens[:0]
	if cap(d.hashes) > maxKeptElements {
		d.hashes = nil
	}
	if cap(d.tokens) > maxKeptElements {
		d.tokens = nil
	}
}

func (d *Decoder) batchArray(c *cursor) {
	n := c.array()
	if n < 2 {
		c.fail()
		return
	}
	d.timestamp(c)
	d.events(c)
	if n > 2 {
		d.rank(c)
	}
	for i := 3; i < n && !c.bad; i++ {
		d.unknownElement("batch", i)
		c.skip(2)
	}
}

func (d *Decoder) batchMap(c *cursor) {
	seen := 0
	for n := c.mapping(); n > 0 && !c.bad; n-- {
		name := c.text()
		bit := 0
		switch string(name) {
		case "ts":
			bit = 1
			d.timestamp(c)
		case "events":
			bit = 2
			d.events(c)
		case "data_parallel_rank":
			bit = 4
			d.rank(c)
		default:
			d.unknownField(name)
			c.skip(2)
		}
		if seen&bit != 0 {
			c.fail()
		}
		seen |= bit
	}
	if seen&2 == 0 {
		c.fail()
	}
}

// timestamp reads float seconds, or integer seconds or milliseconds. Whatever
// is not a time the session can use becomes 0.
func (d *Decoder) timestamp(c *cursor) {
	const millisFrom, maxSeconds = 1e11, 1e11
	var seconds float64
	var err error
	switch c.next() {
	case msgp.Float64Type:
		seconds, c.rest, err = msgp.ReadFloat64Bytes(c.rest)
	case msgp.Float32Type:
		var short float32
		short, c.rest, err = msgp.ReadFloat32Bytes(c.rest)
		seconds = float64(short)
	case msgp.NilType:
		c.takeNil()
	default:
		value, negative := c.integer()
		switch {
		case negative:
		case value > millisFrom:
			seconds = float64(value) / 1000
		default:
			seconds = float64(value)
		}
	}
	if err != nil {
		c.fail()
	}
	if seconds > 0 && seconds < maxSeconds {
		d.batch.TimestampMicros = int64(math.Round(seconds * 1e6))
	}
}

func (d *Decoder) rank(c *cursor) {
	if !c.takeNil() {
		d.batch.Rank, d.batch.HasRank = c.signed(), true
	}
}

func (d *Decoder) events(c *cursor) {
	n := c.array()
	if n > maxBatchEvents {
		c.fail()
	}
	for ; n > 0 && !c.bad; n-- {
		d.batch.Events = append(d.batch.Events, Event{})
		d.event(c, &d.batch.Events[len(d.batch.Events)-1])
	}
}

// event decodes the next event. When that fails, the event is marked malformed
// and passed over, which fails in turn only if the framing is broken.
func (d *Decoder) event(c *cursor, e *Event) {
	attempt := *c
	hashes, tokens := len(d.hashes), len(d.tokens)
	d.decodeEvent(&attempt, e)
	if !attempt.bad {
		*c = attempt
		return
	}
	kind := e.Kind
	if kind == "" {
		kind = KindUnknown
	}
	*e = Event{Kind: kind, Reason: ReasonMalformed}
	d.hashes, d.tokens = d.hashes[:hashes], d.tokens[:tokens]
	c.skip(eventDepth)
}

// text returns value as a string and remembers short ones, since engines
// repeat few words.
func (d *Decoder) text(value []byte) string {
	const maxNames, maxNameBytes = 1024, 128
	if name, ok := d.names[string(value)]; ok {
		return name
	}
	name := string(value)
	if len(d.names) < maxNames && len(name) <= maxNameBytes {
		d.names[name] = name
	}
	return name
}
