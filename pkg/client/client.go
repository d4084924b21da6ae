// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// Sentinels in Result.Err for lookups that were not sent.
var (
	ErrBreakerOpen    = errors.New("breaker is open")
	ErrInvalidRequest = errors.New("invalid request")
)

// Client looks prefixes up in one index. It is safe for concurrent use and
// keeps no goroutine of its own.
type Client struct {
	index    pb.InferenceCacheClient
	options  Options
	breaker  breaker
	warnings warnings
	// owned is the connection Dial made, nil after New.
	owned *grpc.ClientConn
}

// New returns a Client over a connection, which stays the caller's together
// with its credentials, balancing and interceptors.
func New(conn grpc.ClientConnInterface, options Options) *Client {
	options = options.withDefaults()
	return &Client{
		index:   pb.NewInferenceCacheClient(conn),
		options: options,
		breaker: breaker{failures: options.BreakerFailures, openFor: options.BreakerOpenFor},
	}
}

// Dial returns a Client with a connection of its own to a gRPC target, and
// begins to connect. dial must hold transport credentials. An error means that
// target or dial options are unusable, never that the server is down.
func Dial(target string, options Options, dial ...grpc.DialOption) (*Client, error) {
	conn, err := grpc.NewClient(target, dial...)
	if err != nil {
		return nil, fmt.Errorf("dial index: %w", err)
	}
	conn.Connect()
	c := New(conn, options)
	c.owned = conn
	return c, nil
}

// Close closes the connection Dial made. After New it does nothing.
func (c *Client) Close() error {
	if c.owned == nil {
		return nil
	}
	return c.owned.Close()
}

// Breaker returns the state of the breaker. An open breaker whose time is over
// stays open until the next lookup.
func (c *Client) Breaker() BreakerState { return c.breaker.current() }

// Lookup asks the index once. It returns within Options.Timeout and never
// fails: without an answer the Result is empty and says why. It does not
// retry, neither the call nor under other keys.
func (c *Client) Lookup(ctx context.Context, request Request) Result {
	begin := time.Now()
	result := c.lookup(ctx, &request, begin)
	result.Took = time.Since(begin)
	if c.options.Metrics != nil {
		c.options.Metrics.ObserveLookup(result.Reason, result.Took)
	}
	return result
}

func (c *Client) lookup(ctx context.Context, request *Request, begin time.Time) Result {
	if problem := request.problem(); problem != "" {
		c.warnInvalid(problem, begin)
		return Result{Reason: InvalidRequest, Err: fmt.Errorf("%w: %s", ErrInvalidRequest, problem)}
	}
	if err := ctx.Err(); err != nil {
		return Result{Reason: endedBy(err), Err: fmt.Errorf("look up route: %w", err)}
	}
	ticket, ok := c.breaker.admit(begin)
	if !ok {
		return Result{Reason: BreakerOpen, Err: ErrBreakerOpen}
	}
	callCtx, cancel := context.WithDeadline(ctx, begin.Add(c.options.Timeout))
	defer cancel()
	answer, err := c.index.LookupRoute(callCtx, request.wire())
	if err != nil {
		reason, how := judge(err, ctx, callCtx)
		c.finish(ticket, how, reason, err)
		return Result{Reason: reason, Err: fmt.Errorf("look up route: %w", err)}
	}
	c.finish(ticket, success, "", nil)
	result := answered(answer)
	if result.Reason.Misconfigured() {
		c.warnMismatch(result.Reason, request, begin)
	}
	return result
}

// judge says what a failed call means, to the caller and to the breaker. ctx is
// the caller's, callCtx the call's.
func judge(err error, ctx, callCtx context.Context) (Reason, outcome) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return Canceled, silence
	}
	code := status.Code(err)
	if callCtx.Err() != nil || code == codes.DeadlineExceeded {
		if hurried(ctx, callCtx) {
			return ClientTimeout, silence
		}
		return ClientTimeout, failure
	}
	switch code {
	case codes.InvalidArgument, codes.ResourceExhausted:
		// This request was refused; others may pass.
		return Rejected, silence
	case codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return Rejected, failure
	default:
		return Unavailable, failure
	}
}

// hurried reports whether the caller left the call less time than the Client
// does.
func hurried(ctx, callCtx context.Context) bool {
	callers, ok := ctx.Deadline()
	calls, _ := callCtx.Deadline()
	return ok && !callers.After(calls)
}

func endedBy(contextErr error) Reason {
	if errors.Is(contextErr, context.DeadlineExceeded) {
		return ClientTimeout
	}
	return Canceled
}

// finish ends a call for the breaker and tells about its changes.
func (c *Client) finish(ticket uint64, how outcome, reason Reason, err error) {
	now := time.Now()
	state, changed := c.breaker.finish(ticket, how, now)
	if reason == Rejected {
		c.warnRejected(status.Code(err), now)
	}
	if !changed {
		return
	}
	if c.options.Metrics != nil {
		c.options.Metrics.ObserveBreaker(state)
	}
	if state == BreakerOpened {
		c.options.Logger.Warn("index does not answer; routing goes on without hints",
			"reason", string(reason), "code", status.Code(err).String(), "retry_after", c.options.BreakerOpenFor)
		return
	}
	c.options.Logger.Info("index answers again")
}

func (c *Client) warnMismatch(reason Reason, request *Request, now time.Time) {
	about := subject{tenant: request.Tenant}
	key, value := "tenant", request.Tenant
	if reason == UnknownModel || reason == UnknownHashScheme {
		about.model = request.Model
		key, value = "model", request.Model
	}
	if reason == UnknownHashScheme {
		about.scheme = request.HashScheme
		key, value = "hash_scheme", request.HashScheme
	}
	if !c.warnings.allow(reason, about, now) {
		return
	}
	attributes := []any{"reason", string(reason), key, value}
	switch reason {
	case UnknownHashScheme:
		attributes = append(attributes, "tenant", request.Tenant, "model", request.Model)
	case UnknownModel:
		attributes = append(attributes, "tenant", request.Tenant)
	}
	c.options.Logger.Warn("the index knows nothing under this key; do publishers use the same value?", attributes...)
}

func (c *Client) warnInvalid(problem string, now time.Time) {
	if c.warnings.allow(InvalidRequest, subject{detail: problem}, now) {
		c.options.Logger.Warn("lookup not sent: the request is invalid", "problem", problem)
	}
}

func (c *Client) warnRejected(code codes.Code, now time.Time) {
	if c.warnings.allow(Rejected, subject{detail: code.String()}, now) {
		c.options.Logger.Warn("the index refuses lookups", "code", code.String())
	}
}
