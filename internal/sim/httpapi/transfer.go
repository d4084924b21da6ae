// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/pool"
	"github.com/inferencecache/inference-cache/internal/sim/rank"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
)

// Role is the part of an engine in split prefill and decode.
type Role string

// The roles. A vLLM engine with either takes both sides of a transfer, as its
// connector does; an SGLang engine takes its own side only.
const (
	RoleSingle  Role = ""
	RolePrefill Role = "prefill"
	RoleDecode  Role = "decode"
)

// pullPath is where a vLLM engine hands over blocks. It stands for the side
// channel and the transfer itself.
const pullPath = "/sim/kv/pull"

// transferParams are vLLM's kv_transfer_params, in requests and answers.
type transferParams struct {
	RemotePrefill bool      `json:"do_remote_prefill"`
	RemoteDecode  bool      `json:"do_remote_decode"`
	Blocks        []pool.ID `json:"remote_block_ids"`
	EngineID      *string   `json:"remote_engine_id"`
	RequestID     string    `json:"remote_request_id,omitempty"`
	Host          *string   `json:"remote_host"`
	Port          *int      `json:"remote_port"`
	TPSize        int       `json:"tp_size,omitempty"`
	Tokens        int       `json:"remote_num_tokens,omitempty"`
	// Expiry is in seconds of Unix time.
	Expiry float64 `json:"remote_blocks_expiry_time,omitempty"`
}

// transferError means that another engine's KV did not arrive. A stream has
// begun by then.
type transferError struct{ cause error }

func (e *transferError) Error() string { return "KV transfer failed: " + e.cause.Error() }
func (e *transferError) Unwrap() error { return e.cause }

// transfers are the blocks that wait for other engines. It is safe for
// concurrent use.
type transfers struct {
	client *http.Client

	mu      sync.Mutex
	waiting map[string]*heldBlocks // by request id
}

// heldBlocks are those of one request.
type heldBlocks struct {
	rank    *rank.Rank
	request *sched.Request
	tokens  int
	until   time.Time
}

func newTransfers() *transfers {
	return &transfers{
		// Engines keep no connection between transfers here, so that none is
		// left when they end.
		client:  &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		waiting: map[string]*heldBlocks{},
	}
}

// hold notes the blocks of a finished prefill and forgets what has expired.
func (t *transfers) hold(now time.Time, id string, blocks *heldBlocks) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for other, held := range t.waiting {
		if !now.Before(held.until) {
			delete(t.waiting, other)
		}
	}
	t.waiting[id] = blocks
}

// take hands blocks over, once.
func (t *transfers) take(id string) (tokens int, there bool) {
	t.mu.Lock()
	held := t.waiting[id]
	delete(t.waiting, id)
	t.mu.Unlock()
	if held == nil || !held.rank.Release(held.request) {
		return 0, false
	}
	return held.tokens, true
}

// pullCall asks for the blocks of a request.
type pullCall struct {
	EngineID  string    `json:"engine_id"`
	RequestID string    `json:"request_id"`
	Blocks    []pool.ID `json:"block_ids"`
}

// pullAnswer says how many tokens have come.
type pullAnswer struct {
	Tokens int `json:"tokens"`
}

// handOver serves the decode engine's pull.
func (h *Handler) handOver(w http.ResponseWriter, r *http.Request) {
	var call pullCall
	if err := readJSON(r, &call); err != nil {
		writeError(w, err)
		return
	}
	if call.EngineID != h.engineID {
		writeError(w, notFound("the blocks belong to another engine, or to an earlier start of this one"))
		return
	}
	tokens, there := h.transfers.take(call.RequestID)
	if !there {
		writeError(w, notFound("no such blocks: they are unknown, were taken, or have expired"))
		return
	}
	writeJSON(w, pullAnswer{Tokens: tokens})
}

// pull fetches the KV that a prefill engine holds for this request.
func (h *Handler) pull(ctx context.Context, p *transferParams) (tokens int, err error) {
	if p.EngineID == nil || p.Host == nil || p.Port == nil || p.RequestID == "" || len(p.Blocks) == 0 {
		return 0, &transferError{fmt.Errorf("kv_transfer_params name no engine, request or blocks")}
	}
	var answer pullAnswer
	url := "http://" + net.JoinHostPort(*p.Host, strconv.Itoa(*p.Port)) + pullPath
	if err := h.transfers.post(ctx, url, pullCall{*p.EngineID, p.RequestID, p.Blocks}, &answer); err != nil {
		return 0, &transferError{err}
	}
	return answer.Tokens, nil
}

// post calls another engine.
func (t *transfers) post(ctx context.Context, url string, call, answer any) error {
	body, err := json.Marshal(call)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := t.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the other engine answers with status %d", response.StatusCode)
	}
	return json.Unmarshal(text, answer)
}

// localAddress is where a request arrived: the engine as its clients see it.
func localAddress(r *http.Request) (host string, port int) {
	address, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	tcp, _ := address.(*net.TCPAddr)
	if tcp == nil {
		return "", 0
	}
	return tcp.IP.String(), tcp.Port
}

// handedOver is what the answer of a prefill says about its blocks, nil if they
// are not held.
func (g *generation) handedOver(r *http.Request, token rank.Token) *transferParams {
	if len(token.Held) == 0 {
		return nil
	}
	h := g.handler
	host, port := localAddress(r)
	h.transfers.hold(h.options.Clock.Now(), g.id, &heldBlocks{
		rank: g.rank, request: token.Request, tokens: len(token.Request.Prompt), until: token.HeldUntil,
	})
	return &transferParams{
		RemotePrefill: true, Blocks: token.Held, EngineID: &h.engineID, RequestID: g.id, Host: &host, Port: &port,
		TPSize: 1, Tokens: len(token.Request.Prompt), Expiry: float64(token.HeldUntil.UnixMilli()) / 1000,
	}
}

// pair prepares what split prefill and decode ask of a request. received are
// the tokens of each prompt that have come from another engine.
func (g *generation) pair(r *http.Request) (received []int, err error) {
	received = make([]int, len(g.prompts))
	h := g.handler
	switch {
	case h.options.Role == RoleSingle:
		return received, nil
	case h.options.Runtime == SGLang:
		return received, g.meet(r, received)
	}
	p := g.sampling.Transfer
	if p == nil {
		return received, nil
	}
	if p.RemotePrefill {
		tokens, err := h.pull(r.Context(), p)
		if err != nil {
			return nil, err
		}
		received[0] = tokens
		return received, nil
	}
	g.hold = p.RemoteDecode && len(g.prompts) == 1
	return received, nil
}
