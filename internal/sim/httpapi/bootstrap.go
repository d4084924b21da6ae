// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// roomTimeout is how long one side waits for the other.
const roomTimeout = 30 * time.Second

// oneOrMany is a value, or a list with one for each prompt.
type oneOrMany[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (o *oneOrMany[T]) UnmarshalJSON(raw []byte) error {
	var one T
	if string(raw) == "null" {
		return nil
	}
	if json.Unmarshal(raw, &one) == nil {
		*o = oneOrMany[T]{one}
		return nil
	}
	var many []T
	if err := json.Unmarshal(raw, &many); err != nil {
		return errors.New("bootstrap fields: a value or a list of values is expected")
	}
	*o = many
	return nil
}

// at is the value of one of n prompts; ok is false if there is none.
func (o oneOrMany[T]) at(i, n int) (value T, ok bool) {
	switch {
	case len(o) == n:
		return o[i], true
	case len(o) == 1:
		return o[0], true
	default:
		return value, false
	}
}

// errRoom means that the two sides of a room did not meet.
var errRoom = errors.New("the other side of the bootstrap room is gone")

// rooms are where the two sides of SGLang's transfers meet, at the prefill
// engine. It is safe for concurrent use.
type rooms struct {
	mu   sync.Mutex
	open map[int64]*room
}

// room is one transfer. Both sides may come first.
type room struct {
	number int64
	users  int
	// prefill and decode are closed when that side has come, done when the KV is
	// ready, broken when one side gave up.
	prefill, decode, done, broken chan struct{}
	rank, tokens                  int
	endOnce                       sync.Once
}

func newRooms() *rooms { return &rooms{open: map[int64]*room{}} }

// enter returns a room, new if nobody is there, and joins it.
func (s *rooms) enter(number int64, asPrefill bool, rank int) (*room, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.open[number]
	if r == nil {
		r = &room{
			number: number, prefill: make(chan struct{}), decode: make(chan struct{}),
			done: make(chan struct{}), broken: make(chan struct{}),
		}
		s.open[number] = r
	}
	side := r.decode
	if asPrefill {
		side = r.prefill
	}
	select {
	case <-side:
		return nil, fmt.Errorf("bootstrap room %d is in use", number)
	default:
	}
	if asPrefill {
		r.rank = rank
	}
	r.users++
	close(side)
	return r, nil
}

// leave gives a room up; one that is not done breaks.
func (s *rooms) leave(r *room) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.endOnce.Do(func() { close(r.broken) })
	if r.users--; r.users == 0 && s.open[r.number] == r {
		delete(s.open, r.number)
	}
}

// finish tells the decode side that its KV is ready.
func (r *room) finish(tokens int) {
	r.endOnce.Do(func() {
		r.tokens = tokens
		close(r.done)
	})
}

// await waits until a side comes or the KV is ready.
func (r *room) await(ctx context.Context, what <-chan struct{}) error {
	timer := time.NewTimer(roomTimeout)
	defer timer.Stop()
	select {
	case <-what:
		return nil
	case <-r.broken:
		return errRoom
	case <-timer.C:
		return errRoom
	case <-ctx.Done():
		return ctx.Err()
	}
}

// roomCall is what a decode engine says when it comes to a room.
type roomCall struct {
	Room int64 `json:"room"`
	// Rank of the prefill engine that has the request; absent: by the room.
	Rank *int `json:"dp_rank"`
}

// BootstrapHandler serves the decode engines that come to this one's rooms.
func (h *Handler) BootstrapHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sim/room", func(w http.ResponseWriter, r *http.Request) {
		var call roomCall
		if err := readJSON(r, &call); err != nil {
			writeError(w, err)
			return
		}
		tokens, err := h.serveRoom(r.Context(), &call)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, pullAnswer{Tokens: tokens})
	})
	return mux
}

func (h *Handler) serveRoom(ctx context.Context, call *roomCall) (tokens int, err error) {
	meeting, err := h.rooms.enter(call.Room, false, 0)
	if err != nil {
		return 0, err
	}
	defer h.rooms.leave(meeting)
	if err := meeting.await(ctx, meeting.prefill); err != nil {
		return 0, err
	}
	rank := h.rankOfRoom(call.Room)
	if call.Rank != nil {
		rank = *call.Rank
	}
	if rank != meeting.rank {
		return 0, fmt.Errorf("room %d is at rank %d, not at rank %d", call.Room, meeting.rank, rank)
	}
	if err := meeting.await(ctx, meeting.done); err != nil {
		return 0, err
	}
	return meeting.tokens, nil
}

// rankOfRoom is where a request goes that names no rank.
func (h *Handler) rankOfRoom(number int64) int { return int(number % int64(len(h.options.Ranks))) }

// room is the number of the room of one prompt.
func (g *generation) room(i int) (int64, bool) {
	if s := g.sampling.Room; len(s) == 1 {
		return s[0] + int64(i), true // as SGLang spreads one over a batch
	}
	return g.sampling.Room.at(i, len(g.prompts))
}

// meet brings the two sides of an SGLang transfer together. The decode side
// returns with the KV of all prompts, the prefill side once all its rooms have
// visitors.
func (g *generation) meet(r *http.Request, received []int) error {
	if len(g.sampling.Room) == 0 {
		return badRequest("bootstrap_room", "Disaggregated request received without bootstrap room id")
	}
	ctx := r.Context()
	if g.handler.options.Role == RolePrefill {
		return g.openRooms(ctx)
	}
	var calls errgroup.Group
	for i := range g.prompts {
		number, hasRoom := g.room(i)
		host, hasHost := g.sampling.BootstrapHost.at(i, len(g.prompts))
		port, hasPort := g.sampling.BootstrapPort.at(i, len(g.prompts))
		if !hasRoom || !hasHost || !hasPort {
			return badRequest("bootstrap_room", "bootstrap fields: one for each of %d prompts is expected", len(g.prompts))
		}
		calls.Go(func() error {
			var answer pullAnswer
			url := "http://" + net.JoinHostPort(unbracketed(host), strconv.Itoa(port)) + "/sim/room"
			if err := g.handler.transfers.post(ctx, url, roomCall{number, g.sampling.PrefillRank}, &answer); err != nil {
				return &transferError{err}
			}
			received[i] = answer.Tokens
			return nil
		})
	}
	return calls.Wait()
}

func unbracketed(host string) string {
	if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		return host[1 : n-1]
	}
	return host
}

// openRooms registers the prompts and waits for the decode engine, as
// SGLang's bootstrap queue does.
func (g *generation) openRooms(ctx context.Context) error {
	for i := range g.prompts {
		number, ok := g.room(i)
		if !ok {
			return badRequest("bootstrap_room", "bootstrap_room: one for each of %d prompts is expected", len(g.prompts))
		}
		meeting, err := g.handler.rooms.enter(number, true, g.rankID)
		if err != nil {
			return badRequest("bootstrap_room", "%v", err)
		}
		g.rooms = append(g.rooms, meeting)
	}
	for _, meeting := range g.rooms {
		if err := meeting.await(ctx, meeting.decode); err != nil {
			return &transferError{err}
		}
	}
	return nil
}
