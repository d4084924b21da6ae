// SPDX-License-Identifier: Apache-2.0

package lookup

import "context"

// Evidence answers from what the index holds: a prefix match, tenant-hot, or
// why there is neither. No gate, floor, timeout or fallback of a policy
// applies, and the reserved tenant is answered like any other. The self-test
// asks this way.
func (d *Decider) Evidence(ctx context.Context, request *Request, out *Decision) {
	out.reset()
	e := d.evaluations.Get().(*evaluation)
	e.begin(request, out)
	e.deadlineSet = false
	e.runEvidence(ctx)
	out.Timings.Total = d.now().Sub(e.start)
	e.end()
	d.evaluations.Put(e)
}

func (e *evaluation) runEvidence(ctx context.Context) {
	defer e.releaseView()
	e.measure()
	e.resolve(ctx)
	found := undecided
	if !e.input.failed {
		found = e.find(ctx)
	}
	switch found {
	case PrefixMatch, TenantHot:
		e.out.Scores = e.out.Ranked
	case undecided:
		found = NoHint
	}
	e.out.Reason = found
}
