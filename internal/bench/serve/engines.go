// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/publisher"
	"github.com/inferencecache/inference-cache/internal/sidecar"
	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/wire"
	"github.com/inferencecache/inference-cache/internal/zmtp"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// engineBlock is the tokens of a block of the engines here.
const engineBlock = 16

// engine is the event socket of an engine with its publisher.
type engine struct {
	replica  string
	pub      *zmtp.Pub
	endpoint string
	encoder  wire.Encoder
	sequence uint64
}

// engines are followed by publishers of one process, each by one of its own.
type engines struct {
	all     []*engine
	running sync.WaitGroup
	cancel  context.CancelFunc
}

// startEngines starts engines with publishers that report to a server and
// waits until all sessions are live. Load is where publishers read load;
// empty = nowhere.
func startEngines(ctx context.Context, w *watcher, grpcAddress string, n int, load string) (_ *engines, err error) {
	shape, err := wire.ParseShape("vllm-0.24")
	if err != nil {
		return nil, err
	}
	before, err := w.readiness(ctx)
	if err != nil {
		return nil, err
	}
	e := &engines{}
	ctx, e.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	failed := make(chan error, n)
	for i := range n {
		listener, err := zmtp.Listen("tcp://127.0.0.1:*", zmtp.Options{Type: zmtp.PUB})
		if err != nil {
			return nil, err
		}
		one := &engine{
			replica: fmt.Sprintf("engine-%05d", i), endpoint: listener.Endpoint(),
			pub: zmtp.NewPub(listener, zmtp.PubOptions{HighWaterMark: 1 << 20}), encoder: wire.Encoder{Shape: shape, Rank: wire.NoRank},
		}
		e.all = append(e.all, one)
		s, err := sidecar.New(sidecar.Options{
			Publisher: publisher.Config{
				Tenant: tenant, Model: model, Scheme: scheme, Replica: one.replica, Events: one.endpoint, MetricsURL: load,
			},
			Servers: []string{grpcAddress}, HTTPAddress: "127.0.0.1:0",
		})
		if err != nil {
			return nil, err
		}
		e.running.Go(func() {
			if err := s.Run(ctx); err != nil {
				failed <- err
			}
		})
	}
	err = await(ctx, "publishers", 5*time.Millisecond, func() bool {
		r, err := w.readiness(ctx)
		if err != nil || r.live < before.live+n {
			return false
		}
		for _, one := range e.all {
			if one.pub.Subscribers() == 0 {
				return false
			}
		}
		return true
	})
	select {
	case broken := <-failed:
		err = errors.Join(err, broken)
	default:
	}
	return e, err
}

func (e *engines) close() {
	e.cancel()
	e.running.Wait()
	for _, one := range e.all {
		_ = one.pub.Close()
	}
}

// store announces a chain that only depends on its number, and returns its
// keys. It is sent by the time store returns, as far as the socket goes.
func (e *engine) store(chain, blocks int) []uint64 {
	tokens := chainTokens(chain, blocks)
	keys := fingerprint.Append(nil, fingerprint.Parent{}, tokens, engineBlock)
	event := wire.Event{Kind: wire.Stored, Tokens: tokens, BlockSize: engineBlock, Hashes: make([]blockhash.Digest, blocks)}
	for i, key := range keys {
		binary.BigEndian.PutUint64(event.Hashes[i][len(event.Hashes[i])-8:], key)
	}
	batch := e.encoder.Append(nil, float64(time.Now().UnixMicro())/1e6, []wire.Event{event})
	e.pub.Send(nil, binary.BigEndian.AppendUint64(nil, e.sequence), batch)
	e.sequence++
	return keys
}

// chainTokens are the tokens of a chain; no two chains begin alike.
func chainTokens(chain, blocks int) []uint32 {
	tokens := make([]uint32, blocks*engineBlock)
	for i := range tokens {
		tokens[i] = uint32(chain)*2654435761>>12 + uint32(i)
	}
	tokens[0], tokens[1] = uint32(chain), 1<<17
	return tokens
}
