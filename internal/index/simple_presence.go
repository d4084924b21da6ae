// SPDX-License-Identifier: Apache-2.0

package index

// hear notes a sign of life of a known replica.
func (x *Index) hear(id identity, now int64) {
	if p := x.replicas[id]; p != nil {
		p.heard = max(p.heard, now)
	}
}

// SetStats replaces the stats row of a replica. It returns false when the row
// is newer, or when it would be one tenant too many.
func (x *Index) SetStats(tenant, model, replica string, s Stats) bool {
	defer x.lock("apply")()
	id := identity{tenant, model, replica}
	p := x.replicas[id]
	if p == nil || p.stats == nil {
		tenants, _ := x.sizes()
		if tenant != x.cfg.ReservedTenant && !tenants[tenant] && len(tenants) >= x.cfg.MaxTenants {
			return false
		}
		p = x.presence(id)
	}
	if p.stats != nil {
		if s.ReportedMillis < p.stats.ReportedMillis {
			return false
		}
		s.LivenessMillis = max(s.LivenessMillis, p.stats.LivenessMillis)
	}
	if p.payloads > 0 && s.ReportedMillis-p.lastPayload > regularGapMillis {
		p.payloads = 0
	}
	p.payloads++
	p.regular = p.regular || p.payloads >= regularPayloads
	p.lastPayload = s.ReportedMillis
	p.stats = &s
	p.heard = max(p.heard, s.ReportedMillis)
	return true
}

// Touch refreshes the liveness of an existing stats row.
func (x *Index) Touch(tenant, model, replica string, atMillis int64) {
	defer x.lock("apply")()
	if p := x.replicas[identity{tenant, model, replica}]; p != nil && p.stats != nil {
		p.stats.LivenessMillis = max(p.stats.LivenessMillis, atMillis)
		p.heard = max(p.heard, atMillis)
	}
}

// Heard notes that any message came from a known replica.
func (x *Index) Heard(tenant, model, replica string, nowMillis int64) {
	defer x.lock("apply")()
	x.hear(identity{tenant, model, replica}, nowMillis)
}

// SessionUp says that a session of the replica runs in the scope.
func (x *Index) SessionUp(scope Scope, replica string, nowMillis int64) {
	defer x.lock("apply")()
	st := x.scope(scope)
	s := st.sessions[replica]
	if s == nil {
		s = &session{}
		st.sessions[replica] = s
	}
	s.up = true
	p := x.presence(identity{scope.Tenant, scope.Model, replica})
	p.regular = true
	p.heard = max(p.heard, nowMillis)
}

// Heartbeat says that the replica still holds all that it reported. What had
// expired before stays expired.
func (x *Index) Heartbeat(scope Scope, replica string, nowMillis int64) {
	defer x.lock("apply")()
	st := x.scopes[scope]
	if st == nil || st.sessions[replica] == nil {
		return
	}
	x.expire(scope, st, replica, nowMillis)
	s := st.sessions[replica]
	s.beat = max(s.beat, nowMillis)
	x.hear(identity{scope.Tenant, scope.Model, replica}, nowMillis)
}

// SessionDown says that the session ended: what it reported ages from its last
// heartbeat on.
func (x *Index) SessionDown(scope Scope, replica string, nowMillis int64) {
	defer x.lock("apply")()
	if st := x.scopes[scope]; st != nil && st.sessions[replica] != nil {
		st.sessions[replica].up = false
		x.hear(identity{scope.Tenant, scope.Model, replica}, nowMillis)
	}
}

// silent says that nothing came for a while from a replica that used to talk.
func (x *Index) silent(id identity, now int64) bool {
	p := x.replicas[id]
	return p != nil && p.regular && x.cfg.SilenceTimeoutMillis > 0 &&
		now-p.heard >= x.cfg.SilenceTimeoutMillis
}

// affine says whether a replica may be an affinity candidate.
func (x *Index) affine(st *scopeState, id identity, now int64) bool {
	s := st.sessions[id.replica]
	if s == nil {
		return true
	}
	p := x.replicas[id]
	quiet := p != nil && x.cfg.AffinitySilenceTimeoutMillis > 0 &&
		now-p.heard >= x.cfg.AffinitySilenceTimeoutMillis
	return s.up && !quiet
}
