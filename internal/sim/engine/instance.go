// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/eventsock"
	"github.com/inferencecache/inference-cache/internal/sim/httpapi"
	"github.com/inferencecache/inference-cache/internal/sim/rank"
	"github.com/inferencecache/inference-cache/internal/zmtp"
)

// instance is one life of an engine between start and kill.
type instance struct {
	address string
	ranks   []*rank.Rank
	sockets []*eventsock.Socket // one a rank, or none
	server  *http.Server
	// bootstrap is nil unless the engine has rooms.
	bootstrap        *http.Server
	bootstrapAddress string
	cancel           context.CancelFunc
	tasks            sync.WaitGroup
}

func startInstance(config Config, crash func()) (*instance, error) {
	listener, err := net.Listen("tcp", config.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	in := &instance{address: listener.Addr().String()}
	if !config.NoEvents {
		if in.sockets, err = openSockets(config.Events, config.Ranks); err != nil {
			return nil, errors.Join(err, listener.Close())
		}
	}
	var meetings net.Listener
	if config.hasBootstrap() {
		if meetings, err = net.Listen("tcp", config.BootstrapListen); err != nil {
			for _, socket := range in.sockets {
				_ = socket.Close()
			}
			return nil, errors.Join(fmt.Errorf("listen for decode engines: %w", err), listener.Close())
		}
		in.bootstrapAddress = meetings.Addr().String()
	}
	ctx, cancel := context.WithCancel(context.Background())
	in.cancel = cancel
	var sources []httpapi.EventSource
	for i := range config.Ranks {
		options := rank.Options{
			Scheduler:     config.newScheduler,
			Timing:        config.Timing,
			FlushWhenIdle: config.Runtime == httpapi.SGLang,
			HoldFor:       config.HoldFor,
			Clock:         config.Clock,
		}
		if len(in.sockets) > 0 {
			options.Publisher, options.Encoder = in.sockets[i], config.encoder(i)
			sources = append(sources, httpapi.EventSource{
				Rank: i, Endpoint: in.sockets[i].Endpoint(),
				ReplayEndpoint: in.sockets[i].ReplayEndpoint(), Topic: config.Events.Topic,
			})
		}
		r := rank.New(options)
		in.ranks = append(in.ranks, r)
		in.tasks.Go(func() { r.Run(ctx) })
	}
	handler := httpapi.New(in.httpOptions(config, sources, crash))
	in.server = in.serve(ctx, listener, handler)
	if meetings != nil {
		in.bootstrap = in.serve(ctx, meetings, handler.BootstrapHandler())
	}
	return in, nil
}

func (in *instance) httpOptions(config Config, sources []httpapi.EventSource, crash func()) httpapi.Options {
	options := httpapi.Options{
		Runtime: config.Runtime, Model: config.Model, Adapters: config.Adapters,
		Version: config.version(), AnswerSeed: config.AnswerSeed, Ranks: in.ranks,
		Events: sources, HideCachedTokens: config.HideCachedTokens, Role: config.Role, Clock: config.Clock,
	}
	if config.Faults {
		options.Inject = func(_ context.Context, fault httpapi.Fault) error {
			return in.inject(fault, crash)
		}
	}
	return options
}

func (in *instance) serve(ctx context.Context, listener net.Listener, handler http.Handler) *http.Server {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       5 * time.Second, // engines close idle connections early
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	in.tasks.Go(func() { _ = server.Serve(listener) }) // returns when killed
	return server
}

// drain refuses new requests and waits for running ones, at most for grace.
func (in *instance) drain(grace time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	_ = in.server.Shutdown(ctx) // a stream that outlives the grace is cut by kill
}

func (in *instance) kill() {
	_ = in.server.Close()
	if in.bootstrap != nil {
		_ = in.bootstrap.Close()
	}
	in.cancel()
	for _, socket := range in.sockets {
		_ = socket.Close()
	}
	in.tasks.Wait()
}

// portAttempts bounds the search for consecutive free ports.
const portAttempts = 50

// openSockets opens one event socket a rank; rank n has rank 0's ports plus n.
func openSockets(options eventsock.Options, ranks int) ([]*eventsock.Socket, error) {
	var failure error
	for range portAttempts {
		first, err := eventsock.Open(options)
		if err != nil {
			return nil, err
		}
		sockets, err := openFurther(options, first, ranks)
		if err == nil {
			return sockets, nil
		}
		for _, socket := range sockets {
			_ = socket.Close()
		}
		failure = err
	}
	return nil, failure
}

// openFurther returns what it opened also when it fails.
func openFurther(options eventsock.Options, first *eventsock.Socket, ranks int) ([]*eventsock.Socket, error) {
	sockets := []*eventsock.Socket{first}
	for n := 1; n < ranks; n++ {
		var err error
		next := options
		if next.Endpoint, err = shift(first.Endpoint(), n); err != nil {
			return sockets, err
		}
		if first.ReplayEndpoint() != "" {
			if next.Replay, err = shift(first.ReplayEndpoint(), n); err != nil {
				return sockets, err
			}
		}
		socket, err := eventsock.Open(next)
		if err != nil {
			return sockets, err
		}
		sockets = append(sockets, socket)
	}
	return sockets, nil
}

func shift(endpoint string, n int) (string, error) {
	parsed, err := zmtp.ParseEndpoint(endpoint)
	if err != nil {
		return "", err
	}
	shifted, err := parsed.Shift(n)
	if err != nil {
		return "", err
	}
	return shifted.String(), nil
}
