// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/inferencecache/inference-cache/internal/sim/httpapi"
)

// Kinds of fault that Engine.Inject and POST /sim/fault take; the latter also
// takes "stall" and "http_error".
const (
	FaultGap       = "gap"       // the next Count batches reach no subscriber, but can be replayed
	FaultDuplicate = "duplicate" // the latest batch is sent again
	FaultRestart   = "restart"   // the rank loses cache and requests and publishes from sequence 0
	FaultWrap      = "wrap"      // the replay buffer is empty from now on
	FaultMalformed = "malformed" // a batch that cannot be decoded
	FaultPublish   = "publish"   // Payload is published as it is
	FaultClear     = "clear"     // the cache is dropped and the clear published at once
	FaultFlush     = "flush"     // events an idle engine holds back are published
	FaultCrash     = "crash"     // the whole engine ends at once
)

var errNoEvents = errors.New("the engine publishes no events")

// Inject injects one fault into the running engine.
func (e *Engine) Inject(fault httpapi.Fault) error {
	e.mu.Lock()
	instance := e.instance
	e.mu.Unlock()
	if instance == nil {
		return errors.New("the engine is down")
	}
	if fault.Rank < 0 || fault.Rank >= len(instance.ranks) {
		return fmt.Errorf("rank %d is out of range [0, %d)", fault.Rank, len(instance.ranks))
	}
	fault.Count = max(fault.Count, 1)
	return instance.inject(fault, e.crash)
}

// malformed is an array of three elements that ends after the first.
var malformed = []byte{0x93, 0x01}

func (in *instance) inject(fault httpapi.Fault, crash func()) error {
	rank := in.ranks[fault.Rank]
	switch fault.Kind {
	case FaultCrash:
		crash()
		return nil
	case FaultFlush:
		rank.Flush()
		return nil
	case FaultClear:
		if !rank.Reset() {
			return errors.New("requests are running")
		}
		rank.Flush()
		return nil
	}
	if len(in.sockets) == 0 {
		return errNoEvents
	}
	socket := in.sockets[fault.Rank]
	switch fault.Kind {
	case FaultGap:
		socket.Lose(fault.Count)
	case FaultDuplicate:
		socket.Repeat()
	case FaultRestart:
		rank.Restart()
	case FaultWrap:
		socket.Forget()
	case FaultMalformed:
		socket.Publish(malformed)
	case FaultPublish:
		socket.Publish(fault.Payload)
	default:
		return fmt.Errorf("%w, expected one of %s", httpapi.ErrUnknownFault, strings.Join(kinds, ", "))
	}
	return nil
}

var kinds = []string{
	FaultGap, FaultDuplicate, FaultRestart, FaultWrap,
	FaultMalformed, FaultPublish, FaultClear, FaultFlush, FaultCrash,
}
