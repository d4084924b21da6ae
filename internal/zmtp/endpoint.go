// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// Endpoint is a parsed ZeroMQ address.
type Endpoint struct {
	// Network is tcp or unix.
	Network string
	// Host is empty for the wildcard address. TCP only.
	Host string
	// Port is 0 for a port chosen by the system. TCP only.
	Port int
	// Path of the socket; a leading @ names an abstract one. Unix only.
	Path string
}

// ParseEndpoint reads tcp://host:port, where host and port may be *, or
// ipc://path.
func ParseEndpoint(s string) (Endpoint, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return Endpoint{}, fmt.Errorf("endpoint %.200q: tcp://host:port or ipc://path expected", s)
	}
	switch scheme {
	case "ipc":
		if rest == "" {
			return Endpoint{}, fmt.Errorf("endpoint %.200q: the path is missing", s)
		}
		return Endpoint{Network: "unix", Path: rest}, nil
	case "tcp":
		host, port, err := net.SplitHostPort(rest)
		if err != nil {
			return Endpoint{}, fmt.Errorf("endpoint %.200q: %w", s, err)
		}
		e := Endpoint{Network: "tcp", Host: host}
		if host == "*" {
			e.Host = ""
		}
		if port == "*" {
			return e, nil
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return Endpoint{}, fmt.Errorf("endpoint %.200q: port from 0 to 65535 or * expected", s)
		}
		e.Port = int(n)
		return e, nil
	default:
		return Endpoint{}, fmt.Errorf("endpoint %.200q: transport tcp or ipc expected", s)
	}
}

// Shift returns the endpoint of data-parallel rank n, whose port is n higher.
// An ipc endpoint has rank 0 only.
func (e Endpoint) Shift(n int) (Endpoint, error) {
	if n == 0 {
		return e, nil
	}
	if e.Network != "tcp" {
		return e, fmt.Errorf("endpoint %s: ipc has no rank %d", e, n)
	}
	if e.Port == 0 || n < 0 || e.Port+n > 65535 {
		return e, fmt.Errorf("endpoint %s: no port for rank %d", e, n)
	}
	e.Port += n
	return e, nil
}

// String gives the form that ParseEndpoint reads.
func (e Endpoint) String() string {
	if e.Network == "unix" {
		return "ipc://" + e.Path
	}
	host := e.Host
	if host == "" {
		host = "*"
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(e.Port))
}

func (e Endpoint) address() string {
	if e.Network == "unix" {
		return e.Path
	}
	return net.JoinHostPort(e.Host, strconv.Itoa(e.Port))
}

// Dial connects to endpoint and does the handshake. The context covers both;
// it has no influence on the connection afterwards.
func Dial(ctx context.Context, endpoint string, opts Options) (*Conn, error) {
	opts = opts.withDefaults()
	e, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, fmt.Errorf("zmtp: dial: %w", err)
	}
	if e.Network == "tcp" && (e.Host == "" || e.Port == 0) {
		return nil, fmt.Errorf("zmtp: dial %s: a wildcard can only be listened on", endpoint)
	}
	connecting, cancel := context.WithTimeout(ctx, opts.HandshakeTimeout)
	defer cancel()
	nc, err := opts.Dial(connecting, e.Network, e.address())
	if err != nil {
		return nil, fmt.Errorf("zmtp: %w", err)
	}
	c, err := newConn(ctx, nc, opts)
	if err != nil {
		return nil, fmt.Errorf("zmtp: dial %s: %w", endpoint, err)
	}
	return c, nil
}

// listen binds e, taking over a Unix socket that nobody serves any more.
func listen(e Endpoint) (net.Listener, error) {
	if e.Network == "tcp" {
		lc := net.ListenConfig{KeepAliveConfig: keepAlive}
		return lc.Listen(context.Background(), "tcp", e.address())
	}
	ln, err := net.Listen("unix", e.Path)
	if err == nil || strings.HasPrefix(e.Path, "@") {
		return ln, err
	}
	info, statErr := os.Lstat(e.Path)
	if statErr != nil || info.Mode()&os.ModeSocket == 0 {
		return nil, err
	}
	if nc, dialErr := net.Dial("unix", e.Path); dialErr == nil {
		_ = nc.Close()
		return nil, err
	}
	if rmErr := os.Remove(e.Path); rmErr != nil && !errors.Is(rmErr, os.ErrNotExist) {
		return nil, rmErr
	}
	return net.Listen("unix", e.Path)
}
