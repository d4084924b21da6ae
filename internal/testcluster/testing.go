// SPDX-License-Identifier: Apache-2.0

package testcluster

import (
	"errors"
	"os"
	"testing"
)

// ForTest runs a cluster until the test ends. Without the programs it skips
// the test; with CI=true it fails it.
func ForTest(t testing.TB) *Cluster {
	t.Helper()
	cluster, err := Start(t.Context(), Options{})
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
