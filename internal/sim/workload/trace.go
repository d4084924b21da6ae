// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// TraceRequest is one request of a public trace. A hash id names a block of
// TraceBlockTokens tokens together with everything before it.
type TraceRequest struct {
	TimestampMillis int64   `json:"timestamp"`
	InputTokens     int     `json:"input_length"`
	OutputTokens    int     `json:"output_length"`
	HashIDs         []int64 `json:"hash_ids"`
}

// TraceBlockTokens is the block size of public traces.
const TraceBlockTokens = 512

// At is when the request arrives, from the start of the trace.
func (r TraceRequest) At() time.Duration {
	return time.Duration(r.TimestampMillis) * time.Millisecond
}

// Prompt returns a prompt that is the trace's, scaled down: every block of the
// trace becomes blockSize tokens, and equal ids give equal tokens. The tail
// keeps at least one token.
func (r TraceRequest) Prompt(blockSize int) []uint32 {
	prompt := make([]uint32, 0, len(r.HashIDs)*blockSize)
	for i, id := range r.HashIDs {
		n := blockSize
		if rest := r.InputTokens - i*TraceBlockTokens; rest < TraceBlockTokens {
			n = max(rest*blockSize/TraceBlockTokens, 1)
		}
		for position := range n {
			prompt = append(prompt, uint32(id)*31+uint32(position))
		}
	}
	return prompt
}

// ReadTrace reads a trace, one JSON object a line.
func ReadTrace(r io.Reader) ([]TraceRequest, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	var requests []TraceRequest
	for lines.Scan() {
		var request TraceRequest
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			return nil, fmt.Errorf("read trace: line %d: %w", len(requests)+1, err)
		}
		if len(request.HashIDs) == 0 || request.InputTokens <= 0 {
			return nil, fmt.Errorf("read trace: line %d: no tokens or no hash ids", len(requests)+1)
		}
		requests = append(requests, request)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	return requests, nil
}
