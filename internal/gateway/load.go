// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/inferencecache/inference-cache/internal/engines"
	"github.com/inferencecache/inference-cache/internal/routing"
)

// readLoad takes a load report, and whether the engine sleeps. What cannot be
// read changes nothing: old reports stop to count by themselves.
func (g *Gateway) readLoad(ctx context.Context, u *upstream) {
	ctx, cancel := context.WithTimeout(ctx, g.options.Timeouts.Health)
	defer cancel()
	at := time.Now()
	if u.Runtime == engines.SGLang {
		if load, err := engines.Loads(ctx, u.client, u.base.String(), u.Rank); err == nil {
			g.setReport(u, routing.Report{WaitingTokens: load.WaitingTokens, Usage: load.Usage}, at)
			return
		}
	}
	profile, _ := engines.ProfileOf(u.Runtime)
	families, err := engines.Scrape(ctx, u.client, u.url(profile.MetricsPath))
	if err != nil {
		return
	}
	if load, err := u.meter.Read(families); err == nil {
		g.setReport(u, routing.Report{WaitingTokens: int64(load.Waiting) * waitingTokens, Usage: load.Usage}, at)
	}
	if u.Runtime != engines.VLLM {
		return
	}
	asleep, known := families.Asleep()
	if !known {
		asleep, known = g.askAsleep(ctx, u)
	}
	if known && asleep != u.asleep {
		u.asleep = asleep
		g.whileListed(u, func() { g.fleet.SetAsleep(u.ID, asleep) })
		g.logger.Info("replica fell asleep or woke up", "replica", u.ID, "asleep", asleep)
	}
}

func (g *Gateway) setReport(u *upstream, report routing.Report, at time.Time) {
	g.whileListed(u, func() { g.fleet.SetReport(u.ID, report, at) })
}

// askAsleep asks an engine whose metrics do not tell. One that does not answer
// either is asked again when its configuration is next looked at.
func (g *Gateway) askAsleep(ctx context.Context, u *upstream) (asleep, known bool) {
	if u.mute && u.checks%discoverEvery != 0 {
		return false, false
	}
	u.mute = true
	body, err := g.get(ctx, u, "/is_sleeping")
	if err != nil {
		return false, false
	}
	defer body.Close()
	var answer struct {
		IsSleeping *bool `json:"is_sleeping"`
	}
	data, err := io.ReadAll(io.LimitReader(body, 4<<10))
	if err != nil || json.Unmarshal(data, &answer) != nil || answer.IsSleeping == nil {
		return false, false
	}
	u.mute = false
	return *answer.IsSleeping, true
}
