// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"math"
	"unicode"
	"unicode/utf8"

	"github.com/inferencecache/inference-cache/internal/index"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// Reason names why a part of a message was dropped, or an oddity that was
// corrected. The list is closed.
type Reason string

// Reasons.
const (
	ReasonReservedTenant      Reason = "reserved_tenant"
	ReasonNoHashScheme        Reason = "no_hash_scheme"
	ReasonNoTenant            Reason = "no_tenant"
	ReasonNoModel             Reason = "no_model"
	ReasonNoReplica           Reason = "no_replica"
	ReasonIDTooLong           Reason = "id_too_long"
	ReasonIDInvalid           Reason = "id_invalid"
	ReasonHashEmpty           Reason = "hash_empty"
	ReasonHashTooLong         Reason = "hash_too_long"
	ReasonChainMismatch       Reason = "chain_mismatch"
	ReasonCountNegative       Reason = "count_negative"
	ReasonCountOverflow       Reason = "count_overflow"
	ReasonUpdateTooLarge      Reason = "update_too_large"
	ReasonTimestampExpired    Reason = "timestamp_expired"
	ReasonTimestampFuture     Reason = "timestamp_future"
	ReasonTimestampNegative   Reason = "timestamp_negative"
	ReasonUnauthorized        Reason = "unauthorized"
	ReasonScopeLimit          Reason = "scope_limit"
	ReasonReplicaLimit        Reason = "replica_limit"
	ReasonRateLimit           Reason = "rate_limit"
	ReasonStaleSequence       Reason = "stale_sequence"
	ReasonIncarnationMismatch Reason = "incarnation_mismatch"
)

// contractReasons apply to both sources, syncReasons to CacheSync alone.
var (
	contractReasons = []Reason{
		ReasonReservedTenant, ReasonNoHashScheme, ReasonNoTenant, ReasonNoModel, ReasonNoReplica,
		ReasonIDTooLong, ReasonIDInvalid, ReasonHashEmpty, ReasonHashTooLong, ReasonChainMismatch,
		ReasonCountNegative, ReasonCountOverflow, ReasonUpdateTooLarge, ReasonTimestampExpired,
		ReasonTimestampFuture, ReasonTimestampNegative, ReasonUnauthorized, ReasonScopeLimit,
		ReasonReplicaLimit, ReasonRateLimit,
	}
	syncReasons = []Reason{ReasonStaleSequence, ReasonIncarnationMismatch}
)

// MaxIDBytes bounds tenant, model, scheme, adapter and replica ids.
const MaxIDBytes = 256

// futureToleranceMillis is how far ahead a timestamp may be uncounted.
const futureToleranceMillis = 5000

// checkID returns "" for a well-formed id, the empty one included.
func checkID(id string) Reason {
	if len(id) > MaxIDBytes {
		return ReasonIDTooLong
	}
	if !utf8.ValidString(id) {
		return ReasonIDInvalid
	}
	for _, r := range id {
		if unicode.IsControl(r) {
			return ReasonIDInvalid
		}
	}
	return ""
}

// checkHash returns "" for a hash the index takes.
func checkHash(hash []byte) Reason {
	switch {
	case len(hash) == 0:
		return ReasonHashEmpty
	case len(hash) > index.MaxKeyBytes:
		return ReasonHashTooLong
	}
	return ""
}

// clampTime turns a producer's timestamp into Unix milliseconds not after now,
// which also stands for 0. A negative or future one is reported.
func clampTime(timestampUs, nowMillis int64) (int64, Reason) {
	if timestampUs < 0 {
		return nowMillis, ReasonTimestampNegative
	}
	at := timestampUs / 1000
	switch {
	case timestampUs == 0:
		return nowMillis, ""
	case at > nowMillis+futureToleranceMillis:
		return nowMillis, ReasonTimestampFuture
	}
	return min(at, nowMillis), ""
}

// tierOf maps the wire's tier. Values the contract does not name are colder
// than those it does.
func tierOf(tier pb.CacheTier) index.Tier {
	switch tier {
	case pb.CacheTier_CACHE_TIER_UNSPECIFIED, pb.CacheTier_CACHE_TIER_T1:
		return index.TierT1
	case pb.CacheTier_CACHE_TIER_T2:
		return index.TierT2
	case pb.CacheTier_CACHE_TIER_T3:
		return index.TierT3
	}
	return index.TierOther
}

// checkRun validates the token counts of a stored run.
func checkRun(run *pb.StoredRun) Reason {
	n := len(run.GetKeys())
	if counts := run.GetTokenCounts(); len(counts) > 0 {
		if len(counts) != n {
			return ReasonChainMismatch
		}
		for _, count := range counts {
			if count < 0 {
				return ReasonCountNegative
			}
		}
		return ""
	}
	if run.GetFirstTokenCount() < 0 || run.GetBlockTokenCount() < 0 {
		return ReasonCountNegative
	}
	if n > 0 && int64(run.GetFirstTokenCount())+int64(n-1)*int64(run.GetBlockTokenCount()) > math.MaxInt32 {
		return ReasonCountOverflow
	}
	return ""
}

// finite maps NaN and infinities to 0.
func finite(v float32) float32 {
	if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
		return 0
	}
	return v
}

// statsOf converts a replica's report of itself.
func statsOf(stats *pb.ReplicaStats, atMillis int64) index.Stats {
	version := stats.GetClientVersion()
	if checkID(version) != "" {
		version = ""
	}
	return index.Stats{
		CacheMemoryBytes: stats.GetCacheMemoryBytes(),
		HitRate:          finite(stats.GetHitRate()),
		Pressure:         finite(stats.GetPressure()),
		ClientVersion:    version,
		T2HitTokens:      stats.GetT2HitTokens(),
		T2QueryTokens:    stats.GetT2QueryTokens(),
		LivenessMillis:   atMillis,
		ReportedMillis:   atMillis,
	}
}
