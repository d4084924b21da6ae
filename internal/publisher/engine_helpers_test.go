// SPDX-License-Identifier: Apache-2.0

package publisher_test

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/publisher"
	"github.com/inferencecache/inference-cache/internal/zmtp"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// engineBlock is the block size of fake engines.
const engineBlock = 4

// noRank leaves the rank of a batch nil.
const noRank = -1

// chainTokens returns the tokens of the first n blocks of chain c.
func chainTokens(c, n int) []uint32 {
	tokens := make([]uint32, 0, n*engineBlock)
	for i := range n * engineBlock {
		tokens = append(tokens, uint32(100_000*c+i))
	}
	return tokens
}

// chainHash is the engine's hash of block i of chain c. Life makes it differ
// between two lives of the engine.
func chainHash(life, c, i int) uint64 { return uint64(life)<<32 | uint64(c)<<16 | uint64(i) }

// storeBatch announces blocks from to to-1 of chain c.
func storeBatch(rank, life, c, from, to int) []byte {
	b := batchHeader(1)
	b = msgp.AppendArrayHeader(b, 7)
	b = msgp.AppendString(b, "BlockStored")
	b = msgp.AppendArrayHeader(b, uint32(to-from))
	for i := from; i < to; i++ {
		b = msgp.AppendUint64(b, chainHash(life, c, i))
	}
	if from == 0 {
		b = msgp.AppendNil(b)
	} else {
		b = msgp.AppendUint64(b, chainHash(life, c, from-1))
	}
	tokens := chainTokens(c, to)[from*engineBlock:]
	b = msgp.AppendArrayHeader(b, uint32(len(tokens)))
	for _, token := range tokens {
		b = msgp.AppendUint32(b, token)
	}
	b = msgp.AppendInt(b, engineBlock)
	b = msgp.AppendNil(b)
	b = msgp.AppendString(b, "GPU")
	return appendRank(b, rank)
}

// removeBatch takes back block i of chain c.
func removeBatch(rank, life, c, i int) []byte {
	b := batchHeader(1)
	b = msgp.AppendArrayHeader(b, 3)
	b = msgp.AppendString(b, "BlockRemoved")
	b = msgp.AppendArrayHeader(b, 1)
	b = msgp.AppendUint64(b, chainHash(life, c, i))
	b = msgp.AppendString(b, "GPU")
	return appendRank(b, rank)
}

func batchHeader(events uint32) []byte {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, float64(time.Now().UnixMilli())/1000)
	return msgp.AppendArrayHeader(b, events)
}

func appendRank(b []byte, rank int) []byte {
	if rank == noRank {
		return msgp.AppendNil(b)
	}
	return msgp.AppendInt(b, rank)
}

// engineOptions of a fakeEngine. The zero value binds free ports and replays
// in the old layout.
type engineOptions struct {
	events, replay string
	topic          string
	topicInReplay  bool
	// first is the number of the first batch, and buffer how many of the
	// newest can be replayed, 0 being all.
	first  uint64
	buffer int
	// answer replaces the replay when it is set.
	answer func(router *zmtp.Router, request zmtp.Request)
}

// fakeEngine is the event publisher of an engine.
type fakeEngine struct {
	t              *testing.T
	options        engineOptions
	events, replay string
	pub            *zmtp.Pub
	router         *zmtp.Router
	served         sync.WaitGroup

	mu       sync.Mutex
	batches  [][]byte
	requests []uint64 // sequences that replays were asked from
}

func startEngine(t *testing.T, options engineOptions) *fakeEngine {
	t.Helper()
	if options.events == "" {
		options.events = "tcp://127.0.0.1:*"
	}
	if options.replay == "" {
		options.replay = "tcp://127.0.0.1:*"
	}
	e := &fakeEngine{t: t, options: options}
	e.pub, e.events = listenPub(t, options.events)
	l, err := zmtp.Listen(options.replay, zmtp.Options{Type: zmtp.ROUTER})
	if err != nil {
		t.Fatal(err)
	}
	e.replay = l.Endpoint()
	e.router = zmtp.NewRouter(l)
	e.served.Go(e.serveReplays)
	t.Cleanup(e.kill)
	return e
}

func listenPub(t *testing.T, endpoint string) (*zmtp.Pub, string) {
	t.Helper()
	l, err := zmtp.Listen(endpoint, zmtp.Options{Type: zmtp.PUB})
	if err != nil {
		t.Fatal(err)
	}
	return zmtp.NewPub(l, zmtp.PubOptions{HighWaterMark: 100_000}), l.Endpoint()
}

// kill ends the engine as a crash does.
func (e *fakeEngine) kill() {
	_ = e.pub.Close()
	_ = e.router.Close()
	e.served.Wait()
}

// restart kills the engine and starts it again on the same ports, with
// nothing in its memory.
func (e *fakeEngine) restart() *fakeEngine {
	e.kill()
	options := e.options
	options.events, options.replay, options.first = e.events, e.replay, 0
	return startEngine(e.t, options)
}

func be(sequence uint64) []byte { return binary.BigEndian.AppendUint64(nil, sequence) }

// publish numbers a batch, keeps it for replays and sends it.
func (e *fakeEngine) publish(batch []byte) { e.send(e.keep(batch), batch) }

// keep numbers a batch and keeps it, but does not send it: subscribers see a
// gap.
func (e *fakeEngine) keep(batch []byte) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.batches = append(e.batches, batch)
	return e.options.first + uint64(len(e.batches)) - 1
}

func (e *fakeEngine) send(sequence uint64, batch []byte) {
	e.pub.Send([]byte(e.options.topic), be(sequence), batch)
}

func (e *fakeEngine) replaysAsked() []uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.requests)
}

func (e *fakeEngine) serveReplays() {
	for {
		request, err := e.router.Recv(context.Background())
		if err != nil {
			return
		}
		if len(request.Frames) != 2 || len(request.Frames[0]) != 0 || len(request.Frames[1]) != 8 {
			e.t.Errorf("replay request of %d frames", len(request.Frames))
			continue
		}
		from := binary.BigEndian.Uint64(request.Frames[1])
		e.mu.Lock()
		e.requests = append(e.requests, from)
		batches := slices.Clone(e.batches)
		e.mu.Unlock()
		if e.options.answer != nil {
			e.options.answer(e.router, request)
			continue
		}
		e.replayFrom(request, from, batches)
	}
}

func (e *fakeEngine) replayFrom(request zmtp.Request, from uint64, batches [][]byte) {
	head := [][]byte{nil}
	if e.options.topicInReplay {
		head = append(head, []byte(e.options.topic))
	}
	oldest := 0
	if e.options.buffer > 0 {
		oldest = max(len(batches)-e.options.buffer, 0)
	}
	for i, batch := range batches {
		sequence := e.options.first + uint64(i)
		if i < oldest || sequence < from {
			continue
		}
		_ = e.router.Send(request.Identity, append(slices.Clone(head), be(sequence), batch)...)
	}
	if e.options.topicInReplay {
		head[1] = nil
	}
	_ = e.router.Send(request.Identity, append(head, be(math.MaxUint64), nil)...)
}

// world is a publisher between fake engines and one index.
type world struct {
	t         *testing.T
	publisher *publisher.Publisher
	server    *server
	stop      func()
}

// quick are timings for tests: nothing in them is waited for on purpose.
func quick(config publisher.Config) publisher.Config {
	if config.Replica == "" {
		config.Replica = testReplica
	}
	if config.Model == "" && config.BaseURL == "" {
		config.Model = testModel
	}
	config.Tenant = testTenant
	config.ReconnectMin, config.ReconnectMax = time.Millisecond, 20*time.Millisecond
	config.Hub.BackoffMin, config.Hub.BackoffMax = time.Millisecond, 20*time.Millisecond
	return config
}

func startPublisher(t *testing.T, config publisher.Config, deps publisher.Deps) *world {
	t.Helper()
	w := &world{t: t, server: newServer(ingest.SyncOptions{})}
	target := publisher.NewInProcTarget("server", w.server.sync)
	p, err := publisher.New(quick(config), []publisher.Target{target}, deps)
	if err != nil {
		t.Fatal(err)
	}
	w.publisher = p
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	var once sync.Once
	w.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("publisher ended with %v", err)
			}
		})
	}
	t.Cleanup(w.stop)
	return w
}

// follow is startPublisher for an engine, connected.
func follow(t *testing.T, e *fakeEngine, config publisher.Config) *world {
	t.Helper()
	config.Events = e.events
	w := startPublisher(t, config, publisher.Deps{})
	e.await(1)
	return w
}

// await waits until n subscribers are there.
func (e *fakeEngine) await(n int) {
	e.t.Helper()
	eventually(e.t, "subscription", func() bool { return e.pub.Subscribers() == n })
}

// matched returns how many blocks of chain c the index credits a replica with.
func (w *world) matched(replica string, c int) int { return w.matchedIn(testScope, replica, c) }

func (w *world) matchedIn(scope index.Scope, replica string, c int) int {
	keys := fingerprint.Append(nil, fingerprint.Parent{}, chainTokens(c, 64), engineBlock)
	now := time.Now().UnixMilli()
	view := w.server.index.Acquire(scope, "", now, index.DefaultTTLMillis)
	defer view.Release()
	for _, m := range view.MatchChain(nil, index.Keys{Short: keys}, index.Tokens{First: engineBlock, Step: engineBlock}) {
		if m.Replica == replica {
			return int(m.Tokens) / engineBlock
		}
	}
	return 0
}

// awaitMatch waits until the index credits replica with blocks of chain c.
func (w *world) awaitMatch(replica string, c, blocks int) {
	w.t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for w.matched(replica, c) != blocks {
		select {
		case <-tick.C:
		case <-deadline:
			w.t.Fatalf("%s holds %d blocks of chain %d, want %d\n%+v", replica, w.matched(replica, c), c, blocks, w.publisher.Status())
		}
	}
}

// session returns the status of the only rank.
func (w *world) session() publisher.Status {
	w.t.Helper()
	ranks := w.publisher.Status().Ranks
	if len(ranks) != 1 {
		w.t.Fatalf("%d ranks, want 1", len(ranks))
	}
	return ranks[0].Session
}

// stream returns the status of the only event socket; zero before there is one.
func (w *world) stream() publisher.StreamStatus {
	streams := w.publisher.Status().Streams
	if len(streams) == 0 {
		return publisher.StreamStatus{}
	}
	return streams[0]
}

// clock is a clock that tests set.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = at
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}
