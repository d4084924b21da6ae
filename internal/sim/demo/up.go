// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/inferencecache/inference-cache/internal/standalone"
)

const (
	readyLimit = 20 * time.Second
	readyPause = 50 * time.Millisecond

	lookupLimit   = 100 * time.Millisecond
	tokenizeLimit = time.Second
)

// Up returns a Front that runs `up` in this process, on free ports of the
// loopback. It is silent when logger is nil.
func Up(logger *slog.Logger) Front {
	return func(ctx context.Context, policy string, engines []Addresses) (Route, error) {
		config := standalone.Config{
			Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", GRPC: "127.0.0.1:0",
			// Longer limits than the defaults, so that a busy machine, which
			// also runs the engines, does not decide the comparison.
			Routing: standalone.Routing{
				Policy: policy, ExposeReplica: true, LookupTimeout: standalone.Duration(lookupLimit),
			},
			Tokenizer: standalone.Tokenizer{Timeout: standalone.Duration(tokenizeLimit)},
		}
		for i, e := range engines {
			config.Engines = append(config.Engines, standalone.Engine{
				URL: e.HTTP, Events: e.Events, Replay: e.Replay, Replica: fmt.Sprintf("engine-%d", i+1),
			})
		}
		up, err := standalone.New(config, standalone.Deps{Logger: logger})
		if err != nil {
			return nil, err
		}
		if err := up.Start(); err != nil {
			return nil, err
		}
		runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		route := &upRoute{url: "http://" + up.Addresses().Gateway, cancel: cancel, done: make(chan error, 1)}
		go func() { route.done <- up.Run(runCtx) }()
		if err := waitReady(ctx, "http://"+up.Addresses().Admin+"/readyz"); err != nil {
			return nil, errors.Join(err, route.Close())
		}
		return route, nil
	}
}

type upRoute struct {
	url    string
	cancel context.CancelFunc
	done   chan error
}

// URL implements Route.
func (r *upRoute) URL() string { return r.url }

// Close implements Route.
func (r *upRoute) Close() error {
	r.cancel()
	return <-r.done
}

// waitReady asks until the answer is 200.
func waitReady(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer := ""
	for {
		ready, text, err := ask(ctx, client, url)
		switch {
		case ready:
			return nil
		case err == nil:
			answer = text
		}
		timer := time.NewTimer(readyPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for the router (last answer %q): %w", answer, ctx.Err())
		}
	}
}

func ask(ctx context.Context, client *http.Client, url string) (ready bool, text string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return false, "", err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(response.Body, 1<<12))
	return response.StatusCode == http.StatusOK, string(raw), err
}
