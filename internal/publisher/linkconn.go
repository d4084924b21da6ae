// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// protocolVersion is the CacheSync version spoken here.
const protocolVersion = 1

// assumedHeartbeat is used when a server names no interval.
const assumedHeartbeat = time.Second

// burstFrames is how many frames are sent before other duties get a turn.
const burstFrames = 64

var (
	errServerSilent = errors.New("server is silent")
	errNoWelcome    = errors.New("server did not answer hello in time")
)

// rejectedError is the server's refusal of a session.
type rejectedError struct {
	reason, message string
	retryAfter      time.Duration
}

func (e *rejectedError) Error() string {
	if e.message == "" {
		return "server rejected the session: " + e.reason
	}
	return fmt.Sprintf("server rejected the session: %s: %s", e.reason, e.message)
}

// connection is one stream of a link.
type connection struct {
	link   *link
	stream Stream
	// welcome receives the server's answer to hello.
	welcome chan *pb.SyncWelcome
	// ended is closed after endErr was set, once nothing more is received.
	ended  chan struct{}
	endErr error
	// watchdog ends the stream when nothing was received for patience; it then
	// sets silent.
	watchdog *time.Timer
	patience atomic.Int64
	silent   atomic.Bool

	// pace spaces snapshots; nextSnapshot is the earliest time of the next.
	pace         backoff
	nextSnapshot time.Time
}

// connectOnce serves one connection until it breaks or ctx ends. A nil error
// means that leave was taken in order.
func (l *link) connectOnce(ctx context.Context) error {
	options := &l.hub.options
	// The stream outlives ctx by the time of the farewell.
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(options.CloseTimeout, cancel) })
	defer stop()

	stream, err := l.target.Open(streamCtx)
	if err != nil {
		return fmt.Errorf("open sync stream: %w", err)
	}
	c := &connection{
		link:    l,
		stream:  stream,
		welcome: make(chan *pb.SyncWelcome, 1),
		ended:   make(chan struct{}),
		pace:    backoff{min: options.BackoffMin, max: options.BackoffMax, jitter: options.Jitter},
	}
	c.patience.Store(int64(options.SilenceTimeout))
	c.watchdog = time.AfterFunc(options.SilenceTimeout, func() {
		c.silent.Store(true)
		cancel()
	})
	defer c.watchdog.Stop()
	go c.receive()
	defer func() {
		cancel()
		<-c.ended
	}()
	err = c.converse(ctx)
	if c.silent.Load() {
		return errServerSilent
	}
	return err
}

func (c *connection) converse(ctx context.Context) error {
	heartbeat, err := c.greet(ctx)
	if err != nil {
		return err
	}
	c.patience.Store(int64(max(c.link.hub.options.SilenceTimeout, 3*heartbeat)))
	return c.serve(ctx, heartbeat)
}

// greet exchanges hello and welcome and returns the heartbeat interval.
func (c *connection) greet(ctx context.Context) (time.Duration, error) {
	hello := &pb.PublisherFrame{Frame: &pb.PublisherFrame_Hello{Hello: c.link.hello()}}
	if err := c.send(hello); err != nil {
		return 0, err
	}
	timeout := time.NewTimer(c.link.hub.options.WelcomeTimeout)
	defer timeout.Stop()
	select {
	case <-ctx.Done():
		return 0, c.farewell(ctx)
	case <-c.ended:
		return 0, c.endErr
	case <-timeout.C:
		return 0, errNoWelcome
	case w := <-c.welcome:
		if err := c.link.welcomed(w); err != nil {
			return 0, err
		}
		if interval := time.Duration(w.GetHeartbeatIntervalMs()) * time.Millisecond; interval > 0 {
			return interval, nil
		}
		return assumedHeartbeat, nil
	}
}

// serve sends what the link has to send.
func (c *connection) serve(ctx context.Context, interval time.Duration) error {
	if err := c.send(c.link.heartbeat()); err != nil {
		return err
	}
	heartbeat := time.NewTicker(interval)
	defer heartbeat.Stop()
	for {
		due, err := c.flush(ctx)
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return c.farewell(ctx)
		case <-c.ended:
			return c.endErr
		case <-heartbeat.C:
			if err := c.send(c.link.heartbeat()); err != nil {
				return err
			}
		case <-c.link.wake:
		case <-due:
		}
	}
}

// flush sends frames until none may be sent, at most burstFrames so that
// heartbeats find their turn. When a snapshot has to wait, it returns a channel
// that fires at its time.
func (c *connection) flush(ctx context.Context) (due <-chan time.Time, err error) {
	for range burstFrames {
		if ctx.Err() != nil {
			return nil, nil
		}
		if c.link.snapshotWanted() {
			if wait := time.Until(c.nextSnapshot); wait > 0 {
				due = time.After(wait)
			} else {
				c.nextSnapshot = time.Now().Add(c.pace.next())
				c.link.takeSnapshot()
			}
		}
		frame := c.link.nextFrame()
		if frame == nil {
			return due, nil
		}
		if err := c.send(frame); err != nil {
			return nil, err
		}
	}
	c.link.wakeUp()
	return due, nil
}

// send prefers the reason the server gave for ending the stream to the error
// of the write that noticed it.
func (c *connection) send(frame *pb.PublisherFrame) error {
	err := c.stream.Send(frame)
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) {
		<-c.ended
		return c.endErr
	}
	return fmt.Errorf("send sync frame: %w", err)
}

// farewell tells the server that the publisher stops and waits for the server
// to end the stream; the stream's context bounds both. ctx is the link's, which
// has ended.
func (c *connection) farewell(ctx context.Context) error {
	gone := c.link.hub.options.GoneAtEnd && !errors.Is(context.Cause(ctx), errTargetLeft)
	goodbye := &pb.PublisherFrame{Frame: &pb.PublisherFrame_Goodbye{Goodbye: &pb.SyncGoodbye{ReplicaGone: gone}}}
	if err := c.send(c.link.control(goodbye)); err != nil {
		return err
	}
	if err := c.stream.CloseSend(); err != nil {
		return fmt.Errorf("close sync stream: %w", err)
	}
	<-c.ended
	return nil
}

func (c *connection) receive() {
	defer close(c.ended)
	var rejected error
	for {
		frame, err := c.stream.Recv()
		if err != nil {
			c.endErr = fmt.Errorf("receive sync frame: %w", err)
			if rejected != nil {
				c.endErr = rejected
			}
			return
		}
		c.watchdog.Reset(time.Duration(c.patience.Load()))
		switch frame := frame.GetFrame().(type) {
		case *pb.ServerFrame_Welcome:
			select {
			case c.welcome <- frame.Welcome:
			default:
			}
		case *pb.ServerFrame_Ack:
			c.link.acked(frame.Ack)
		case *pb.ServerFrame_Resync:
			c.link.resync(frame.Resync.GetReason())
		case *pb.ServerFrame_Reject:
			rejected = &rejectedError{
				reason:     frame.Reject.GetReason(),
				message:    frame.Reject.GetMessage(),
				retryAfter: time.Duration(frame.Reject.GetRetryAfterMs()) * time.Millisecond,
			}
		}
	}
}

// backoff doubles from min to max; each wait is shortened by up to half at
// random, so that publishers do not return in step.
type backoff struct {
	min, max, current time.Duration
	jitter            func() float64
}

func (b *backoff) next() time.Duration {
	b.current = min(max(2*b.current, b.min), b.max)
	return b.current - time.Duration(b.jitter()*float64(b.current)/2)
}

func (b *backoff) reset() { b.current = 0 }

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
