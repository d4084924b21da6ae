// SPDX-License-Identifier: Apache-2.0

package index

import (
	"encoding/binary"
	"sync"
	"time"
)

// membership is what one replica said about one key.
type membership struct {
	seen   int64
	tokens int32
	tier   Tier
	count  int64 // LFU credits
}

// holders maps replicas to their hold on one key.
type holders map[string]membership

type session struct {
	up   bool
	beat int64 // last heartbeat, 0 = none
}

// scopeState is one scope: adapter -> key bytes -> holders.
type scopeState struct {
	parts    map[string]map[string]holders
	sessions map[string]*session
}

// identity names a replica inside a tenant and model.
type identity struct{ tenant, model, replica string }

// presence is what is known about a replica apart from its keys.
type presence struct {
	stats       *Stats
	heard       int64
	payloads    int // in a row, at regular gaps
	lastPayload int64
	regular     bool
}

// Index is safe for concurrent use. A goroutine that holds a View must release
// it before it calls a writing method.
type Index struct {
	cfg Config

	mu           sync.RWMutex
	defaults     TenantRules
	rules        map[string]TenantRules
	scopes       map[Scope]*scopeState
	replicas     map[identity]*presence
	evictions    Evictions
	quotaEvicted map[string]int64
}

// New returns an empty index.
func New(cfg Config) *Index {
	cfg = cfg.withDefaults()
	return &Index{
		cfg:          cfg,
		defaults:     cfg.DefaultRules,
		scopes:       map[Scope]*scopeState{},
		replicas:     map[identity]*presence{},
		quotaEvicted: map[string]int64{},
	}
}

// SetRules replaces all rules: tenants without own rules get defaults. Limits
// are enforced at the next ingest of a tenant.
func (x *Index) SetRules(defaults TenantRules, byTenant map[string]TenantRules) {
	rules := make(map[string]TenantRules, len(byTenant))
	for tenant, r := range byTenant {
		rules[tenant] = r.withDefaults()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.defaults, x.rules = defaults.withDefaults(), rules
}

func (x *Index) rulesOf(tenant string) TenantRules {
	if r, ok := x.rules[tenant]; ok {
		return r
	}
	return x.defaults
}

// lock starts an exclusive section; the returned function ends it.
func (x *Index) lock(op string) func() {
	x.mu.Lock()
	start := time.Now()
	return func() {
		spent := time.Since(start)
		x.mu.Unlock()
		if x.cfg.Observe != nil {
			x.cfg.Observe(op, spent)
		}
	}
}

func (x *Index) scope(s Scope) *scopeState {
	st := x.scopes[s]
	if st == nil {
		st = &scopeState{parts: map[string]map[string]holders{}, sessions: map[string]*session{}}
		x.scopes[s] = st
	}
	return st
}

func (x *Index) presence(id identity) *presence {
	p := x.replicas[id]
	if p == nil {
		p = &presence{}
		x.replicas[id] = p
	}
	return p
}

// effective is the time that age counts from.
func (st *scopeState) effective(replica string, seen int64) int64 {
	if s := st.sessions[replica]; s != nil {
		return max(seen, s.beat)
	}
	return seen
}

// bytesOf returns key i of a list.
func bytesOf(k Keys, i int) string {
	if k.Long != nil {
		return string(k.Long[i])
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], k.Short[i])
	return string(b[:])
}

func validKey(key string) bool { return len(key) > 0 && len(key) <= MaxKeyBytes }

func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -((-a + b - 1) / b)
	}
	return a / b
}

// swept says that a time is so old that Maintain removes it: expiry works on
// whole seconds.
func swept(effective, now, ttl int64) bool {
	return floorDiv(effective, 1000) < floorDiv(now-ttl, 1000)
}
