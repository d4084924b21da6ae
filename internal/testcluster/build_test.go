// SPDX-License-Identifier: Apache-2.0

package testcluster_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
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

func TestMissingProgramsOfANodeAreNamed(t *testing.T) {
	_, err := testcluster.FindNode(t.TempDir())
	if !errors.Is(err, testcluster.ErrNodeNotBuilt) {
		t.Fatalf("an empty cache: %v", err)
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "coredns", "helm"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
}
