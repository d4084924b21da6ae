// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/internal/publisher"
	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/wire"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// A publisher session that hears an engine's events must know exactly what the
// engine's pool holds, through hits, copies, evictions, aborts and clears.
func TestSessionKnowsThePool(t *testing.T) {
	both := []blockhash.Identity{{}, {Adapter: "tuned"}, {Salt: "salt"}, {Adapter: "tuned", Salt: "salt"}}
	cases := map[string]struct {
		scheme     string
		identities []blockhash.Identity
	}{
		"vllm-0.10": {"vllm", both[:1]},
		"vllm-0.14": {"vllm", both[:2]},
		"vllm-0.17": {"vllm", both},
		"vllm-0.22": {"vllm", both},
		"vllm-0.24": {"vllm", both},
		// SGLang's removals do not name the salt, so only one is used.
		"sglang-0.5.9":  {"sglang", both[:1]},
		"sglang-0.5.18": {"sglang", both[2:3]},
		"sglang-map":    {"sglang", both[:1]},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			shape, err := wire.ParseShape(name)
			if err != nil {
				t.Fatal(err)
			}
			rapid.Check(t, func(t *rapid.T) { followPool(t, shape, tc.scheme, tc.identities) })
		})
	}
}

type listener struct {
	scheduler *sched.Scheduler
	encoder   wire.Encoder
	session   *publisher.Session
	sequence  uint64
	now       time.Time
}

func (l *listener) hear(events []wire.Event) {
	if len(events) == 0 {
		return
	}
	l.session.Live(l.sequence, l.encoder.Append(nil, float64(l.now.Unix()), events), l.now)
	l.sequence++
}

func followPool(t *rapid.T, shape wire.Shape, scheme string, identities []blockhash.Identity) {
	config := sched.Config{BlockSize: 2, CapacityBlocks: 10, MaxRunning: 3, StepTokens: 8}
	if scheme == "sglang" {
		config.Chainer, config.PerNode = blockhash.SGLang{}, true
	}
	l := &listener{
		scheduler: sched.New(config),
		encoder:   wire.Encoder{Shape: shape, ByteHashes: rapid.Bool().Draw(t, "byte hashes")},
		session:   publisher.NewSession(publisher.SessionConfig{Scheme: scheme}),
		now:       time.Unix(1_700_000_000, 0),
	}
	l.session.Connected(l.now)
	l.hear([]wire.Event{{Kind: wire.Cleared}}) // shows the session where sequences start
	var prompts [][]uint32
	var open []*sched.Request
	t.Repeat(map[string]func(*rapid.T){
		"request": func(t *rapid.T) {
			prompt := rapid.SliceOfN(rapid.Uint32Range(0, 1), 1, 9).Draw(t, "prompt")
			request := &sched.Request{
				Prompt: prompt, MaxTokens: rapid.IntRange(1, 4).Draw(t, "max tokens"), AdapterID: 1,
				Identity: rapid.SampledFrom(identities).Draw(t, "identity"),
				Sample:   func(index int) (uint32, bool) { return uint32(index % 2), false },
			}
			if err := l.scheduler.Add(request); err != nil {
				t.Fatal(err)
			}
			open, prompts = append(open, request), append(prompts, prompt)
		},
		"step": func(*rapid.T) {
			step := l.scheduler.Schedule()
			l.hear(step.Events)
			l.scheduler.Complete(step)
		},
		"abort": func(t *rapid.T) {
			if len(open) == 0 {
				t.Skip("nothing was added")
			}
			l.scheduler.Abort(rapid.SampledFrom(open).Draw(t, "request"))
		},
		"clear": func(*rapid.T) {
			l.scheduler.Reset()
			l.hear(l.scheduler.TakeEvents())
		},
		"": func(t *rapid.T) {
			l.hear(l.scheduler.TakeEvents())
			checkKnown(t, l, identities, prompts)
		},
	})
}

// checkKnown compares the session's mirror with the pool.
func checkKnown(t *rapid.T, l *listener, identities []blockhash.Identity, prompts [][]uint32) {
	type holding struct {
		adapter string
		key     uint64
	}
	known := make(map[holding]bool)
	l.session.Snapshot(func(run *pb.StoredRun) bool {
		for _, key := range run.GetKeys() {
			known[holding{run.GetAdapterId(), key}] = true
		}
		return true
	})
	if keys := l.scheduler.Stats().CachedKeys; len(known) != keys {
		t.Fatalf("the session knows %d blocks, the pool holds %d", len(known), keys)
	}
	size := l.scheduler.Config().BlockSize
	for _, id := range identities {
		for _, prompt := range prompts {
			run := 0
			for _, key := range fingerprint.Append(nil, fingerprint.SaltParent(id.Salt), prompt, size) {
				if !known[holding{id.Adapter, key}] {
					break
				}
				run += size
			}
			if held := l.scheduler.CachedRun(prompt, id); run != held {
				t.Fatalf("the session knows %d tokens of a prompt, the pool holds %d", run, held)
			}
		}
	}
}
