// SPDX-License-Identifier: Apache-2.0

package index

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// Index is safe for concurrent use. A goroutine that holds a View must release
// it before it calls a writing method.
type Index struct {
	cfg     Config
	seed    uint64
	mixer   mixer
	rules   atomic.Pointer[ruleSet]
	limits  limits
	evictor evictor
	fading  fading
	bytes   byteCount
	slabs   slabs
	writers sync.Pool
	matches sync.Pool

	memberships, keys atomic.Int64 // reserved tenant left out
	evictions         evictionCount
	truncated         atomic.Bool // a session lost memberships to a bound

	// mu guards the directory.
	mu      sync.RWMutex
	scopes  map[Scope]*scope
	homes   map[homeKey]*home
	tenants map[string]*tenant
	models  map[string]*model
}

type homeKey struct{ tenant, model string }

// ruleSet is what SetRules was given.
type ruleSet struct {
	defaults TenantRules
	tenants  map[string]TenantRules
}

// New returns an empty index.
func New(cfg Config) *Index {
	cfg = cfg.withDefaults()
	x := &Index{
		cfg: cfg, seed: cfg.Seed,
		scopes:  map[Scope]*scope{},
		homes:   map[homeKey]*home{},
		tenants: map[string]*tenant{},
		models:  map[string]*model{},
	}
	if x.seed == 0 {
		x.seed = rand.Uint64()
	}
	x.fading.halfLife = cfg.LFUHalfLifeMillis
	x.mixer = newMixer(x.seed)
	x.evictor.off = cfg.MaxMemberships <= 0 && cfg.MaxMemoryBytes <= 0
	x.limits.maxTenants, x.limits.maxPartitions = cfg.MaxTenants, cfg.MaxPartitions
	x.writers.New = func() any { return newWriter() }
	x.matches.New = func() any { return &matcher{} }
	x.rules.Store(&ruleSet{defaults: cfg.DefaultRules})
	return x
}

// SetRules replaces all rules: tenants without own rules get defaults. Limits
// are enforced at the next ingest of a tenant.
func (x *Index) SetRules(defaults TenantRules, byTenant map[string]TenantRules) {
	set := &ruleSet{defaults: defaults.withDefaults(), tenants: make(map[string]TenantRules, len(byTenant))}
	for name, r := range byTenant {
		set.tenants[name] = r.withDefaults()
	}
	old := x.rules.Swap(set)
	for _, s := range x.allScopes() {
		s.recheckBy(0)
		was, is := old.of(s.id.Tenant), set.of(s.id.Tenant)
		if was.LFU != is.LFU || was.Limited != is.Limited {
			s.rerank()
		}
	}
}

func (x *Index) rulesOf(tenant string) TenantRules { return x.rules.Load().of(tenant) }

func (set *ruleSet) of(tenant string) TenantRules {
	if r, ok := set.tenants[tenant]; ok {
		return r
	}
	return set.defaults
}

// existing returns a scope or nil.
func (x *Index) existing(id Scope) *scope {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.scopes[id]
}

func (x *Index) home(tenant, model string) *home {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.homes[homeKey{tenant, model}]
}

func (x *Index) tenant(name string) *tenant {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.tenants[name]
}

func (x *Index) allScopes() []*scope {
	x.mu.RLock()
	defer x.mu.RUnlock()
	out := make([]*scope, 0, len(x.scopes))
	for _, s := range x.scopes {
		out = append(out, s)
	}
	return out
}

// lockScope returns the scope with its write lock held. A scope that does not
// exist is made when create is set; else nil is returned.
func (x *Index) lockScope(id Scope, create bool) *scope {
	for {
		s := x.existing(id)
		if s == nil {
			if !create {
				return nil
			}
			s = x.makeScope(id)
		}
		begin := x.waitBegin()
		s.write.Lock()
		x.waited(WaitWrite, begin)
		if !s.closed {
			return s
		}
		s.write.Unlock()
		x.unlink(s)
	}
}

func (x *Index) makeScope(id Scope) *scope {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := x.scopes[id]; s != nil {
		return s
	}
	h := x.homeLocked(id.Tenant, id.Model)
	s := newScope(x, id, h)
	x.scopes[id] = s
	h.mu.Lock()
	h.scopes[id.Scheme] = s
	h.mu.Unlock()
	return s
}

// homeLocked returns the home of a tenant and model, made on demand.
func (x *Index) homeLocked(tenantName, modelName string) *home {
	key := homeKey{tenantName, modelName}
	if h := x.homes[key]; h != nil {
		return h
	}
	t := x.tenants[tenantName]
	if t == nil {
		t = &tenant{name: tenantName, reserved: tenantName == x.cfg.ReservedTenant, homes: map[string]*home{}}
		x.tenants[tenantName] = t
	}
	m := x.models[modelName]
	if m == nil {
		m = &model{}
		x.models[modelName] = m
	}
	m.homes++
	h := &home{x: x, tenant: t, model: m, name: modelName, scopes: map[string]*scope{}, replicas: map[string]*replica{}}
	x.homes[key] = h
	t.homes[modelName] = h
	return h
}
