// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tinylib/msgp/msgp"

	"github.com/inferencecache/inference-cache/internal/engines"
)

func TestSources(t *testing.T) {
	told := engines.Discovery{Sources: []engines.EventSource{
		{Rank: 0, Endpoint: "tcp://h:7000", Replay: "tcp://h:7100"},
		{Rank: 1, Endpoint: "tcp://h:7001"},
	}}
	tests := map[string]struct {
		config     Config
		found      engines.Discovery
		want       []source
		wantShared bool
	}{
		"one stream of unknown rank": {
			config:     Config{Events: "tcp://h:5557", Replay: "tcp://h:5600", Topic: "kv"},
			want:       []source{{rank: 0, endpoint: "tcp://h:5557", replay: "tcp://h:5600", topic: "kv"}},
			wantShared: true,
		},
		"one rank, said so": {
			config: Config{Events: "tcp://h:5557", Ranks: 1},
			want:   []source{{rank: 0, endpoint: "tcp://h:5557"}},
		},
		"ports rise with the rank": {
			config: Config{Events: "tcp://h:5557", Replay: "tcp://h:5600", Ranks: 2},
			want: []source{
				{rank: 0, endpoint: "tcp://h:5557", replay: "tcp://h:5600"},
				{rank: 1, endpoint: "tcp://h:5558", replay: "tcp://h:5601"},
			},
		},
		"the second node counts on": {
			config: Config{Events: "tcp://h:5557", Ranks: 1, FirstRank: 8},
			want:   []source{{rank: 8, endpoint: "tcp://h:5565"}},
		},
		"the engine's own list": {
			config: Config{BaseURL: "http://h:1", Topic: "kv"},
			found:  told,
			want: []source{
				{rank: 0, endpoint: "tcp://h:7000", replay: "tcp://h:7100", topic: "kv"},
				{rank: 1, endpoint: "tcp://h:7001", topic: "kv"},
			},
		},
		"a given endpoint beats the list, which still counts the ranks": {
			config: Config{Events: "tcp://h:5557"},
			found:  told,
			want:   []source{{rank: 0, endpoint: "tcp://h:5557"}, {rank: 1, endpoint: "tcp://h:5558"}},
		},
		"the usual port on the engine's host": {
			config:     Config{BaseURL: "http://[::1]:8000"},
			want:       []source{{rank: 0, endpoint: "tcp://[::1]:5557"}},
			wantShared: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, shared, err := tc.config.withDefaults().sources(tc.found)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(source{})); diff != "" {
				t.Error(diff)
			}
			if shared != tc.wantShared {
				t.Errorf("shared is %v", shared)
			}
		})
	}
}

func TestRankOf(t *testing.T) {
	batch := func(elements uint32, rank func([]byte) []byte) []byte {
		b := msgp.AppendArrayHeader(nil, elements)
		b = msgp.AppendFloat64(b, 1)
		b = msgp.AppendArrayHeader(b, 1)
		b = msgp.AppendString(b, "x")
		return rank(b)
	}
	number := func(n int64) func([]byte) []byte {
		return func(b []byte) []byte { return msgp.AppendInt64(b, n) }
	}
	tests := map[string]struct {
		payload []byte
		want    int
		wantOK  bool
	}{
		"a rank":             {batch(3, number(5)), 5, true},
		"nil":                {batch(3, msgp.AppendNil), 0, false},
		"two elements":       {batch(2, number(5)), 0, false},
		"four elements":      {batch(4, number(5)), 5, true},
		"a negative rank":    {batch(3, number(-1)), 0, false},
		"a rank beyond all":  {batch(3, number(MaxRanks)), 0, false},
		"a string":           {batch(3, func(b []byte) []byte { return msgp.AppendString(b, "0") }), 0, false},
		"nothing":            {nil, 0, false},
		"an endless array":   {[]byte{0xDD, 0xFF, 0xFF, 0xFF, 0xFF}, 0, false},
		"a depth bomb":       {bytes.Repeat([]byte{0x93}, 8<<20), 0, false},
		"an endless element": {[]byte{0x93, 0x00, 0xDD, 0xFF, 0xFF, 0xFF, 0xFF}, 0, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, ok := rankOf(tc.payload); got != tc.want || ok != tc.wantOK {
				t.Errorf("got %d, %v, want %d, %v", got, ok, tc.want, tc.wantOK)
			}
		})
	}
}

func FuzzRankOf(f *testing.F) {
	f.Add([]byte{0x93, 0x00, 0x90, 0x05})
	f.Add([]byte{0xDD, 0xFF, 0xFF, 0xFF, 0xFF, 0x91, 0x91, 0x91})
	f.Fuzz(func(t *testing.T, payload []byte) {
		if rank, ok := rankOf(payload); ok && (rank < 0 || rank >= MaxRanks) {
			t.Fatalf("rank %d", rank)
		}
	})
}
