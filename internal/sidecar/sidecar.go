// SPDX-License-Identifier: Apache-2.0

package sidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/inferencecache/inference-cache/internal/publisher"
	"github.com/inferencecache/inference-cache/internal/version"
)

// httpGrace is how long answers may still take after the end.
const httpGrace = time.Second

// Sidecar is one publisher process.
type Sidecar struct {
	options  Options
	listener net.Listener // nil without HTTP

	mu    sync.Mutex
	fault error // why there is no publisher; nil if there is; guarded by mu
	// waiting means that the fault may go away: files that come later. Guarded
	// by mu.
	waiting bool
	pub     *publisher.Publisher // guarded by mu
	servers *servers             // written before pub; used by Run alone
}

// state returns the publisher, or why there is none.
func (s *Sidecar) state() (*publisher.Publisher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pub, s.fault
}

// New checks the options and binds the HTTP address. The error is ErrOptions
// for options that cannot work. With KeepRunning there is none: what it cannot
// have it goes without.
func New(options Options) (*Sidecar, error) {
	s := &Sidecar{options: options.withDefaults()}
	s.options.Registry.MustRegister(version.Collector("publisher"))
	if err := s.build(); err != nil {
		if !options.KeepRunning {
			return nil, err
		}
		s.options.Logger.Error("running without a publisher", "error", err)
	}
	if s.options.HTTPAddress != "" {
		var err error
		s.listener, err = net.Listen("tcp", s.options.HTTPAddress)
		switch {
		case err == nil:
		case options.KeepRunning:
			s.options.Logger.Error("running without health, status and metrics", "error", err)
		default:
			return nil, fmt.Errorf("serve HTTP: %w", err)
		}
	}
	return s, nil
}

// build makes the publisher, or keeps why it cannot.
func (s *Sidecar) build() error {
	o := s.options
	addresses, client, err := o.check()
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fault, s.waiting = err, o.Fault == nil
		return err
	}
	pub, err := publisher.New(o.Publisher, nil, publisher.Deps{
		Logger:     o.Logger,
		Registerer: o.Registry,
		Version:    o.Version,
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting = false; err != nil {
		s.fault = fmt.Errorf("%w: %w", ErrOptions, err)
		return s.fault
	}
	s.servers = &servers{
		addresses:     addresses,
		resolver:      o.Resolver,
		dial:          dialer(client),
		authorization: client.Authorization,
		adopt:         pub.SetTargets,
		logger:        o.Logger,
		conns:         map[string]*grpc.ClientConn{},
		known:         map[address][]string{},
	}
	s.pub, s.fault = pub, nil
	return nil
}

// await tries again until there is a publisher, and returns nil if ctx ends
// before.
func (s *Sidecar) await(ctx context.Context) *publisher.Publisher {
	ticker := time.NewTicker(s.options.ResolveInterval)
	defer ticker.Stop()
	for {
		if pub, fault := s.state(); fault == nil {
			return pub
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		s.mu.Lock()
		waiting := s.waiting
		s.mu.Unlock()
		if waiting && s.build() == nil {
			s.options.Logger.Info("the options work now")
		}
	}
}

// HTTPAddress is where HTTP is served; empty without.
func (s *Sidecar) HTTPAddress() string {
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Run works until ctx ends and returns within three seconds of that.
func (s *Sidecar) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var tasks sync.WaitGroup
	if s.listener != nil {
		web := s.newHTTPServer()
		tasks.Go(func() {
			if err := web.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
				cancel(fmt.Errorf("serve HTTP: %w", err))
			}
		})
		defer tasks.Wait()
		defer closeHTTP(web)
	}
	pub := s.await(ctx)
	if pub == nil {
		return failure(ctx)
	}
	defer s.servers.close()
	var resolving sync.WaitGroup
	defer resolving.Wait()
	resolving.Go(func() { s.servers.run(ctx, s.options.ResolveInterval) })
	if err := pub.Run(ctx); err != nil {
		cancel(err)
		return err
	}
	<-ctx.Done()
	return failure(ctx)
}

// failure is nil where the context just ended.
func failure(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func closeHTTP(web *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), httpGrace)
	defer cancel()
	if web.Shutdown(ctx) != nil {
		_ = web.Close()
	}
}

// newHTTPServer serves /livez, /readyz, /status and /metrics.
func (s *Sidecar) newHTTPServer() *http.Server {
	return &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelWarn),
	}
}
