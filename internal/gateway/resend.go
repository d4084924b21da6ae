// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"syscall"
	"time"

	"github.com/inferencecache/inference-cache/internal/engines"
)

const (
	// staleIdle is how long a connection must have been idle for the engine to
	// have closed it meanwhile, and staleWithin how soon that shows. Otherwise
	// it is the request that went wrong.
	staleIdle   = time.Second
	staleWithin = time.Second
)

// send sends the request to a replica. When the pooled connection it was sent
// on proves to be closed, it is sent once more on a new one: that says nothing
// about the replica.
func (x *exchange) send(a *attempt, u *upstream) (*http.Response, error) {
	ctx := a.ctx
	pooled := false
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { pooled = info.WasIdle && info.IdleTime >= staleIdle },
	})
	begin := time.Now()
	response, err := u.transport.RoundTrip(x.engineRequest(traced, a, u))
	if err == nil || !pooled || !isClosed(err) || ctx.Err() != nil || time.Since(begin) > staleWithin {
		return response, err
	}
	x.gateway.metrics.resends.Inc()
	u.transport.CloseIdleConnections() // the others are as old
	return u.transport.RoundTrip(x.engineRequest(ctx, a, u))
}

// isClosed says whether an error means that the other end closed the
// connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// pinned returns a body that asks for the replica's rank, where the engine
// takes that from the body. Clients cannot send the member themselves.
func (u *upstream) pinned(body []byte) []byte {
	if u.Rank == nil || u.Runtime != engines.SGLang {
		return body
	}
	return withMember(body, `"routed_dp_rank":`+strconv.Itoa(*u.Rank))
}
