// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// poolBlock is one block of the model: block n of a chain, of one adapter.
type poolBlock struct {
	adapter, chain string
	n              int
}

func (b poolBlock) hashes() string { return b.adapter + "/" + b.chain }

// pool is a literal model of an engine's cache: copies by block and tier.
type pool struct {
	once   bool
	copies map[poolBlock]map[string]int
	// steps advances the engine's clock, so that no two batches are equal.
	steps int
}

var poolTiers = []string{"GPU", "CPU", "STORAGE"}

func newPool(once bool) *pool { return &pool{once: once, copies: map[poolBlock]map[string]int{}} }

func (p *pool) add(b poolBlock, tier string) {
	if p.copies[b] == nil {
		p.copies[b] = map[string]int{}
	}
	p.copies[b][tier]++
	if p.once {
		p.copies[b][tier] = 1
	}
}

func (p *pool) held() []poolBlock {
	return slices.SortedFunc(maps.Keys(p.copies), func(a, b poolBlock) int {
		return compareText(fmt.Sprint(a), fmt.Sprint(b))
	})
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// want is what servers should know: each block in its warmest tier.
func (p *pool) want() replica {
	out := replica{}
	for b, copies := range p.copies {
		keys := blockKeys(b.chain, "", b.n)
		for i, tier := range poolTiers {
			if copies[tier] > 0 {
				out[holder{b.adapter, keys[b.n-1]}] = holding{pb.CacheTier(i + 1), int32(b.n * testBlockSize)}
				break
			}
		}
	}
	return out
}

// act changes the pool at random and returns the event an engine would send.
func (p *pool) act(t *rapid.T) map[string]any {
	held := p.held()
	action := rapid.SampledFrom([]string{"store", "store", "store", "remove", "tier", "clear"}).Draw(t, "action")
	if len(held) == 0 && action != "clear" {
		action = "store"
	}
	switch action {
	case "store":
		return p.store(t)
	case "remove":
		return p.remove(t, rapid.SampledFrom(held).Draw(t, "block"))
	case "tier":
		b := rapid.SampledFrom(held).Draw(t, "block")
		tier := rapid.SampledFrom(poolTiers[1:]).Draw(t, "tier")
		p.add(b, tier)
		return storeEvent(b.chain, b.hashes(), b.n, b.n, map[string]any{
			"medium": tier, "token_ids": nil, "block_size": 0, "parent_block_hash": nil,
		})
	default:
		if rapid.IntRange(0, 9).Draw(t, "really") > 0 {
			return map[string]any{"type": "SomethingNew"}
		}
		clear(p.copies)
		return clearEvent()
	}
}

// store announces blocks whose parent is held or that start a chain.
func (p *pool) store(t *rapid.T) map[string]any {
	b := poolBlock{
		adapter: rapid.SampledFrom([]string{"", "l1"}).Draw(t, "adapter"),
		chain:   rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "chain"),
	}
	from := rapid.IntRange(1, 6).Draw(t, "from")
	for from > 1 && len(p.copies[poolBlock{b.adapter, b.chain, from - 1}]) == 0 {
		from--
	}
	to := from + rapid.IntRange(0, 2).Draw(t, "more")
	for b.n = from; b.n <= to; b.n++ {
		p.add(b, "GPU")
	}
	return storeEvent(b.chain, b.hashes(), from, to, map[string]any{"lora_name": b.adapter})
}

func (p *pool) remove(t *rapid.T, b poolBlock) map[string]any {
	tier := rapid.SampledFrom(slices.Sorted(maps.Keys(p.copies[b]))).Draw(t, "tier")
	if p.copies[b][tier]--; p.copies[b][tier] == 0 || p.once {
		delete(p.copies[b], tier)
	}
	if len(p.copies[b]) == 0 {
		delete(p.copies, b)
	}
	return removeEvent(b.hashes(), b.n, b.n, map[string]any{"medium": tier})
}

func (p *pool) batch(t *rapid.T, tb testing.TB) []byte {
	var events []map[string]any
	for range rapid.IntRange(0, 4).Draw(t, "events") {
		events = append(events, p.act(t))
	}
	p.steps++
	return payload(tb, testStart.Add(time.Duration(p.steps)*time.Millisecond), events...)
}

func drawScheme(t *rapid.T) (scheme string, once bool) {
	scheme = rapid.SampledFrom([]string{"vllm", "sglang"}).Draw(t, "scheme")
	return scheme, scheme == "sglang"
}

// After every batch the deltas add up to the model and to the mirror.
func TestSessionFollowsBlockPool(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		scheme, once := drawScheme(rt)
		s := NewSession(SessionConfig{Scheme: scheme})
		s.Connected(testStart)
		model, seen := newPool(once), replica{}
		for sequence := range uint64(rapid.IntRange(1, 40).Draw(rt, "batches")) {
			seen.apply(s.Live(sequence, model.batch(rt, t), testStart).Deltas)
			requireEqual(rt, model.want(), seen)
			checkSession(t, s, seen)
		}
	})
}

func requireEqual(t *rapid.T, want, got replica) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(holder{}, holding{})); diff != "" {
		t.Fatalf("replica (-model +deltas):\n%s", diff)
	}
}

// lossyEngine is a model engine behind a network that loses batches and
// connections, and that restarts.
type lossyEngine struct {
	t       *rapid.T
	tb      testing.TB
	pool    *pool
	ring    [][]byte
	session *Session
	seen    replica
	ask     *uint64 // the replay that is pending
	served  uint64  // next sequence to replay
}

func (e *lossyEngine) take(step Step) {
	e.seen.apply(step.Deltas)
	if step.Replay {
		e.ask = &step.ReplayFrom
		e.served = step.ReplayFrom
	}
}

func (e *lossyEngine) publish() (sequence uint64, payload []byte) {
	payload = e.pool.batch(e.t, e.tb)
	e.ring = append(e.ring, payload)
	return uint64(len(e.ring) - 1), payload
}

func (e *lossyEngine) deliver() {
	sequence, payload := e.publish()
	e.take(e.session.Live(sequence, payload, testStart))
}

// serve answers a pending replay, wholly or one batch.
func (e *lossyEngine) serve(all bool) {
	for e.ask != nil {
		if e.served >= uint64(len(e.ring)) {
			e.ask = nil
			e.take(e.session.ReplayDone(ReplayOK, testStart))
		} else {
			sequence := e.served
			e.served++
			e.take(e.session.Replayed(sequence, e.ring[sequence], testStart))
		}
		if !all {
			return
		}
	}
}

func (e *lossyEngine) reconnect() {
	e.session.Disconnected(testStart)
	e.ask = nil
	e.take(e.session.Connected(testStart))
}

func (e *lossyEngine) restart() {
	e.pool.copies, e.ring = map[poolBlock]map[string]int{}, nil
}

// Whatever is lost, once the replays are served and a batch has come through,
// servers know what the engine holds.
func TestSessionConvergesOverLoss(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		scheme, once := drawScheme(rt)
		e := &lossyEngine{
			t: rt, tb: t, pool: newPool(once), seen: replica{},
			session: NewSession(SessionConfig{Scheme: scheme, HasReplay: true}),
		}
		for range rapid.IntRange(0, 5).Draw(rt, "before") {
			e.publish()
		}
		e.take(e.session.Connected(testStart))
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0, 1, 2:
				e.deliver()
			case 3, 4:
				e.publish() // lost
			case 5, 6:
				e.serve(false)
			case 7:
				e.serve(true)
			case 8:
				e.reconnect()
			case 9:
				e.restart()
				if rapid.Bool().Draw(rt, "silently") && e.session.live.set {
					e.deliver()
				} else {
					e.reconnect()
				}
			}
			checkSession(t, e.session, e.seen)
		}
		e.serve(true)
		e.deliver()
		e.serve(true)
		requireEqual(rt, e.pool.want(), e.seen)
		checkSession(t, e.session, e.seen)
		if !e.session.ViewComplete() {
			rt.Fatalf("the view is %s", e.session.Status().View)
		}
	})
}

// A session with any input neither panics nor loses count.
func FuzzSession(f *testing.F) {
	for i, vector := range loadEventVectors(f).Vectors {
		f.Add(fromHex(f, vector.Hex), uint64(i%3), uint8(i))
	}
	f.Fuzz(func(t *testing.T, data []byte, sequence uint64, how uint8) {
		s := NewSession(SessionConfig{HasReplay: how&1 != 0, ParkedBlocks: 8, MaxBlocks: 8, LoRAIDs: map[int64]string{7: "l"}})
		seen := replica{}
		s.Connected(testStart)
		seen.apply(s.Live(0, payload(t, testStart, storeEvent("a", "a", 1, 2, nil)), testStart).Deltas)
		seen.apply(s.Replayed(sequence, data, testStart).Deltas)
		seen.apply(s.Live(sequence, data, testStart.Add(time.Minute)).Deltas)
		seen.apply(s.ReplayDone(ReplayResults()[int(how)%len(ReplayResults())], testStart).Deltas)
		seen.apply(s.Live(sequence+1, data, testStart).Deltas)
		checkSession(t, s, seen)
	})
}
