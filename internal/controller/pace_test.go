// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/index"
)

// polling polls one server every 30 s of its own time.
type polling struct {
	t       *testing.T
	cluster client.Client
	server  *testServer
	poller  *controller.Poller
	now     time.Time
	polls   int
}

// newPolling watches a backend with an engine that has sent an event, and the
// tenant of its namespace with a quota of 2000 entries.
func newPolling(t *testing.T) *polling {
	t.Helper()
	tenant := &v1alpha1.CacheTenant{ObjectMeta: object("a", "t"), Spec: v1alpha1.CacheTenantSpec{
		TenantID: "a", Quota: v1alpha1.CacheTenantQuota{MaxIndexEntries: ptr(int64(2000))},
	}}
	tenant.UID = "uid-t"
	p := &polling{t: t, server: startServer(t, "1"), now: noon}
	p.cluster = newCluster(t, tenant, backend("x", "one"), enginePod("e", "one"))
	discovery := new(servers)
	discovery.set(p.server.named(t, "one"))
	p.poller = controller.NewPoller(controller.PollerOptions{Client: p.cluster, Discovery: discovery, Now: func() time.Time { return p.now }})
	p.holds(1000)
	return p
}

// holds has the engine have so many entries, the last of them stored now.
func (p *polling) holds(entries int64) {
	p.server.holdings.hold(reports("a", "e", entries, .5, p.now))
	p.server.holdings.keep(index.TenantRow{Tenant: "a", Keys: entries})
}

func (p *polling) poll() {
	p.t.Helper()
	p.polls++
	if err := p.poller.Poll(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	p.now = p.now.Add(30 * time.Second)
}

func (p *polling) backend() *v1alpha1.CacheBackend {
	return get[v1alpha1.CacheBackend](p.t, p.cluster, key("a", "x"))
}
func (p *polling) tenant() *v1alpha1.CacheTenant {
	return get[v1alpha1.CacheTenant](p.t, p.cluster, key("a", "t"))
}
func (p *polling) index() *v1alpha1.CacheIndex {
	return get[v1alpha1.CacheIndex](p.t, p.cluster, indexKey)
}

func TestSteadyTrafficIsWrittenNowAndThen(t *testing.T) {
	p := newPolling(t)
	last, writes := map[string]string{}, map[string]int{}
	for range 100 {
		seen := p.now
		p.holds(1000 + int64(p.polls))
		p.poll()
		backend, tenant, index := p.backend(), p.tenant(), p.index()
		for kind, version := range map[string]string{
			"CacheBackend": backend.ResourceVersion, "CacheTenant": tenant.ResourceVersion, "CacheIndex": index.ResourceVersion,
		} {
			if last[kind] != version {
				last[kind] = version
				writes[kind]++
			}
		}
		if age := seen.Sub(backend.Status.IndexParticipation.LastEventAt.Time); age > 2*time.Minute {
			t.Fatalf("poll %d: the last event shown is %s old", p.polls, age)
		}
		if total := index.Status.Prefixes.Summary.Total; total != *index.Status.Tenants[0].IndexEntries || total != index.Status.Servers[0].Prefixes {
			t.Fatalf("poll %d: counts of one write differ: %+v", p.polls, index.Status)
		}
	}
	for kind, n := range writes {
		if n < 25 || n > 30 {
			t.Errorf("%s was written at %d of %d polls, want 25 to 30", kind, n, p.polls)
		}
	}
	for range 4 { // the traffic ends
		p.poll()
	}
	if got := p.backend().Status.IndexParticipation.PrefixCount; got != 1099 {
		t.Errorf("%d prefixes are shown in the end, want 1099", got)
	}
	if got := p.index().Status.Prefixes.Summary.Total; got != 1099 {
		t.Errorf("%d prefixes are shown in the end, want 1099", got)
	}
}

func TestTimesAloneAreNotWritten(t *testing.T) {
	p := newPolling(t)
	p.poll()
	first := p.index().ResourceVersion
	for range 30 {
		p.holds(1000)
		p.poll()
	}
	if p.index().ResourceVersion != first {
		t.Error("later reports of the same rewrote the CacheIndex")
	}
}

func TestTurnsAreWrittenAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*polling)
		shown  func(*polling) bool
	}{
		"many more prefixes": {
			func(p *polling) { p.holds(1500) },
			func(p *polling) bool {
				return p.backend().Status.IndexParticipation.PrefixCount == 1500 && p.index().Status.Prefixes.Summary.Total == 1500
			},
		},
		"a quota that is exceeded by one": {
			func(p *polling) {
				tenant := p.tenant()
				tenant.Spec.Quota.MaxIndexEntries, tenant.Generation = ptr(int64(1005)), 2
				if err := p.cluster.Update(p.t.Context(), tenant); err != nil {
					p.t.Fatal(err)
				}
				p.poll()
				p.holds(1006)
			},
			func(p *polling) bool {
				return conditionOf(p.tenant().Status.Conditions, "QuotaExceeded") == "True/OverEntryBudget: 1006 entries, 1005 allowed"
			},
		},
		"an engine that reports first": {
			func(p *polling) {
				p.server.holdings.hold(reports("a", "e", 1001, .5, p.now), reports("a", "e#1", 1, .5, p.now))
			},
			func(p *polling) bool {
				return *p.backend().Status.IndexParticipation.ReportingReplicas == 2 && p.index().Status.ReplicasTotal == 2
			},
		},
		"an engine that is gone": {
			func(p *polling) { p.server.holdings.hold() },
			func(p *polling) bool {
				participation := p.backend().Status.IndexParticipation
				return participation.PrefixCount == 0 && participation.LastEventAt == nil && p.index().Status.ReplicasTotal == 0
			},
		},
		"a tier that has nothing": {
			func(p *polling) {
				row := reports("a", "e", 1001, .5, p.now)
				row.Stats.T2QueryTokens = 100
				p.server.holdings.hold(row)
			},
			func(p *polling) bool { return *p.backend().Status.IndexParticipation.T2HitRate == "0" },
		},
		"a server that has restarted": {
			func(p *polling) { p.server.restart("2") },
			func(p *polling) bool { return p.index().Status.Servers[0].Epoch == "2" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPolling(t)
			for range 5 { // more than are written without a wait
				p.holds(1000 + int64(p.polls))
				p.poll()
			}
			if got := p.backend().Status.IndexParticipation.PrefixCount; got != 1003 {
				t.Fatalf("%d prefixes are shown after 3 writes of drift, want 1003", got)
			}
			tc.change(p)
			p.poll()
			if !tc.shown(p) {
				t.Errorf("not shown at the next poll: %+v, %+v, %+v", p.backend().Status.IndexParticipation, p.tenant().Status, p.index().Status)
			}
		})
	}
}
