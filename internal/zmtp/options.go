// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/inferencecache/inference-cache/internal/defaults"
)

// SocketType is the role a peer announces in its handshake.
type SocketType string

// The socket types this package plays.
const (
	SUB    SocketType = "SUB"
	DEALER SocketType = "DEALER"
	PUB    SocketType = "PUB"
	ROUTER SocketType = "ROUTER"
)

// Errors that callers branch on.
var (
	// ErrClosed is returned by every call on something closed locally.
	ErrClosed = errors.New("zmtp: closed")
	// ErrProtocol marks bytes that are no valid ZMTP 3.
	ErrProtocol = errors.New("zmtp: protocol violation")
	// ErrLimit marks a frame, message or command beyond the limits.
	ErrLimit = errors.New("zmtp: limit exceeded")
	// ErrIncompatible marks a peer whose socket type or mechanism does not fit.
	ErrIncompatible = errors.New("zmtp: incompatible peer")
	// ErrSilent marks a peer that sent nothing for the heartbeat timeout.
	ErrSilent = errors.New("zmtp: peer is silent")
	// ErrUnknownPeer is returned for an identity that is not connected.
	ErrUnknownPeer = errors.New("zmtp: unknown peer")
)

// Options of one connection. Everything but Type may be left zero.
type Options struct {
	// Type is our socket type.
	Type SocketType
	// Identity is announced to the peer, at most 255 bytes. Default: none.
	Identity []byte
	// MaxFrameBytes limits one frame. Default 64 MiB.
	MaxFrameBytes int64
	// MaxMessageBytes limits the frames of one message together. Default
	// MaxFrameBytes.
	MaxMessageBytes int64
	// MaxFrames limits the frames of one message. Default 64.
	MaxFrames int
	// HandshakeTimeout limits connecting, and greeting and READY together,
	// each. Default 5 s.
	HandshakeTimeout time.Duration
	// HeartbeatInterval is the time between PINGs to a peer that speaks 3.1;
	// older peers are watched by TCP keep-alive alone. Default 5 s, negative
	// turns PINGs and ErrSilent off.
	HeartbeatInterval time.Duration
	// HeartbeatTimeout is how long a read may wait for any byte of a pinged
	// peer. Default 3 x HeartbeatInterval.
	HeartbeatTimeout time.Duration
	// WriteTimeout limits one write to a peer that does not read. Default 10 s.
	WriteTimeout time.Duration
	// Dial opens the transport. Default: net.Dialer with TCP keep-alive.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Refused, if set, learns why a peer of a Listener was turned away. Calls
	// may come from several goroutines at once.
	Refused func(peer net.Addr, err error)

	// minor is the protocol minor version announced plus one. Zero means 3.1.
	minor byte
}

func (o Options) withDefaults() Options {
	defaults.Set(&o.MaxFrameBytes, 64<<20)
	defaults.Set(&o.MaxMessageBytes, o.MaxFrameBytes)
	defaults.Set(&o.MaxFrames, 64)
	defaults.Set(&o.HandshakeTimeout, 5*time.Second)
	defaults.Set(&o.HeartbeatInterval, 5*time.Second)
	defaults.Set(&o.HeartbeatTimeout, 3*o.HeartbeatInterval)
	defaults.Set(&o.WriteTimeout, 10*time.Second)
	defaults.Set(&o.minor, 2)
	if o.Dial == nil {
		d := &net.Dialer{KeepAliveConfig: keepAlive}
		o.Dial = d.DialContext
	}
	return o
}

// keepAlive notices a vanished host within about 25 s.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}
