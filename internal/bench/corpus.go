// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
)

// Header says how a corpus was made.
type Header struct {
	Source     string `json:"source"`
	Seed       uint64 `json:"seed"`
	Replicas   int    `json:"replicas"`
	PoolBlocks int    `json:"pool_blocks"`
	BlockSize  int    `json:"block_size"`
	Requests   int    `json:"requests"`
}

// Op is one operation of a corpus.
type Op struct {
	Kind     OpKind
	Replica  uint16
	AtMillis int64
	Blocks   []uint32
	// First is the place of the first stored block in its chain.
	First int32
}

// OpKind says what an Op is.
type OpKind uint8

// Kinds of Op. A request is a lookup, then what its replica evicts, then what
// it stores.
const (
	Lookup OpKind = iota
	Store
	Remove
)

// Corpus is a neutral list of index operations.
type Corpus struct {
	Header Header
	Ops    []Op
}

// Key returns the content key of a block.
func Key(block uint32) uint64 {
	z := uint64(block)*0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Make runs a trace on replicas with block pools. Requests are placed at
// random, so that shared prefixes come to be held by several replicas.
func Make(trace []Request, h Header) *Corpus {
	random := rand.New(rand.NewPCG(h.Seed, 2))
	pools := make([]*pool, h.Replicas)
	for i := range pools {
		pools[i] = newPool(h.PoolBlocks)
	}
	h.Requests = len(trace)
	c := &Corpus{Header: h}
	for _, r := range trace {
		replica := random.IntN(h.Replicas)
		c.Ops = append(c.Ops, Op{Kind: Lookup, AtMillis: r.AtMillis, Blocks: r.Blocks})
		evicted, stored := pools[replica].serve(r.Blocks)
		if len(evicted) > 0 {
			c.Ops = append(c.Ops, Op{Kind: Remove, Replica: uint16(replica), AtMillis: r.AtMillis, Blocks: evicted})
		}
		for _, s := range stored {
			c.Ops = append(c.Ops, Op{Kind: Store, Replica: uint16(replica), AtMillis: r.AtMillis,
				Blocks: r.Blocks[s.from:s.to], First: int32(s.from)})
		}
	}
	return c
}

// The file is a line of JSON, then operations of uvarints:
//
//	kind, replica, milliseconds since the last one, first, blocks,
//	then each block as zigzag difference to the one before it

// WriteTo writes a corpus.
func (c *Corpus) WriteTo(w io.Writer) (n int64, err error) {
	counted := &countingWriter{w: w}
	out := bufio.NewWriter(counted)
	if err := json.NewEncoder(out).Encode(c.Header); err != nil {
		return counted.n, fmt.Errorf("writing corpus header: %w", err)
	}
	var buf []byte
	at := int64(0)
	for _, op := range c.Ops {
		buf = binary.AppendUvarint(buf[:0], uint64(op.Kind))
		buf = binary.AppendUvarint(buf, uint64(op.Replica))
		buf = binary.AppendUvarint(buf, uint64(op.AtMillis-at))
		buf = binary.AppendUvarint(buf, uint64(op.First))
		buf = binary.AppendUvarint(buf, uint64(len(op.Blocks)))
		at = op.AtMillis
		last := uint32(0)
		for _, b := range op.Blocks {
			buf = binary.AppendVarint(buf, int64(b)-int64(last))
			last = b
		}
		if _, err := out.Write(buf); err != nil {
			return counted.n, fmt.Errorf("writing corpus: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return counted.n, fmt.Errorf("writing corpus: %w", err)
	}
	return counted.n, nil
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// maxOpBlocks bounds the blocks of one operation in a file.
const maxOpBlocks = 1 << 20

// ErrCorpus marks a file that is no corpus.
var ErrCorpus = errors.New("not a corpus file")

// Read reads a corpus.
func Read(r io.Reader) (*Corpus, error) {
	in := bufio.NewReader(r)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("%w: reading header: %w", ErrCorpus, err)
	}
	c := &Corpus{}
	if err := json.Unmarshal(line, &c.Header); err != nil {
		return nil, fmt.Errorf("%w: header: %w", ErrCorpus, err)
	}
	if h := c.Header; h.Replicas < 1 || h.Replicas > 1<<16 || h.BlockSize < 1 {
		return nil, fmt.Errorf("%w: header has %d replicas and block size %d", ErrCorpus, h.Replicas, h.BlockSize)
	}
	at := int64(0)
	for {
		op, err := readOp(in, at, c.Header.Replicas)
		if errors.Is(err, io.EOF) {
			return c, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: operation %d: %w", ErrCorpus, len(c.Ops), err)
		}
		at = op.AtMillis
		c.Ops = append(c.Ops, op)
	}
}

// readOp reads one operation; io.EOF means that there is none.
func readOp(in *bufio.Reader, at int64, replicas int) (op Op, err error) {
	kind, err := binary.ReadUvarint(in)
	if err != nil {
		return op, err
	}
	var fields [4]uint64
	for i := range fields {
		if fields[i], err = binary.ReadUvarint(in); err != nil {
			return op, fmt.Errorf("cut short: %w", io.ErrUnexpectedEOF)
		}
	}
	if kind > uint64(Remove) || fields[0] >= uint64(replicas) || fields[1] > 1<<40 || fields[2] > maxOpBlocks || fields[3] > maxOpBlocks {
		return op, errors.New("a field is out of range")
	}
	op = Op{Kind: OpKind(kind), Replica: uint16(fields[0]), AtMillis: at + int64(fields[1]), First: int32(fields[2])}
	last := int64(0)
	for range fields[3] {
		d, err := binary.ReadVarint(in)
		if err != nil {
			return op, fmt.Errorf("cut short: %w", io.ErrUnexpectedEOF)
		}
		if last += d; last < 0 || last > 1<<32-1 {
			return op, errors.New("a block is out of range")
		}
		op.Blocks = append(op.Blocks, uint32(last))
	}
	return op, nil
}
