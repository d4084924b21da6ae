// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/breaker"
	"github.com/inferencecache/inference-cache/internal/defaults"
)

// Options configure a Fleet. The zero value works.
type Options struct {
	// Policy chooses among eligible replicas; it must not be shared between
	// fleets. Default: hint.
	Policy Policy
	// Rand breaks ties; only the fleet may use it. Default: randomly seeded.
	Rand *rand.Rand
	// PrefillRate is a replica's speed before it was measured, in tokens per
	// second. Default 8,000.
	PrefillRate float64
	// ToleratedTTFT is the queueing time beyond which a replica counts as
	// saturated. Default 2 s.
	ToleratedTTFT time.Duration
	// ReportTTL is how long a load report counts. Default 15 s.
	ReportTTL time.Duration
	// Breaker holds the thresholds of each replica's breaker.
	Breaker breaker.Settings
	// SpeculativeTTL is how long own placements count beside what the index
	// says. Default 2 s.
	SpeculativeTTL time.Duration
	// ApproxTTL is how long own placements count where the index says nothing.
	// Default 120 s; negative remembers them for SpeculativeTTL only.
	ApproxTTL time.Duration
	// ApproxLimit bounds the remembered pairs of a replica and a key. Default
	// 262,144.
	ApproxLimit int
	// BalanceShare is the share of prompt tokens that may be computed again to
	// even out the load. Default 0.0175; negative is none.
	BalanceShare float64
	// RecentHalfLife is the time in which a dispatch loses half its weight in
	// a replica's share of the load. Default 10 min.
	RecentHalfLife time.Duration
	// StickyTTL is how long a sticky key without requests keeps its replica.
	// Default 10 min.
	StickyTTL time.Duration
	// StickyLimit bounds the remembered sticky keys. Default 65,536.
	StickyLimit int
	// StickyInflight is how many requests of one sticky key its replica takes
	// at once. Default 2.
	StickyInflight int
	// Warmup sends young replicas a share of the requests whose prefix they do
	// not hold. Default false.
	Warmup bool
	// RecordLimit bounds Decision.Candidates. Default 32.
	RecordLimit int
}

// Replica describes a member of a fleet.
type Replica struct {
	ID string
	// UID tells apart replicas that follow each other under one id. A new UID
	// starts without load, breaker or report.
	UID  string
	Role Role
	// Transport is how prefill and decode replicas pass KV on; only equal ones
	// make a pair.
	Transport string
	// NeedsPrefill is a decode replica that computes no prompt itself.
	NeedsPrefill bool
	// MaxInflight bounds this process's requests to it; 0 means no bound.
	MaxInflight int
	// Tenants are the callers it serves; empty means all.
	Tenants []string
	// Cordoned replicas finish what they have and get nothing new.
	Cordoned bool
}

// Serves says which adapters a replica serves, by base model. A model without
// adapters has an empty list.
type Serves map[string][]string

// Report is what an engine says about its load.
type Report struct {
	// WaitingTokens are uncached tokens of waiting requests, of all clients.
	WaitingTokens int64
	// Usage of the engine's cache memory, from 0 to 1.
	Usage float64
}

// Fleet holds the replicas and their load. It is safe for concurrent use.
type Fleet struct {
	options  Options
	loadOnly Policy

	mu sync.Mutex
	// Everything below and every *member is guarded by mu.
	byID    map[string]*member
	ordered []*member // by id
	// bySlot finds members by their place in placed.
	bySlot   map[uint32]*member
	nextSlot uint32
	// placed holds what was placed by role; made when first used.
	placed  [RoleDecode + 1]*placements
	pins    *pins
	balance balance
	recency recency
	// The rest is scratch space of one decision.
	considered []Candidate // parallel to ordered
	claims     []int       // of the index, parallel to ordered
	eligible   []int       // positions in considered
	order      []int       // positions in considered, most telling first
	selection  Selection
}

// member is a replica and its state.
type member struct {
	replica Replica
	serves  Serves
	ready   bool
	drained bool
	asleep  bool
	breaker *breaker.Breaker
	honesty honesty
	record  record
	// ejectedUntil is when the latest ejection as an outlier ends, readySince
	// when the replica was first seen ready.
	ejectedUntil, readySince time.Time
	// slot stands for the replica, as long as its cache lives, in placed.
	slot uint32
	// recent is a decaying count of requests, see recency.
	recent float64

	inflight int
	// pending are the uncached tokens of own requests without a first byte.
	pending int64
	rate    float64
	// unseen are guards whose first byte will not tell the end of the prefill.
	unseen []*Guard

	report   Report
	reported time.Time
	// generation counts reports; since are the tokens pending that were
	// dispatched after the last one.
	generation uint64
	since      int64
}

// NewFleet returns an empty fleet.
func NewFleet(options Options) *Fleet {
	options = options.withDefaults()
	return &Fleet{
		options: options, loadOnly: leastLoad{},
		byID: map[string]*member{}, bySlot: map[uint32]*member{},
		pins:    newPins(options.StickyTTL, options.StickyLimit),
		balance: balance{share: max(options.BalanceShare, 0)},
		recency: recency{halfLife: options.RecentHalfLife},
	}
}

func (o Options) withDefaults() Options {
	defaults.Positive(&o.PrefillRate, 8000)
	defaults.Positive(&o.ToleratedTTFT, 2*time.Second)
	defaults.Positive(&o.ReportTTL, 15*time.Second)
	defaults.Positive(&o.SpeculativeTTL, 2*time.Second)
	defaults.Positive(&o.RecentHalfLife, 10*time.Minute)
	defaults.Positive(&o.ApproxLimit, 1<<18)
	defaults.Positive(&o.RecordLimit, 32)
	defaults.Positive(&o.StickyTTL, 10*time.Minute)
	defaults.Positive(&o.StickyLimit, 1<<16)
	defaults.Positive(&o.StickyInflight, 2)
	if o.ApproxTTL < 0 {
		o.ApproxLimit = min(o.ApproxLimit, maxSpeculative)
	}
	if o.ApproxTTL == 0 {
		o.ApproxTTL = 2 * time.Minute
	}
	if o.BalanceShare == 0 {
		o.BalanceShare = 0.0175
	}
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if o.Policy == nil {
		o.Policy = newHint(PolicyOptions{ToleratedTTFT: o.ToleratedTTFT})
	}
	return o
}

// Policy returns the name of the fleet's policy.
func (f *Fleet) Policy() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.options.Policy.Name()
}

// SetPolicy makes later decisions use another policy, which must not be shared
// with other fleets. What is known about the replicas stays.
func (f *Fleet) SetPolicy(policy Policy) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options.Policy = policy
}

// Put adds a replica or changes its description. A new replica, or one with a
// new UID, is not ready and serves nothing yet.
func (f *Fleet) Put(replica Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old, ok := f.byID[replica.ID]; ok && old.replica.UID == replica.UID {
		old.replica = replica
		return
	}
	f.removeLocked(replica.ID)
	m := &member{
		replica: replica,
		rate:    f.options.PrefillRate,
		breaker: breaker.New(f.options.Breaker),
	}
	f.byID[replica.ID] = m
	f.newSlotLocked(m)
	at, _ := slices.BinarySearchFunc(f.ordered, replica.ID, compareID)
	f.ordered = slices.Insert(f.ordered, at, m)
}

// Remove forgets a replica. Guards on it stay valid and change nothing.
func (f *Fleet) Remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removeLocked(id)
}

func (f *Fleet) removeLocked(id string) {
	m, ok := f.byID[id]
	if !ok {
		return
	}
	delete(f.byID, id)
	delete(f.bySlot, m.slot)
	at, _ := slices.BinarySearchFunc(f.ordered, id, compareID)
	f.ordered = slices.Delete(f.ordered, at, at+1)
}

// newSlotLocked makes the fleet forget what was placed on a replica.
func (f *Fleet) newSlotLocked(m *member) {
	delete(f.bySlot, m.slot)
	f.nextSlot++
	m.slot = f.nextSlot
	f.bySlot[m.slot] = m
}

func compareID(m *member, id string) int { return cmp.Compare(m.replica.ID, id) }

// SetReady notes whether a replica passes its health checks. Load counts are
// not touched; placements on a replica that fails them are forgotten.
func (f *Fleet) SetReady(id string, ready bool) {
	f.update(id, func(m *member) {
		if m.ready && !ready {
			f.newSlotLocked(m)
		}
		if !ready {
			m.readySince = time.Time{}
		}
		m.ready = ready
	})
}

// SetAsleep notes whether an engine has put itself to sleep: it answers its
// health checks, but would have to load its model before it serves.
func (f *Fleet) SetAsleep(id string, asleep bool) {
	f.update(id, func(m *member) {
		if asleep && !m.asleep {
			f.newSlotLocked(m) // sleep drops the cache
		}
		m.asleep = asleep
	})
}

// SetDraining stops or resumes sending new requests to a replica.
func (f *Fleet) SetDraining(id string, draining bool) {
	f.update(id, func(m *member) { m.drained = draining })
}

// SetServes notes which models a replica serves. The fleet keeps the map,
// which must not change afterwards.
func (f *Fleet) SetServes(id string, serves Serves) {
	f.update(id, func(m *member) { m.serves = serves })
}

// SetReport notes a load report taken at the given time.
func (f *Fleet) SetReport(id string, report Report, at time.Time) {
	f.update(id, func(m *member) {
		m.report, m.reported = report, at
		m.generation++
		m.since = 0
	})
}

func (f *Fleet) update(id string, change func(*member)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m, ok := f.byID[id]; ok {
		change(m)
	}
}

// gate returns the first test of the request that the replica fails.
func (m *member) gate(r *Request) Gate {
	adapters, serves := m.serves[r.Model]
	switch {
	case r.Target != "" && m.replica.ID != r.Target, slices.Contains(r.Exclude, m.replica.ID):
		return GateExcluded
	case !m.ready:
		return GateNotReady
	case m.drained:
		return GateDraining
	case m.replica.Cordoned:
		return GateCordoned
	case m.asleep:
		return GateAsleep
	case len(m.replica.Tenants) > 0 && !slices.Contains(m.replica.Tenants, r.Tenant):
		return GateTenant
	case m.replica.Role != r.Role && !r.AnyRole:
		return GateRole
	case r.Transport != "" && m.replica.Transport != r.Transport:
		return GateTransport
	case r.Model != "" && !serves:
		return GateModel
	case r.Adapter != "" && !slices.Contains(adapters, r.Adapter):
		return GateAdapter
	case !m.breaker.Permits(r.Now):
		return GateBreakerOpen
	case m.replica.MaxInflight > 0 && m.inflight >= m.replica.MaxInflight:
		return GateInflightCap
	default:
		return GateNone
	}
}

// Eligible appends the ids of the replicas that may get the request to dst.
func (f *Fleet) Eligible(dst []string, r *Request) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.ordered {
		if m.gate(r) == GateNone {
			dst = append(dst, m.replica.ID)
		}
	}
	return dst
}

// State is a report on one replica.
type State struct {
	ID       string
	Ready    bool
	Draining bool
	Cordoned bool
	Asleep   bool
	// Dishonest is set while the index's claims of it get no credit.
	Dishonest bool
	Breaker   breaker.State
	Role      Role
	View      View
}

// States reports on all replicas, by id.
func (f *Fleet) States(now time.Time) []State {
	f.mu.Lock()
	defer f.mu.Unlock()
	candidates := make([]Candidate, len(f.ordered))
	positions := make([]int, len(f.ordered))
	for i, m := range f.ordered {
		m.assumePrefilled(now)
		candidates[i] = Candidate{ID: m.replica.ID, View: f.viewLocked(m, now)}
		candidates[i].WaitSeconds = candidates[i].wait(0)
		positions[i] = i
	}
	f.saturateLocked(candidates, positions)
	states := make([]State, len(f.ordered))
	for i, m := range f.ordered {
		states[i] = State{
			ID: m.replica.ID, Ready: m.ready, Draining: m.drained, Cordoned: m.replica.Cordoned, Asleep: m.asleep,
			Role: m.replica.Role, Dishonest: m.honesty.dishonest, Breaker: m.breaker.State(now), View: candidates[i].View,
		}
	}
	return states
}

// ByLoad appends the ids of the replicas that may get the request to dst,
// least loaded first; equally loaded ones in random order.
func (f *Fleet) ByLoad(dst []string, r *Request) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.considerLocked(r)
	f.options.Rand.Shuffle(len(f.eligible), func(i, j int) {
		f.eligible[i], f.eligible[j] = f.eligible[j], f.eligible[i]
	})
	slices.SortStableFunc(f.eligible, func(a, b int) int {
		return cmp.Compare(f.considered[a].WaitSeconds, f.considered[b].WaitSeconds)
	})
	for _, i := range f.eligible {
		dst = append(dst, f.considered[i].ID)
	}
	return dst
}
