// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/kvevents"
	"github.com/inferencecache/inference-cache/internal/publisher"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// recording is what vllm/capture.py wrote down of a real engine. Frames are
// in hex.
type recording struct {
	Version string         `json:"version"`
	First   replayExchange `json:"first"`
	Steps   []recordedStep `json:"steps"`
	Last    replayExchange `json:"last"`
}

type replayExchange struct {
	Request  []string   `json:"request"`
	Messages [][]string `json:"messages"`
}

type recordedStep struct {
	Name         string     `json:"name"`
	Salt         string     `json:"salt"`
	TokenIDs     string     `json:"tokens"`
	PromptTokens int        `json:"promptTokens"`
	CachedTokens int        `json:"cachedTokens"`
	Messages     [][]string `json:"messages"`
}

const recordedBlockSize = 32

// recordedAt stands for the time of all messages.
var recordedAt = time.Date(2026, 11, 30, 9, 30, 0, 0, time.UTC)

func loadRecording(t *testing.T, path string) recording {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r recording
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatalf("reading %s: %v", path, err)
	}
	return r
}

func eachRecording(t *testing.T, fn func(t *testing.T, r recording)) {
	t.Helper()
	paths, err := filepath.Glob("testdata/vllm-*.json")
	if err != nil || len(paths) < 3 {
		t.Fatalf("found %d recordings, want 3 or more (%v)", len(paths), err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".json"), func(t *testing.T) { fn(t, loadRecording(t, path)) })
	}
}

func unhex(t *testing.T, frames []string) [][]byte {
	t.Helper()
	out := make([][]byte, len(frames))
	for i, text := range frames {
		frame, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		out[i] = frame
	}
	return out
}

// tokens are the prompt's ids as the engine's tokenizer gave them.
func (s recordedStep) tokens(t *testing.T) []uint32 {
	t.Helper()
	var tokens []uint32
	for field := range strings.FieldsSeq(s.TokenIDs) {
		id, err := strconv.ParseUint(field, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, uint32(id))
	}
	if len(tokens) != s.PromptTokens {
		t.Fatalf("step %q: %d ids for %d prompt tokens", s.Name, len(tokens), s.PromptTokens)
	}
	return tokens
}

// keys are the prompt's block keys.
func (s recordedStep) keys(t *testing.T) []uint64 {
	t.Helper()
	return fingerprint.Append(nil, fingerprint.SaltParent(s.Salt), s.tokens(t), recordedBlockSize)
}

// live feeds a step's messages from the event socket.
func live(t *testing.T, session *publisher.Session, step recordedStep) {
	t.Helper()
	for _, message := range step.Messages {
		_, sequence, payload, err := kvevents.ParseLive(unhex(t, message))
		if err != nil {
			t.Fatalf("step %q: %v", step.Name, err)
		}
		if got := session.Live(sequence, payload, recordedAt); got.Replay || got.Reset != publisher.ResetNone {
			t.Fatalf("step %q: asked for replay %v, reset %q", step.Name, got.Replay, got.Reset)
		}
	}
}

// replayed feeds the answer to the session's replay request.
func replayed(t *testing.T, session *publisher.Session, exchange replayExchange) {
	t.Helper()
	for i, message := range exchange.Messages {
		sequence, payload, end, err := kvevents.ParseReplay(unhex(t, message))
		if err != nil {
			t.Fatalf("replay message %d: %v", i, err)
		}
		if last := i == len(exchange.Messages)-1; end != last {
			t.Fatalf("replay message %d of %d: end %v", i, len(exchange.Messages), end)
		}
		if !end {
			session.Replayed(sequence, payload, recordedAt)
		}
	}
	session.ReplayDone(publisher.ReplayOK, recordedAt)
}

func connected(t *testing.T, r recording) *publisher.Session {
	t.Helper()
	session := publisher.NewSession(publisher.SessionConfig{HasReplay: true})
	step := session.Connected(recordedAt)
	if !step.Replay {
		t.Fatal("no replay was asked for at the start")
	}
	if diff := cmp.Diff(unhex(t, r.First.Request), kvevents.ReplayRequest(step.ReplayFrom)); diff != "" {
		t.Fatalf("replay request (-engine's client +ours):\n%s", diff)
	}
	replayed(t, session, r.First)
	return session
}

func resident(session *publisher.Session) map[uint64]bool {
	keys := map[uint64]bool{}
	session.Snapshot(func(run *pb.StoredRun) bool {
		for _, key := range run.GetKeys() {
			keys[key] = true
		}
		return true
	})
	return keys
}

func countResident(held map[uint64]bool, keys []uint64) int {
	count := 0
	for count < len(keys) && held[keys[count]] {
		count++
	}
	return count
}

func TestRecordedEventsBuildTheMirror(t *testing.T) {
	eachRecording(t, func(t *testing.T, r recording) {
		session := connected(t, r)
		for _, step := range r.Steps {
			keys := step.keys(t)
			if held := countResident(resident(session), keys) * recordedBlockSize; held < step.CachedTokens {
				t.Errorf("step %q: the engine reused %d tokens, the mirror held %d", step.Name, step.CachedTokens, held)
			}
			live(t, session, step)
			if held := countResident(resident(session), keys); held != len(keys) {
				t.Errorf("step %q: %d of the prompt's %d blocks are held afterwards", step.Name, held, len(keys))
			}
		}
		status := session.Status()
		if status.View != publisher.ViewComplete || status.Gaps != 0 || status.BlockSize != recordedBlockSize {
			t.Errorf("view %s, %d gaps, block size %d", status.View, status.Gaps, status.BlockSize)
		}
	})
}

func TestRecordedEventsAreUsedWhole(t *testing.T) {
	eachRecording(t, func(t *testing.T, r recording) {
		session := connected(t, r)
		for _, step := range r.Steps {
			live(t, session, step)
		}
		status := session.Status()
		for reason, count := range status.Skipped {
			if count != 0 {
				t.Errorf("%d events skipped as %s", count, reason)
			}
		}
		for name, count := range status.UnknownFields {
			t.Errorf("field %s is unknown %d times", name, count)
		}
		if status.Received == 0 || status.Received != status.Applied+status.NoOps {
			t.Errorf("received %d events, applied %d, no-ops %d", status.Received, status.Applied, status.NoOps)
		}
		if status.HiddenIdentities != 0 {
			t.Errorf("%d hidden identities in a recording whose salts are stated", status.HiddenIdentities)
		}
	})
}

func TestRecordedClearLeavesWhatFollowed(t *testing.T) {
	eachRecording(t, func(t *testing.T, r recording) {
		last := r.Steps[len(r.Steps)-1]
		if !strings.Contains(last.Name, "reset") {
			t.Skip("this recording ends before the reset")
		}
		session := connected(t, r)
		for _, step := range r.Steps {
			live(t, session, step)
		}
		want := map[uint64]bool{}
		for _, key := range last.keys(t) {
			want[key] = true
		}
		if diff := cmp.Diff(want, resident(session)); diff != "" {
			t.Errorf("held after the clear (-want +got):\n%s", diff)
		}
	})
}

func TestRecordedReplayRepeatsTheLiveBatches(t *testing.T) {
	eachRecording(t, func(t *testing.T, r recording) {
		payloads := map[uint64][]byte{}
		for _, step := range r.Steps {
			for _, message := range step.Messages {
				_, sequence, payload, err := kvevents.ParseLive(unhex(t, message))
				if err != nil {
					t.Fatal(err)
				}
				payloads[sequence] = payload
			}
		}
		batches := 0
		for _, message := range r.Last.Messages {
			sequence, payload, end, err := kvevents.ParseReplay(unhex(t, message))
			if err != nil {
				t.Fatal(err)
			}
			if end {
				continue
			}
			batches++
			if diff := cmp.Diff(payloads[sequence], payload); diff != "" {
				t.Errorf("batch %d differs from the live one:\n%s", sequence, diff)
			}
		}
		if batches != 3 {
			t.Errorf("%d batches were replayed, want 3", batches)
		}
	})
}
