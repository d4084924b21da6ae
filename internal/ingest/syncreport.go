// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/index"
)

// SyncReport sums up the sessions, for readiness and metrics.
type SyncReport struct {
	// Snapshot, Live and Lost count sessions; lost ones still have
	// memberships that age.
	Snapshot, Live, Lost int
	// BlocksReceived counts block keys of snapshots since the start,
	// BlocksExpected those the snapshots under way still announce.
	BlocksReceived, BlocksExpected int64
	// OldestHeartbeat is the age of the oldest heartbeat among live sessions;
	// 0 without one.
	OldestHeartbeat time.Duration
	// Recovered says that the index may be taken for complete: SettleMin has
	// passed since the start and for SettleQuiet no session was without a
	// finished snapshot. Once true it stays true.
	Recovered bool
}

// Report returns the sum of all sessions.
func (s *SyncServer) Report() SyncReport {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.options.Now()
	r.sweepLocked(now)
	report := SyncReport{BlocksReceived: r.blocksReceived.Load(), Recovered: r.recoveredLocked(now)}
	for _, session := range r.sessions {
		switch session.state {
		case SessionSnapshot:
			report.Snapshot++
			report.BlocksExpected += max(session.expected.Load()-session.staged.Load(), 0)
		case SessionLive:
			report.Live++
			age := now.Sub(time.UnixMilli(session.beatMillis.Load()))
			report.OldestHeartbeat = max(report.OldestHeartbeat, age)
		case SessionLost:
			report.Lost++
		}
	}
	return report
}

func (r *registry) recoveredLocked(now time.Time) bool {
	if !r.recovered {
		r.recovered = now.Sub(r.startedAt) >= r.options.SettleMin &&
			r.snapshotting == 0 && now.Sub(r.quietSince) >= r.options.SettleQuiet
	}
	return r.recovered
}

// SessionReport is one session as an operator sees it.
type SessionReport struct {
	Scope   index.Scope
	Replica string
	State   SessionState
	Since   time.Time
	PodUID  string
	Epoch   uint64
	// StartedAt is the start of the publisher.
	StartedAt     time.Time
	ClientVersion string
	BlockSize     int
	LastHeartbeat time.Time
	// ResidentBlocks and ViewComplete are what the publisher last said of its
	// mirror.
	ResidentBlocks int64
	ViewComplete   bool
	// StagedBlocks of ExpectedBlocks have arrived of the snapshot under way.
	StagedBlocks, ExpectedBlocks int64
}

// Sessions returns every known session, sorted by scope and replica.
func (s *SyncServer) Sessions() []SessionReport {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	reports := make([]SessionReport, 0, len(r.sessions))
	for key, session := range r.sessions {
		reports = append(reports, SessionReport{
			Scope:          key.scope,
			Replica:        key.replica,
			State:          session.state,
			Since:          session.since,
			PodUID:         session.incarnation.podUID,
			Epoch:          session.incarnation.epoch,
			StartedAt:      time.UnixMicro(session.incarnation.startedUs),
			ClientVersion:  session.version,
			BlockSize:      int(session.blockSize),
			LastHeartbeat:  time.UnixMilli(session.beatMillis.Load()),
			ResidentBlocks: session.resident.Load(),
			ViewComplete:   session.viewComplete.Load(),
			StagedBlocks:   session.staged.Load(),
			ExpectedBlocks: session.expected.Load(),
		})
	}
	slices.SortFunc(reports, func(a, b SessionReport) int {
		return cmp.Or(
			cmp.Compare(a.Scope.Tenant, b.Scope.Tenant),
			cmp.Compare(a.Scope.Model, b.Scope.Model),
			cmp.Compare(a.Scope.Scheme, b.Scope.Scheme),
			cmp.Compare(a.Replica, b.Replica),
		)
	})
	return reports
}

// syncCollector renders a SyncReport at each scrape.
type syncCollector struct{ server *SyncServer }

var (
	sessionsDesc = prometheus.NewDesc("inferencecache_sync_sessions",
		"Sessions; lost = gone, memberships still held.", []string{"state"}, nil)
	heartbeatAgeDesc = prometheus.NewDesc("inferencecache_sync_heartbeat_age_seconds",
		"Age of the oldest heartbeat among live sessions.", nil, nil)
	recoveringDesc = prometheus.NewDesc("inferencecache_sync_recovering",
		"1 from start until every announced publisher has finished its first snapshot.", nil, nil)
)

func (c *syncCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- sessionsDesc
	descs <- heartbeatAgeDesc
	descs <- recoveringDesc
}

func (c *syncCollector) Collect(metrics chan<- prometheus.Metric) {
	report := c.server.Report()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	gauge(sessionsDesc, float64(report.Snapshot), string(SessionSnapshot))
	gauge(sessionsDesc, float64(report.Live), string(SessionLive))
	gauge(sessionsDesc, float64(report.Lost), string(SessionLost))
	gauge(heartbeatAgeDesc, report.OldestHeartbeat.Seconds())
	recovering := 1.0
	if report.Recovered {
		recovering = 0
	}
	gauge(recoveringDesc, recovering)
}
