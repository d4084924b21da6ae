// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/defaults"
	"github.com/inferencecache/inference-cache/internal/engines"
	"github.com/inferencecache/inference-cache/internal/zmtp"
)

// MaxRanks is the most data-parallel ranks one publisher follows.
const MaxRanks = 1024

// Config describes one engine and how it is reported. Replica, and one of
// Events and BaseURL, are required; without BaseURL also Model.
type Config struct {
	// Tenant owns the engine. Default "local".
	Tenant string
	// Model the engine serves. Default: the first base model it lists.
	Model string
	// Scheme is the engine's runtime and the hash scheme of its blocks.
	// Default "vllm".
	Scheme string
	// Replica names the engine in the index; its ranks are <Replica>#<rank>.
	Replica string
	// PodUID is part of the incarnation, default none.
	PodUID string

	// BaseURL is the engine's HTTP API, http://host:port. Default none.
	BaseURL string
	// Events is the event socket of rank 0. Default: what the engine tells,
	// else the usual port of its runtime on the host of BaseURL.
	Events string
	// Bind waits at Events for the engine to connect, default false: dial it.
	Bind bool
	// Replay is the replay socket of rank 0, default none.
	Replay string
	// Topic filters events by prefix, default all.
	Topic string
	// Ranks is how many data-parallel ranks to follow, each at the ports of
	// rank 0 plus its number. Default 0: what the engine or its batches tell.
	Ranks int
	// FirstRank is the number of the first of them, default 0.
	FirstRank int

	// MetricsURL is where load is read. Default: BaseURL and the usual path.
	MetricsURL string
	// StatsInterval is the time between two readings. Default 10 s; negative
	// turns them off.
	StatsInterval time.Duration
	// Load tunes how load is computed. Its rank is set here.
	Load engines.LoadOptions

	// Session tunes event handling. Its Scheme, HasReplay and rank are set
	// here.
	Session SessionConfig
	// Hub tunes the links to servers. Its Observer is set here.
	Hub HubOptions

	// ReconnectMin and ReconnectMax bound the wait between two attempts to
	// reach a socket of the engine. Defaults 100 ms and 500 ms, so that an
	// engine that restarted is followed again within a second.
	ReconnectMin, ReconnectMax time.Duration
	// ReplayTimeout is how long a replay may send nothing, ReplayLimit how
	// long it may take. Defaults 5 s and 60 s.
	ReplayTimeout, ReplayLimit time.Duration
}

// Deps are what a Publisher uses of its surroundings. The zero value works.
type Deps struct {
	// Logger is silent when nil.
	Logger *slog.Logger
	// Registerer takes the metrics, default nowhere.
	Registerer prometheus.Registerer
	// HTTPClient asks the engine. Default: a client that follows no redirect
	// and uses no proxy.
	HTTPClient *http.Client
	// Dial opens connections to the engine's sockets. Default: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Jitter returns a number in [0, 1). Default math/rand.
	Jitter func() float64
	// Epoch tells lives of this publisher apart. Default random.
	Epoch uint64
	// Version is reported to servers, default empty.
	Version string
}

func (c Config) withDefaults() Config {
	if c.Tenant == "" {
		c.Tenant = "local"
	}
	if c.Scheme == "" {
		c.Scheme = engines.VLLM
	}
	if c.MetricsURL == "" && c.BaseURL != "" {
		profile, _ := engines.ProfileOf(c.Scheme)
		c.MetricsURL = strings.TrimRight(c.BaseURL, "/") + profile.MetricsPath
	}
	if c.StatsInterval == 0 {
		c.StatsInterval = 10 * time.Second
	}
	defaults.Positive(&c.ReconnectMin, 100*time.Millisecond)
	defaults.Positive(&c.ReconnectMax, 500*time.Millisecond)
	defaults.Positive(&c.ReplayTimeout, 5*time.Second)
	defaults.Positive(&c.ReplayLimit, time.Minute)
	return c
}

func (d Deps) withDefaults() Deps {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.HTTPClient == nil {
		d.HTTPClient = &http.Client{
			// Redirects and proxies could lead to hosts nobody configured.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport:     &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute},
		}
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Jitter == nil {
		d.Jitter = rand.Float64
	}
	if d.Epoch == 0 {
		d.Epoch = rand.Uint64()
	}
	return d
}

// check reports the first fault of a Config that has its defaults.
func (c Config) check() error {
	switch {
	case c.Replica == "":
		return errors.New("replica: a name is needed")
	case strings.ContainsAny(c.Replica, "#"):
		return fmt.Errorf("replica %.200q: # is kept for ranks", c.Replica)
	case c.Events == "" && c.BaseURL == "":
		return errors.New("events: an endpoint is needed where no engine URL is given")
	case c.Model == "" && c.BaseURL == "":
		return errors.New("model: a name is needed where no engine URL is given")
	case c.Bind && c.Events == "":
		return errors.New("events: an endpoint is needed to bind")
	case c.Ranks < 0 || c.FirstRank < 0 || c.FirstRank+c.Ranks > MaxRanks:
		return fmt.Errorf("ranks %d from %d: 0 to %d expected", c.Ranks, c.FirstRank, MaxRanks)
	}
	if err := checkURL(c.BaseURL); err != nil {
		return fmt.Errorf("engine URL: %w", err)
	}
	if err := checkURL(c.MetricsURL); err != nil {
		return fmt.Errorf("metrics URL: %w", err)
	}
	return c.checkPorts()
}

// checkURL does not repeat what it refuses: it may hold a password.
func checkURL(raw string) error {
	if raw == "" {
		return nil
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return errors.New("http://host:port expected")
	}
	return nil
}

// checkPorts makes sure that the sockets of all ranks exist and do not meet.
func (c Config) checkPorts() error {
	if c.Events == "" {
		return nil
	}
	events, err := zmtp.ParseEndpoint(c.Events)
	if err != nil {
		return fmt.Errorf("events: %w", err)
	}
	last := c.FirstRank + max(c.Ranks, 1) - 1
	if _, err := events.Shift(last); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	if c.Replay == "" {
		return nil
	}
	replay, err := zmtp.ParseEndpoint(c.Replay)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	if _, err := replay.Shift(last); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	distance := max(replay.Port-events.Port, events.Port-replay.Port)
	if replay.Network == "tcp" && replay.Host == events.Host && distance < max(c.Ranks, 1) {
		return fmt.Errorf("replay %s: too near to events %s for %d ranks", replay, events, max(c.Ranks, 1))
	}
	return nil
}
