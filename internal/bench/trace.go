// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
)

// Request is one request of a trace. Equal block ids mean equal blocks with
// equal prefixes.
type Request struct {
	AtMillis int64
	Blocks   []uint32
}

// maxTraceLine bounds one line of a trace.
const maxTraceLine = 1 << 20

// ReadTrace reads requests, one JSON object a line with timestamp in
// milliseconds and hash_ids.
func ReadTrace(r io.Reader) ([]Request, error) {
	var out []Request
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxTraceLine)
	for n := 1; lines.Scan(); n++ {
		var line struct {
			Timestamp int64    `json:"timestamp"`
			HashIDs   []uint32 `json:"hash_ids"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("trace line %d: %w", n, err)
		}
		out = append(out, Request{AtMillis: line.Timestamp, Blocks: line.HashIDs})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading trace: %w", err)
	}
	return out, nil
}

// Shape says how a generated trace looks.
type Shape struct {
	Seed     uint64
	Requests int
}

// Generate makes a trace like a public conversation trace: conversations of a
// few turns that each extend the last, some sharing a system prompt; mean 24
// and at most 247 blocks a request, about a third of them seen before.
func Generate(s Shape) []Request {
	random := rand.New(rand.NewPCG(s.Seed, 1))
	next := uint32(0)
	fresh := func(n int) []uint32 {
		out := make([]uint32, n)
		for i := range out {
			out[i] = next
			next++
		}
		return out
	}
	prompts := make([][]uint32, 32)
	for i := range prompts {
		prompts[i] = fresh(1 + random.IntN(3))
	}
	var open [][]uint32
	out := make([]Request, 0, s.Requests)
	for i := range s.Requests {
		var blocks []uint32
		if len(open) > 0 && random.Float64() < 0.42 {
			j := random.IntN(len(open))
			blocks = append(append(blocks, open[j]...), fresh(1+random.IntN(8))...)
			open[j] = open[len(open)-1]
			open = open[:len(open)-1]
		} else {
			blocks = append(blocks, prompts[random.IntN(len(prompts))]...)
			blocks = append(blocks, fresh(int(min(20*random.ExpFloat64(), 240)))...)
		}
		if len(blocks) > 247 {
			blocks = blocks[:247]
		}
		if len(open) < 256 {
			open = append(open, blocks)
		}
		out = append(out, Request{AtMillis: int64(i) * 300, Blocks: blocks})
	}
	return out
}

// Stretch lengthens each request: every block becomes factor successive ones.
func Stretch(trace []Request, factor uint32) []Request {
	out := make([]Request, len(trace))
	for i, r := range trace {
		out[i].AtMillis = r.AtMillis
		for _, b := range r.Blocks {
			for j := range factor {
				out[i].Blocks = append(out[i].Blocks, b*factor+j)
			}
		}
	}
	return out
}

// Repeat interleaves copies of a trace that share no block.
func Repeat(trace []Request, copies int) []Request {
	top := uint32(0)
	for _, r := range trace {
		for _, b := range r.Blocks {
			top = max(top, b+1)
		}
	}
	out := make([]Request, 0, len(trace)*copies)
	for _, r := range trace {
		for c := range uint32(copies) {
			blocks := make([]uint32, len(r.Blocks))
			for i, b := range r.Blocks {
				blocks[i] = b + top*c
			}
			out = append(out, Request{AtMillis: r.AtMillis, Blocks: blocks})
		}
	}
	return out
}
