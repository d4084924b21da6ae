// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package controller_test

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/kubetest"
)

// startController runs a controller for one server until stop or the end of
// the test.
func startController(t *testing.T, cluster *kubetest.Cluster, server *testServer, elect bool) (stop func()) {
	t.Helper()
	base := server.listener.URL
	absent := filepath.Join(t.TempDir(), "absent")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- controller.Run(ctx, controller.Options{
			Config: cluster.Config, Namespace: "inference-cache-system", LeaderElect: elect,
			MetricsAddress: "0", HealthAddress: "0", PollInterval: 200 * time.Millisecond,
			Servers: controlclient.Options{
				URLs:                controlclient.URLs{Snapshot: base + "/snapshot", Policy: base + "/policy"},
				ControllerTokenFile: absent, PolicyTokenFile: absent,
				HTTP: &http.Client{Timeout: controlclient.DefaultTimeout, Transport: &http.Transport{DisableKeepAlives: true}},
			},
		})
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the controller ended with %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func TestEnvtestPolicyReachesTheServer(t *testing.T) {
	cluster := kubetest.Start(t, "../../deploy/crds")
	cluster.Namespace(t, "team-a", nil)
	server := startServer(t, "1")
	server.holdings.tenants = []index.TenantRow{{Tenant: "team-a", Keys: 3}}
	startController(t, cluster, server, false)
	eventually(t, "the first push", func() bool { return server.received() > 0 })

	policy := &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "p"}}
	policy.Spec.MinimumPrefixTokens = ptr(int32(7))
	created := time.Now()
	if err := cluster.Client.Create(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server applies the policy", func() bool { return server.effective("team-a").MinimumPrefixTokens == 7 })
	t.Logf("from creation to effect: %s", time.Since(created).Round(time.Millisecond))
	eventually(t, "the policy is programmed", func() bool {
		status := get[v1alpha1.CachePolicy](t, cluster.Client, key("team-a", "p")).Status
		return strings.HasPrefix(conditionOf(status.Conditions, "Programmed"), "True/Programmed: applied by 1 of 1 servers") &&
			strings.HasPrefix(conditionOf(status.Conditions, "Accepted"), "True/Accepted")
	})
	eventually(t, "the CacheIndex shows the server", func() bool {
		var index v1alpha1.CacheIndex
		return cluster.Client.Get(t.Context(), indexKey, &index) == nil && index.Status.Prefixes.Summary.Total == 3
	})
	tenant := &v1alpha1.CacheTenant{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "t"}}
	tenant.Spec.TenantID, tenant.Spec.Quota.MaxIndexEntries = "team-a", ptr(int64(2))
	if err := cluster.Client.Create(t.Context(), tenant); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two loops write the conditions of one tenant", func() bool {
		conditions := get[v1alpha1.CacheTenant](t, cluster.Client, key("team-a", "t")).Status.Conditions
		return strings.HasPrefix(conditionOf(conditions, "Programmed"), "True/Programmed") &&
			strings.HasPrefix(conditionOf(conditions, "QuotaExceeded"), "True/OverEntryBudget: 3 entries, 2 allowed") &&
			strings.HasPrefix(conditionOf(conditions, "Ready"), "True/Observed")
	})
	if err := cluster.Client.Delete(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a deleted policy reverts to the defaults", func() bool { return server.effective("team-a").MinimumPrefixTokens == 0 })
}

func TestEnvtestLeaderHandsOverWithoutAGap(t *testing.T) {
	cluster := kubetest.Start(t, "../../deploy/crds")
	for _, name := range []string{"team-a", "inference-cache-system"} {
		cluster.Namespace(t, name, nil)
	}
	server := startServer(t, "1")
	policy := &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "p"}}
	policy.Spec.MinimumPrefixTokens = ptr(int32(7))
	if err := cluster.Client.Create(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	stop := startController(t, cluster, server, true)
	eventually(t, "the leader pushes", func() bool { return server.effective("team-a").MinimumPrefixTokens == 7 })
	startController(t, cluster, server, true)
	stop()
	if got := server.effective("team-a").MinimumPrefixTokens; got != 7 {
		t.Fatalf("the server applies %d tokens while nobody leads, want 7", got)
	}
	before := policy.DeepCopy()
	policy.Spec.MinimumPrefixTokens = ptr(int32(9))
	if err := cluster.Client.Patch(t.Context(), policy, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	left := time.Now()
	eventually(t, "the other leads", func() bool {
		got := server.effective("team-a").MinimumPrefixTokens
		if got != 7 && got != 9 {
			t.Fatalf("the server applies %d tokens in between", got)
		}
		return got == 9
	})
	t.Logf("from the end of the leader to the other's first push: %s", time.Since(left).Round(time.Millisecond))
}

func TestEnvtestControllerWaitsForItsDefinitions(t *testing.T) {
	cluster := kubetest.Start(t, "../../deploy/crds")
	server := startServer(t, "1")
	for _, name := range []string{"cachetenants", "prompttemplates"} {
		definition := &unstructured.Unstructured{}
		definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		definition.SetName(name + ".inferencecache.io")
		if err := cluster.Client.Delete(t.Context(), definition); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Namespace(t, "team-a", nil)
	startController(t, cluster, server, false)
	policy := &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "p"}}
	policy.Spec.MinimumPrefixTokens = ptr(int32(7))
	if err := cluster.Client.Create(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	eventually(t, "policies are pushed without the other kinds", func() bool { return server.effective("team-a").MinimumPrefixTokens == 7 })
}
