// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/publisher"
)

// ErrOptions marks options that cannot work.
var ErrOptions = errors.New("invalid options")

// Options of a Sidecar. Publisher and Servers are required.
type Options struct {
	Publisher publisher.Config
	// Servers are host:port, or dns:///host:port for all addresses of a name.
	Servers []string
	// ResolveInterval is the time between two looks at those names. Default
	// 5 s.
	ResolveInterval time.Duration
	// Resolver looks names up. Default net.DefaultResolver.
	Resolver Resolver
	// HTTPAddress serves health and metrics. Default none.
	HTTPAddress string
	// CAFile switches TLS to servers on and verifies them, default off.
	CAFile string
	// ServerName is the name in their certificates. Default the host of the
	// address.
	ServerName string
	// TokenFile holds the bearer token, read again for every call. Default
	// none.
	TokenFile string
	// InsecureToken sends it without TLS beyond loopback, default false.
	InsecureToken bool
	// KeepRunning makes Run wait for its context where options are wrong,
	// unready but alive. Default false.
	KeepRunning bool
	// Fault is one the caller found; New treats it as its own. Default none.
	Fault error
	// Registry takes the metrics. Default a new one.
	Registry *prometheus.Registry
	// Logger is silent when nil.
	Logger *slog.Logger
	// Version is reported to servers, default empty.
	Version string
}

func (o Options) withDefaults() Options {
	if o.ResolveInterval <= 0 {
		o.ResolveInterval = 5 * time.Second
	}
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// check finds the first fault and returns the servers.
func (o Options) check() ([]address, error) {
	if o.Fault != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, o.Fault)
	}
	addresses, err := parseServers(o.Servers)
	if err != nil {
		return nil, err
	}
	if o.TokenFile == "" || o.CAFile != "" || o.InsecureToken {
		return addresses, nil
	}
	for _, a := range addresses {
		if !a.loopback() {
			return nil, fmt.Errorf("%w: server %s: a token needs TLS or loopback", ErrOptions, a)
		}
	}
	return addresses, nil
}

// address is one entry of Options.Servers.
type address struct {
	host, port string
	// all means every address of the name, not any one.
	all bool
}

func (a address) String() string { return net.JoinHostPort(a.host, a.port) }

func (a address) loopback() bool {
	ip, err := netip.ParseAddr(a.host)
	return a.host == "localhost" || err == nil && ip.IsLoopback()
}

func parseServers(list []string) ([]address, error) {
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: no server is given", ErrOptions)
	}
	var out []address
	for _, s := range list {
		hostPort, all := strings.CutPrefix(s, "dns:///")
		host, port, err := net.SplitHostPort(hostPort)
		if err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("%w: server %.200q: host:port or dns:///host:port expected", ErrOptions, s)
		}
		out = append(out, address{host: host, port: port, all: all})
	}
	return out, nil
}
