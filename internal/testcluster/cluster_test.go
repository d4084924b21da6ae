// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package testcluster_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/testcluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEnvtestClusterStartsAndStops(t *testing.T) {
	cluster := testcluster.ForTest(t)
	if err := cluster.Admin.Namespace(t.Context(), "team"); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Admin.Namespace(t.Context(), "team"); err == nil {
		t.Error("a namespace was created twice")
	}
	if err := cluster.StopAPIServer(); err != nil {
		t.Error(err)
	}
	if cluster.Admin.Ready(t.Context()) == nil {
		t.Error("the API server answers after it was stopped")
	}
}
