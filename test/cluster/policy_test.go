// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

func TestPolicyIsInForceSoonAfterItIsApplied(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startReaders()
	e.startBackend("sim", 1)
	prompt := longPrompt("policy")
	e.prompt("sim-0", prompt)
	e.matched(prompt, "sim-0")
	e.startLookups("loop", prompt)

	// No match of 512 tokens is good enough, then any.
	for i, floor := range []int{100000, 16} {
		started := time.Now()
		e.apply(fmt.Sprintf(`
apiVersion: inferencecache.io/v1alpha1
kind: CachePolicy
metadata: {name: default}
spec: {minimumMatchedTokens: %d}
`, floor))
		applied := time.Since(started)
		wantMatch := floor < 512
		var changed time.Time
		e.eventually("another answer", func() error {
			for _, o := range e.lookups("loop") {
				if o.At.After(started) && o.Error == "" && (o.Reason == "PREFIX_MATCH") == wantMatch {
					changed = o.At
					return nil
				}
			}
			return errors.New("lookups are answered as before")
		})
		e.programmed("default", 2)
		t.Logf("another answer %s after the start of kubectl apply, which took %s; shown in the status after %s",
			changed.Sub(started).Round(10*time.Millisecond), applied.Round(10*time.Millisecond), time.Since(started).Round(10*time.Millisecond))

		policy := &v1alpha1.CachePolicy{}
		if err := e.get("cachepolicy/default", policy); err != nil {
			t.Fatal(err)
		}
		e.condition("cachepolicy/default", "Accepted", "True", "Accepted")
		if policy.Status.ObservedGeneration != int64(i+1) || policy.Status.PolicyRevision == "" {
			t.Errorf("the status is about generation %d, revision %q", policy.Status.ObservedGeneration, policy.Status.PolicyRevision)
		}
		e.eventually("that revision of all servers in the CacheIndex", func() error {
			servers := e.cacheIndex().Servers
			for _, server := range servers {
				if server.PolicyRevision != policy.Status.PolicyRevision {
					return fmt.Errorf("%s has revision %q", server.Name, server.PolicyRevision)
				}
			}
			if len(servers) != 2 {
				return fmt.Errorf("%d servers", len(servers))
			}
			return nil
		})
	}
	if got := summarize(e.lookups("loop")); len(got.failed) > 0 {
		t.Errorf("failed lookups, such as %+v", got.failed[0])
	}
}

// cacheIndex is the status of the one CacheIndex.
func (e *env) cacheIndex() v1alpha1.CacheIndexStatus {
	e.t.Helper()
	index := &v1alpha1.CacheIndex{}
	if err := e.get("cacheindex/cluster-default", index); err != nil {
		e.t.Fatal(err)
	}
	return index.Status
}

// A quota takes effect with what engines report next; until then the tenant is
// told to be over it.
func TestTenantIsBoundedByItsQuota(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startReaders()
	e.startBackend("quota", 2) // no other test has replicas of these names
	for _, engine := range []string{"quota-0", "quota-1"} {
		prompt := longPrompt(engine)
		e.prompt(engine, prompt)
		e.matched(prompt, engine)
	}
	const quota = 20
	started := time.Now()
	e.apply(fmt.Sprintf(`
apiVersion: inferencecache.io/v1alpha1
kind: CacheTenant
metadata: {name: tenant}
spec: {tenantID: %s, quota: {maxIndexEntries: %d}}
`, e.namespace, quota))
	e.condition("cachetenant/tenant", "Programmed", "True", "Programmed")
	programmed := time.Since(started)
	over := e.condition("cachetenant/tenant", "QuotaExceeded", "True", "OverEntryBudget")
	e.condition("cachetenant/tenant", "Ready", "True", "Observed")
	told := time.Since(started)

	prompt := longPrompt("newest")
	started = time.Now()
	e.prompt("quota-0", prompt)
	e.condition("cachetenant/tenant", "QuotaExceeded", "False", "WithinBudget")
	within := time.Since(started)
	tenant := &v1alpha1.CacheTenant{}
	if err := e.get("cachetenant/tenant", tenant); err != nil {
		t.Fatal(err)
	}
	if n := tenant.Status.IndexEntries; n == nil || *n != quota {
		t.Errorf("status %+v, want %d entries", tenant.Status, quota)
	}
	t.Logf("programmed after %s; %q told after %s; within its quota, and told so, %s after another prompt",
		programmed.Round(10*time.Millisecond), over, told.Round(100*time.Millisecond), within.Round(100*time.Millisecond))
	e.eventually("tenant and replicas in the CacheIndex", func() error { return e.indexShows(quota, "quota-0", "quota-1") })
}

// indexShows says whether the CacheIndex has replicas of the namespace's tenant
// and its number of entries.
func (e *env) indexShows(entries int64, replicas ...string) error {
	e.t.Helper()
	status := e.cacheIndex()
	var names []string
	for _, replica := range status.Replicas {
		if replica.Tenant == e.namespace {
			names = append(names, replica.ID)
		}
	}
	if !slices.Equal(names, replicas) {
		return fmt.Errorf("replicas %q", names)
	}
	for _, tenant := range status.Tenants {
		if tenant.ID == e.namespace && tenant.IndexEntries != nil {
			if *tenant.IndexEntries != entries {
				return fmt.Errorf("%d entries", *tenant.IndexEntries)
			}
			return nil
		}
	}
	return errors.New("the tenant is not shown")
}
