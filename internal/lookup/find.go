// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"context"

	"github.com/inferencecache/inference-cache/internal/index"
)

// find asks the index: prefix match, tenant-hot, then why there is nothing.
// A request that does not name its scope finds nothing.
func (e *evaluation) find(ctx context.Context) Reason {
	if !e.request.named() {
		return undecided
	}
	e.nowMillis = e.now().UnixMilli()
	e.view = e.index.Acquire(e.scope(), e.request.Adapter, e.nowMillis, e.rules.TTLMillis)
	e.viewHeld = true
	e.out.Asked = true
	e.out.Serving = e.serving()

	e.match(ctx)
	e.keepAmong()
	e.out.Timings.Match = e.lap()
	found := e.rank()
	e.out.Timings.Rank = e.lap()

	e.out.TenantKnown, e.out.ModelKnown = true, true
	if found == undecided {
		return e.diagnose(e.view.Counts())
	}
	return found
}

// match fills e.matches.
func (e *evaluation) match(ctx context.Context) {
	e.matches = e.matches[:0]
	switch {
	case e.input.keys.Len() == 0:
	case e.input.chain:
		e.matchChain(ctx)
	default:
		e.matches = e.view.MatchExact(e.matches, e.input.keys)
	}
}

// diagnose names the outermost key of the request that nothing is held under.
func (e *evaluation) diagnose(counts index.ViewCounts) Reason {
	e.out.TenantKnown = counts.TenantKeys > 0
	e.out.ModelKnown = counts.ModelKeys > 0
	reason := undecided
	switch {
	case counts.Memberships == 0:
	case counts.TenantKeys == 0:
		reason = UnknownTenant
	case counts.ModelKeys == 0:
		reason = UnknownModel
	case counts.ScopeMemberships == 0:
		reason = UnknownHashScheme
	case e.diagnoseAdapter && e.request.Adapter != "" && counts.PartitionMemberships == 0:
		reason = UnknownAdapter
	}
	if reason != undecided && e.now().Before(e.graceEnd) {
		e.out.Gates.add(GateGrace)
		return undecided
	}
	return reason
}
