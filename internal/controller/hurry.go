// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// lastPoll is what decides when the next poll is due.
type lastPoll struct {
	began   time.Time
	took    time.Duration
	servers []string  // by name
	silent  bool      // one of them did not answer
	changed time.Time // when the servers became these
}

func (l *lastPoll) saw(answers []polled) {
	names := make([]string, 0, len(answers))
	l.silent = false
	for _, a := range answers {
		names = append(names, a.server.Name)
		l.silent = l.silent || a.err != nil
	}
	if !slices.Equal(names, l.servers) {
		l.servers, l.changed = names, time.Now()
	}
}

// hurryShare is how many times as long as a poll took the next waits at least:
// a large index is not read all the time.
const hurryShare = 10

// due says whether to poll now: at the interval, and sooner when servers come
// or go, or a first event is awaited. It reads caches only. It is called each
// time there might be reason for hurry, and the nearest of these times to the
// interval counts.
func (p *Poller) due(ctx context.Context) bool {
	since := time.Since(p.last.began)
	if since >= p.options.Interval-p.options.Hurry/2 {
		return true
	}
	return since >= hurryShare*p.last.took && (p.serversMove(ctx) || p.firstEventAwaited(ctx))
}

// serversMove says whether there are others than in the last poll, or new ones
// that may not listen yet.
func (p *Poller) serversMove(ctx context.Context) bool {
	if p.last.silent && time.Since(p.last.changed) < p.options.Interval {
		return true
	}
	servers, err := p.options.Discovery.Servers(ctx)
	return err == nil && !slices.EqualFunc(servers, p.last.servers, func(s Server, name string) bool { return s.Name == name })
}

// firstEventAwaited says whether there are engines of which nothing was heard
// yet, and servers that could tell.
func (p *Poller) firstEventAwaited(ctx context.Context) bool {
	var list v1alpha1.CacheBackendList
	if p.last.silent || p.options.Client.List(ctx, &list, client.UnsafeDisableDeepCopy) != nil {
		return false
	}
	return slices.ContainsFunc(list.Items, func(b v1alpha1.CacheBackend) bool {
		ready := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionReady)
		matched := b.Status.MatchedEnginePods
		return ready != nil && ready.Reason == reasonAwaitingFirstKVEvent && matched != nil && *matched > 0
	})
}
