// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/inferencecache/inference-cache/internal/credential"
	"github.com/inferencecache/inference-cache/internal/publisher"
)

// maxServers bounds the servers that names may expand to.
const maxServers = 64

// Resolver looks up the addresses of a name.
type Resolver interface {
	LookupHost(ctx context.Context, host string) ([]string, error)
}

// servers keeps one connection to each server and tells the publisher which
// there are. Its methods run on one goroutine.
type servers struct {
	addresses []address
	resolver  Resolver
	dial      func(target, host string) (*grpc.ClientConn, error)
	// authorization returns what calls show, "" without a token.
	authorization func() (string, error)
	adopt         func([]publisher.Target)
	logger        *slog.Logger

	conns map[string]*grpc.ClientConn // by host:port
	known map[address][]string        // the newest answer of each name
}

// run follows the names until ctx ends.
func (s *servers) run(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		s.refresh(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// refresh brings the connections in line with what the names stand for. A
// name that cannot be looked up keeps its last answer.
func (s *servers) refresh(ctx context.Context) {
	wanted := map[string]string{} // host:port to the configured host
	for _, a := range s.addresses {
		for _, target := range s.expand(ctx, a) {
			if len(wanted) < maxServers {
				wanted[target] = a.host
			}
		}
	}
	changed := false
	for target, host := range wanted {
		if s.conns[target] != nil {
			continue
		}
		conn, err := s.dial(target, host)
		if err != nil {
			s.logger.Error("cannot use a server", "server", target, "error", err)
			continue
		}
		s.conns[target] = conn
		changed = true
	}
	var gone []*grpc.ClientConn
	for target, conn := range s.conns {
		if _, ok := wanted[target]; !ok {
			gone = append(gone, conn)
			delete(s.conns, target)
			changed = true
		}
	}
	if changed {
		s.adopt(s.targets())
	}
	for _, conn := range gone {
		_ = conn.Close()
	}
}

func (s *servers) expand(ctx context.Context, a address) []string {
	if !a.all {
		return []string{a.String()}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	hosts, err := s.resolver.LookupHost(ctx, a.host)
	if err != nil {
		if len(s.known[a]) == 0 && ctx.Err() == nil {
			s.logger.Warn("waiting for the name of the servers", "name", a.host, "error", err)
		}
		return s.known[a]
	}
	targets := make([]string, len(hosts))
	for i, host := range hosts {
		targets[i] = net.JoinHostPort(host, a.port)
	}
	s.known[a] = targets
	return targets
}

func (s *servers) targets() []publisher.Target {
	var names []string
	for name := range s.conns {
		names = append(names, name)
	}
	slices.Sort(names)
	targets := make([]publisher.Target, len(names))
	for i, name := range names {
		targets[i] = renewingTarget{publisher.NewGRPCTarget(name, s.conns[name]), s.authorization}
	}
	return targets
}

func (s *servers) close() {
	for _, conn := range s.conns {
		_ = conn.Close()
	}
}

// dialer returns how to connect with the credentials of this process.
func dialer(client *credential.Client) func(target, host string) (*grpc.ClientConn, error) {
	return func(target, host string) (*grpc.ClientConn, error) {
		options := append(client.DialOptions(host),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
				MinConnectTimeout: 3 * time.Second,
			}),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
			grpc.WithNoProxy(),
		)
		return grpc.NewClient("passthrough:///"+target, options...)
	}
}
