// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"cmp"
	"slices"
	"time"
)

// EngineStatus is a Publisher as an operator sees it.
type EngineStatus struct {
	// Model is empty while the engine has not told it.
	Tenant, Model, Scheme, Replica string
	// StreamsExpected is 0 while it is not known how many there are.
	StreamsLive, StreamsExpected int
	HasReplay                    bool
	Streams                      []StreamStatus
	Ranks                        []RankStatus
	Load                         LoadStatus
	// AskError is why the engine has not told its models yet; empty if it
	// has.
	AskError string
}

// StreamStatus is one event socket.
type StreamStatus struct {
	Rank     int
	Endpoint string
	// Peers is above 1 only when several engines connected to a bound socket.
	Connected bool
	Peers     int
	// Since is when it was connected or lost; zero before the first time.
	Since     time.Time
	LastError string
	// TopicMatchesNothing is true when the topic filter has let nothing pass
	// for a minute.
	TopicMatchesNothing bool
}

// RankStatus is one replica.
type RankStatus struct {
	Replica string
	Rank    int
	Session Status
	Servers []LinkStatus
}

// Ready returns whether every expected stream is up and each rank is in step
// with at least one server.
func (s EngineStatus) Ready() bool {
	if s.StreamsExpected == 0 || s.StreamsLive < s.StreamsExpected {
		return false
	}
	for _, r := range s.Ranks {
		if !slices.ContainsFunc(r.Servers, func(l LinkStatus) bool { return l.State == LinkLive }) {
			return false
		}
	}
	return true
}

// Settled returns whether the engine was reached or refused on every socket
// and no replay runs, so that waiting longer promises nothing.
func (s EngineStatus) Settled() bool {
	if len(s.Streams) == 0 {
		return s.AskError != ""
	}
	for _, stream := range s.Streams {
		if !stream.Connected && stream.LastError == "" {
			return false
		}
	}
	return !slices.ContainsFunc(s.Ranks, func(r RankStatus) bool { return r.Session.ReplayPending })
}

// Status reports everything known, ranks and streams in rank order.
func (p *Publisher) Status() EngineStatus {
	p.mu.Lock()
	status := EngineStatus{
		Tenant:  p.config.Tenant,
		Model:   p.model,
		Scheme:  p.config.Scheme,
		Replica: p.config.Replica,
		Load:    p.load,

		AskError: p.askError,
	}
	streams, replicas := slices.Clone(p.streams), slices.Clone(p.ranks)
	p.mu.Unlock()

	status.StreamsExpected = max(len(streams), p.config.Ranks)
	for _, s := range streams {
		st := s.status()
		if st.Connected {
			status.StreamsLive++
		}
		status.Streams = append(status.Streams, st)
	}
	for _, r := range replicas {
		status.HasReplay = status.HasReplay || r.replayer != nil
		current := r.report.Load()
		links := current.hub.Status()
		slices.SortFunc(links, func(a, b LinkStatus) int { return cmp.Compare(a.Target, b.Target) })
		status.Ranks = append(status.Ranks, RankStatus{
			Replica: current.id,
			Rank:    current.rank,
			Session: r.status(),
			Servers: links,
		})
	}
	slices.SortFunc(status.Ranks, func(a, b RankStatus) int { return cmp.Compare(a.Rank, b.Rank) })
	return status
}
