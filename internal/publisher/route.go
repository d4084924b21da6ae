// SPDX-License-Identifier: Apache-2.0

package publisher

// maxSharedRanks bounds the ranks that batches of one shared stream can make
// us report.
const maxSharedRanks = 64

// route finds the rank a batch belongs to. One that names no rank belongs
// to the first.
func (s *stream) route(payload []byte) *engineRank {
	if !s.shared {
		return s.first
	}
	rank, ok := rankOf(payload)
	if !ok {
		return s.first
	}
	s.settle(rank)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first.report.Load().rank == rank {
		return s.first
	}
	return s.otherLocked(rank)
}

// settle takes the first rank that a shared stream names for that of its
// first one.
func (s *stream) settle(rank int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.shared || s.settled {
		return
	}
	s.settled = true
	if rank > 0 {
		s.first.rename(rank)
	}
}

// otherLocked returns a further rank. With the first of them
// the engine turns out to have ranks.
func (s *stream) otherLocked(rank int) *engineRank {
	if r := s.others[rank]; r != nil {
		return r
	}
	if len(s.others) >= maxSharedRanks-1 {
		return s.first
	}
	if first := s.first.report.Load(); first.id == s.p.config.Replica {
		s.first.rename(first.rank)
	}
	src := source{rank: rank, endpoint: s.source.endpoint, topic: s.source.topic}
	if endpoint, err := shifted(s.p.config.Replay, rank); err == nil {
		src.replay = endpoint
	}
	r := s.p.addRank(s, src, s.p.rankID(rank))
	s.others[rank] = r
	if s.peers > 0 {
		now := s.p.deps.Now()
		r.apply(func(session *Session) Step { return session.Connected(now) })
	}
	return r
}
