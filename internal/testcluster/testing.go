// SPDX-License-Identifier: Apache-2.0

package testcluster

import (
	"errors"
	"os"
	"testing"
)

// ForTest runs a cluster until the test ends, with flags added to those of the
// API server. Without the programs it skips the test; with CI=true it fails it.
func ForTest(t testing.TB, flags ...string) *Cluster {
	t.Helper()
	cluster, err := Start(t.Context(), Options{APIServerFlags: flags})
	switch {
	case errors.Is(err, ErrNotBuilt) && os.Getenv("CI") != "true":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the cluster's logs end with:\n%s", cluster.Logs())
		}
		if err := cluster.Stop(); err != nil {
			t.Errorf("stop the cluster: %v", err)
		}
	})
	return cluster
}
