// SPDX-License-Identifier: Apache-2.0

package testcluster_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/inferencecache/inference-cache/internal/testcluster"
)

func TestProgramsAreFoundOnlyWhenComplete(t *testing.T) {
	cache := t.TempDir()
	if _, err := testcluster.Find(cache); !errors.Is(err, testcluster.ErrNotBuilt) {
		t.Errorf("an empty cache: %v", err)
	}
	if _, err := testcluster.Start(t.Context(), testcluster.Options{Cache: cache}); !errors.Is(err, testcluster.ErrNotBuilt) {
		t.Errorf("start from an empty cache: %v", err)
	}
	t.Setenv("IC_CLUSTER_BIN", filepath.Join(cache, "elsewhere"))
	if got, err := testcluster.CacheDir(); err != nil || got != os.Getenv("IC_CLUSTER_BIN") {
		t.Errorf("cache %q, %v", got, err)
	}
}
