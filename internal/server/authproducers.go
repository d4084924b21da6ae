// SPDX-License-Identifier: Apache-2.0

package server

import (
	"container/list"
	"maps"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/ingest"
)

const (
	maxProducers = 65_536
	// maxModels and maxSchemes bound what one pod may write about within the
	// time of ownership.
	maxModels  = 8
	maxSchemes = 2
	// ownership is how long a replica is its publisher's after a sign of it.
	// Open streams give one at each review.
	ownership = 30 * time.Minute
)

// producers remembers which pods wrote with credentials, and about what. The
// one seen longest ago is forgotten when there are too many. It is safe for
// concurrent use.
type producers struct {
	mu    sync.Mutex
	pods  map[podKey]*list.Element // of *producer, guarded by mu
	order *list.List               // by time seen, guarded by mu
}

type podKey struct{ tenant, pod string }

type producer struct {
	key             podKey
	models, schemes recentNames
	seen            time.Time
}

// recentNames are names with the time each was used last.
type recentNames map[string]time.Time

// use notes a use of a name; false when too many others were in use lately.
// The empty name is none.
func (r recentNames) use(name string, most int, now time.Time) bool {
	if _, known := r[name]; !known && len(r) >= most {
		maps.DeleteFunc(r, func(_ string, used time.Time) bool { return now.Sub(used) >= ownership })
		if len(r) >= most {
			return name == ""
		}
	}
	if name != "" {
		r[name] = now
	}
	return true
}

func newProducers() *producers {
	return &producers{pods: make(map[podKey]*list.Element), order: list.New()}
}

// claim notes a write; false when the pod writes about too many models or
// schemes.
func (p *producers) claim(w ingest.Write, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod := p.touchLocked(podKey{w.Tenant, auth.PodOf(w.Replica)}, now)
	return pod.models.use(w.Model, maxModels, now) && pod.schemes.use(w.Scheme, maxSchemes, now)
}

// owns reports whether a publisher with credentials writes as the replica.
func (p *producers) owns(tenant, replica string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	element, ok := p.pods[podKey{tenant, auth.PodOf(replica)}]
	return ok && now.Sub(element.Value.(*producer).seen) < ownership
}

func (p *producers) touchLocked(key podKey, now time.Time) *producer {
	element, ok := p.pods[key]
	if !ok {
		if len(p.pods) >= maxProducers {
			oldest := p.order.Front()
			delete(p.pods, p.order.Remove(oldest).(*producer).key)
		}
		element = p.order.PushBack(&producer{key: key, models: make(recentNames), schemes: make(recentNames)})
		p.pods[key] = element
	}
	p.order.MoveToBack(element)
	pod := element.Value.(*producer)
	pod.seen = now
	return pod
}
