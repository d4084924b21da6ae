// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// framesVector is one entry of the vectors' frames; which fields are set
// depends on the entry.
type framesVector struct {
	Frames   []string
	Messages [][]string
	Expect   []json.RawMessage
}

func loadFrames(t *testing.T, name string) framesVector {
	t.Helper()
	var vector framesVector
	if err := json.Unmarshal(loadVectors(t).Frames[name], &vector); err != nil {
		t.Fatal(err)
	}
	return vector
}

func unhexAll(t *testing.T, frames []string) (out [][]byte) {
	t.Helper()
	for _, frame := range frames {
		out = append(out, unhex(t, frame))
	}
	return out
}

func TestParseLive(t *testing.T) {
	payload := unhex(t, loadFrames(t, "live").Frames[2])
	tests := map[string]struct {
		frames       [][]byte
		wantTopic    string
		wantSequence uint64
		wantErr      error
	}{
		"three frames with an empty topic": {
			frames: unhexAll(t, loadFrames(t, "live").Frames), wantSequence: 7,
		},
		"three frames with a topic": {
			frames: unhexAll(t, loadFrames(t, "live_with_topic").Frames), wantTopic: "kv-events", wantSequence: 8,
		},
		"two frames have no topic": {
			frames: [][]byte{{0, 0, 0, 0, 0, 0, 0, 7}, payload}, wantSequence: 7,
		},
		"a sequence of seven bytes": {
			frames: [][]byte{{}, {0, 0, 0, 0, 0, 0, 7}, payload}, wantErr: ErrBadFrame,
		},
		"a payload alone":   {frames: [][]byte{payload}, wantErr: ErrBadFrame},
		"nothing":           {wantErr: ErrBadFrame},
		"an empty payload":  {frames: [][]byte{{}, make([]byte, 8), {}}, wantErr: ErrBadFrame},
		"the end of replay": {frames: [][]byte{{}, bytes.Repeat([]byte{255}, 8), payload}, wantErr: ErrBadFrame},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			topic, sequence, got, err := ParseLive(tc.frames)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("error %v, want %v", err, tc.wantErr)
			}
			if string(topic) != tc.wantTopic || sequence != tc.wantSequence {
				t.Errorf("topic %q sequence %d, want %q %d", topic, sequence, tc.wantTopic, tc.wantSequence)
			}
			if err == nil && !bytes.Equal(got, tc.frames[len(tc.frames)-1]) {
				t.Error("the payload is not the last frame")
			}
		})
	}
}

func TestParseReplay(t *testing.T) {
	for _, name := range []string{"replay_old", "replay_new", "replay_new_empty_topic", "replay_wrapped"} {
		t.Run(name, func(t *testing.T) {
			vector := loadFrames(t, name)
			if len(vector.Messages) != len(vector.Expect) {
				t.Fatal("messages and expectations differ in number")
			}
			for i, frames := range vector.Messages {
				sequence, payload, end, err := ParseReplay(unhexAll(t, frames))
				if err != nil {
					t.Fatal(err)
				}
				var want []any
				if string(vector.Expect[i]) == `"end"` {
					if !end {
						t.Errorf("message %d is not the end", i)
					}
					continue
				}
				if err := json.Unmarshal(vector.Expect[i], &want); err != nil {
					t.Fatal(err)
				}
				if end || float64(sequence) != want[0] || !bytes.Equal(payload, unhex(t, want[1].(string))) {
					t.Errorf("message %d: sequence %d, end %v", i, sequence, end)
				}
			}
		})
	}
	for name, frames := range map[string][][]byte{
		"no frames":          nil,
		"only empty frames":  {{}, {}, {}},
		"a short sequence":   {{}, {1, 2, 3}, {0x90}},
		"a lone end marker":  {bytes.Repeat([]byte{255}, 8)},
		"a topic and no end": {{}, []byte("kv"), {}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, _, err := ParseReplay(frames); !errors.Is(err, ErrBadFrame) {
				t.Errorf("error %v, want %v", err, ErrBadFrame)
			}
		})
	}
}

func TestReplayRequest(t *testing.T) {
	want := unhexAll(t, loadFrames(t, "replay_request").Frames)
	if diff := cmp.Diff(want, ReplayRequest(5)); diff != "" {
		t.Errorf("frames (-want +got):\n%s", diff)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte{}, []byte{0, 0, 0, 0, 0, 0, 0, 1}, []byte{0x93})
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		for _, frames := range [][][]byte{{first, second, third}, {second, third}, {{}, first, second, third}} {
			if _, _, payload, err := ParseLive(frames); err == nil && len(payload) == 0 {
				t.Error("a live message without payload")
			}
			if sequence, payload, end, err := ParseReplay(frames); err == nil && !end && (len(payload) == 0 || sequence == EndOfReplay) {
				t.Error("an end marker taken for a batch")
			}
		}
	})
}
