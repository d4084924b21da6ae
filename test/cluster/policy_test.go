// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"errors"
	"fmt"
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
