// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/credential"
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
	// Credentials are shown to servers and check them. Default none.
	Credentials credential.Options
	// KeepRunning keeps Run alive, unready, where options are wrong, and without
	// HTTP where its address is in use. Files that are missing are looked for
	// again at every ResolveInterval. Default false.
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

// check finds the first fault and returns the servers and the credentials for
// them.
func (o Options) check() ([]address, *credential.Client, error) {
	if o.Fault != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrOptions, o.Fault)
	}
	addresses, err := parseServers(o.Servers)
	if err != nil {
		return nil, nil, err
	}
	o.Credentials.Logger = o.Logger
	client, err := credential.Open(o.Credentials)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	for _, a := range addresses {
		if err := client.Check(a.host); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrOptions, err)
		}
	}
	return addresses, client, nil
}

// address is one entry of Options.Servers.
type address struct {
	host, port string
	// all means every address of the name, not any one.
	all bool
}

func (a address) String() string { return net.JoinHostPort(a.host, a.port) }

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
