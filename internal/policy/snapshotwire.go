// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// Schema versions of a snapshot's wire form.
const (
	MinimumVersion = 3
	CurrentVersion = 7
)

// Versions at which fields with a default other than zero were added.
const (
	versionMatchedTokens = 4
	versionFloorScore    = 5
	versionStrategy      = 6
	versionAffinity      = 7
)

// ErrVersion marks a body of a schema version that is not taken.
var ErrVersion = errors.New("unsupported version")

// versionError is an ErrVersion with the contract's text.
type versionError string

func (e versionError) Error() string   { return string(e) }
func (e versionError) Is(t error) bool { return t == ErrVersion }

// Revision returns the revision of a snapshot's wire form.
func Revision(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// DecodeSnapshot reads the wire form of a snapshot, strictly: exact names,
// none twice, nothing unknown and nothing behind it. Fields that a body of an
// older version could not have get their defaults. Errors are ErrUnknownField,
// ErrVersion or of no kind.
func DecodeSnapshot(body []byte) (*Snapshot, error) {
	snapshot := &Snapshot{Origin: Origin{Revision: Revision(body), Bytes: len(body)}}
	if err := value(body).object(snapshot.set); err != nil {
		return nil, fmt.Errorf("decode policy snapshot: %w", err)
	}
	if v := snapshot.Version; v < MinimumVersion || v > CurrentVersion {
		return nil, versionError(fmt.Sprintf("unsupported policy snapshot version %d: expected %d to %d",
			v, MinimumVersion, CurrentVersion))
	}
	for i := range snapshot.Policies {
		snapshot.Policies[i].normalize(snapshot.Version)
	}
	return snapshot, nil
}

func (s *Snapshot) set(name string, v value) error {
	switch name {
	case "version":
		return version(v, &s.Version)
	case "policies":
		return v.list(func(element value) error {
			var declared Declared
			err := element.object(declared.set)
			s.Policies = append(s.Policies, declared)
			return err
		})
	case "tenants":
		return v.list(func(element value) error {
			var quota Quota
			err := element.object(quota.set)
			s.Quotas = append(s.Quotas, quota)
			return err
		})
	}
	return ErrUnknownField
}

func version(v value, dst *int) error {
	var n int32
	err := integer(v, &n)
	*dst = int(n)
	return err
}

func (d *Declared) set(name string, v value) error {
	switch name {
	case "namespace":
		return v.text(&d.Namespace)
	case "evictionTTL":
		return integer(v, &d.EvictionTTL)
	case "minimumPrefixTokens":
		return integer(v, &d.MinimumPrefixTokens)
	case "minimumMatchedTokens":
		return integer(v, &d.MinimumMatchedTokens)
	case "routingFloorScore":
		return v.optionalFloat32(&d.RoutingFloorScore)
	case "lookupTimeoutMs":
		return integer(v, &d.LookupTimeoutMillis)
	case "eviction":
		return v.text(&d.Eviction)
	case "strategy":
		return v.object(d.setStrategy)
	case "affinityRouting":
		return v.optionalBoolean(&d.AffinityRouting)
	}
	return ErrUnknownField
}

func (d *Declared) setStrategy(name string, v value) error {
	switch name {
	case "enableChainMatching":
		return v.optionalBoolean(&d.EnableChainMatching)
	case "requireChain":
		return v.optionalBoolean(&d.RequireChain)
	case "enableTenantHot":
		return v.optionalBoolean(&d.EnableTenantHot)
	}
	return ErrUnknownField
}

func (q *Quota) set(name string, v value) error {
	switch name {
	case "tenantID":
		return v.text(&q.Tenant)
	case "maxIndexEntries":
		return integer(v, &q.MaxKeys)
	case "isolationMode":
		return v.text(&q.IsolationMode)
	}
	return ErrUnknownField
}

// normalize fills in the fields that the version did not have yet, so that a
// policy of an older sender means what its namespace had without one.
func (d *Declared) normalize(version int) {
	if version < versionMatchedTokens && d.MinimumMatchedTokens == 0 {
		d.MinimumMatchedTokens = DefaultMinimumMatchedTokens
	}
	if version < versionFloorScore {
		fill(&d.RoutingFloorScore, DefaultRoutingFloorScore)
	}
	if version < versionStrategy {
		fill(&d.EnableChainMatching, true)
		fill(&d.RequireChain, false)
		fill(&d.EnableTenantHot, true)
	}
	if version < versionAffinity {
		fill(&d.AffinityRouting, true)
	}
}

func fill[T any](field **T, otherwise T) {
	if *field == nil {
		*field = &otherwise
	}
}
