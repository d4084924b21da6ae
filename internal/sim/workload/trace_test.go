// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadTrace(t *testing.T) {
	const trace = `{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 27, "input_length": 1024, "output_length": 1, "hash_ids": [0, 2]}
`
	requests, err := ReadTrace(strings.NewReader(trace))
	if err != nil {
		t.Fatal(err)
	}
	if len(requests) != 2 || requests[1].At().Milliseconds() != 27 {
		t.Fatalf("requests %+v", requests)
	}
	first, second := requests[0].Prompt(16), requests[1].Prompt(16)
	if len(first) != 18 || len(second) != 32 {
		t.Errorf("%d and %d tokens, want 18 and 32", len(first), len(second))
	}
	if diff := cmp.Diff(first[:16], second[:16]); diff != "" {
		t.Errorf("equal ids give different tokens: %s", diff)
	}
	if cmp.Equal(first[16:], second[16:18]) {
		t.Error("different ids give equal tokens")
	}
}

func TestReadTraceNamesTheLine(t *testing.T) {
	cases := map[string]string{
		"no JSON":     "{\"timestamp\":0,\"input_length\":1,\"hash_ids\":[0]}\nnonsense\n",
		"no hash ids": "{\"timestamp\":0,\"input_length\":1,\"hash_ids\":[0]}\n{\"input_length\":3}\n",
	}
	for name, trace := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := ReadTrace(strings.NewReader(trace))
			if err == nil || !strings.Contains(err.Error(), "line 2") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add(`{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}`)
	f.Fuzz(func(t *testing.T, trace string) {
		requests, err := ReadTrace(strings.NewReader(trace))
		if err != nil {
			return
		}
		for _, request := range requests {
			if got, limit := len(request.Prompt(4)), 4*len(request.HashIDs); got < 1 || got > limit {
				t.Fatalf("%d tokens from %d blocks", got, len(request.HashIDs))
			}
		}
	})
}
