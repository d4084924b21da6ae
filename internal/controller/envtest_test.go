// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package controller_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/kubetest"
	"github.com/inferencecache/inference-cache/internal/policy"
)

func (s *testServer) topologies() []policy.PDTopology {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policies.View().Topologies()
}

// startController runs a controller for one server until stop or the end of
// the test.
func startController(t *testing.T, cluster *kubetest.Cluster, server *testServer, elect bool, change ...func(*controller.Options)) (stop func()) {
	t.Helper()
	base := server.listener.URL
	absent := filepath.Join(t.TempDir(), "absent")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	options := controller.Options{
		Config: cluster.Config, Namespace: "inference-cache-system", LeaderElect: elect,
		HealthAddress: "0", PollInterval: 200 * time.Millisecond,
		Servers: controlclient.Options{
			URLs:                controlclient.URLs{Snapshot: base + "/snapshot", Policy: base + "/policy", Probe: base + "/probe"},
			ControllerTokenFile: absent, PolicyTokenFile: absent,
			HTTP: &http.Client{Timeout: controlclient.DefaultTimeout, Transport: &http.Transport{DisableKeepAlives: true}},
		},
	}
	for _, f := range change {
		f(&options)
	}
	go func() { done <- controller.Run(ctx, options) }()
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
	eventually(t, "the kinds are gone", func() bool {
		fresh, err := client.New(cluster.Config, client.Options{Scheme: cluster.Scheme})
		if err != nil {
			t.Fatal(err)
		}
		return meta.IsNoMatchError(fresh.List(t.Context(), new(v1alpha1.CacheTenantList))) &&
			meta.IsNoMatchError(fresh.List(t.Context(), new(v1alpha1.PromptTemplateList)))
	})
	cluster.Namespace(t, "team-a", nil)
	startController(t, cluster, server, false)
	policy := &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "p"}}
	policy.Spec.MinimumPrefixTokens = ptr(int32(7))
	if err := cluster.Client.Create(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	eventually(t, "policies are pushed without the other kinds", func() bool { return server.effective("team-a").MinimumPrefixTokens == 7 })
}

// A backend becomes Ready with its first event, and a topology reaches the
// server, all over a real API server.
func TestEnvtestBackendAndTopology(t *testing.T) {
	cluster := kubetest.Start(t, "../../deploy/crds")
	cluster.Namespace(t, "team-a", nil)
	server := startServer(t, "1")
	metricsAddress := freeAddress(t)
	startController(t, cluster, server, false, func(o *controller.Options) { o.Metrics.Address = metricsAddress })
	create := func(o client.Object) {
		t.Helper()
		if err := cluster.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	backend := &v1alpha1.CacheBackend{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "cb"}}
	backend.Spec.Runtime, backend.Spec.Type = v1alpha1.RuntimeVLLM, v1alpha1.BackendMemory
	backend.Spec.EngineSelector = &v1alpha1.EngineSelector{MatchLabels: map[string]string{v1alpha1.LabelCacheDomain: "d"}}
	create(backend)
	topology := &v1alpha1.PDTopology{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "t"}}
	topology.Spec.PrefillPools = []v1alpha1.PDPool{pool("p", "prefill")}
	topology.Spec.DecodePools = []v1alpha1.PDPool{pool("d", "decode")}
	create(topology)
	conditions := func() []metav1.Condition {
		return get[v1alpha1.CacheBackend](t, cluster.Client, key("team-a", "cb")).Status.Conditions
	}
	eventually(t, "the backend waits", func() bool {
		return strings.HasPrefix(conditionOf(conditions(), "Ready"), "False/AwaitingFirstKVEvent")
	})
	for _, role := range []string{"prefill", "decode"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: role, Labels: map[string]string{
			v1alpha1.LabelCacheDomain: "d", "role": role,
		}}}
		pod.Spec.Containers = []corev1.Container{{Name: "vllm", Image: "vllm"}}
		create(pod)
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		if err := cluster.Client.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "pods are matched and seen not to be injected", func() bool {
		status := get[v1alpha1.CacheBackend](t, cluster.Client, key("team-a", "cb")).Status
		return status.MatchedEnginePods != nil && *status.MatchedEnginePods == 2 &&
			strings.HasPrefix(conditionOf(status.Conditions, "InjectionHealthy"), "False/PodsUnseen")
	})
	server.holdings.hold(index.ReplicaRow{Tenant: "team-a", Replica: "decode", Memberships: 3, LastSeenMillis: time.Now().UnixMilli()})
	eventually(t, "the first event opens the gate and the self-test passes", func() bool {
		return strings.HasPrefix(conditionOf(conditions(), "Ready"), "True/KVEventsObserved") &&
			strings.HasPrefix(conditionOf(conditions(), "FunctionalProbeOK"), "True/ProbeOK")
	})
	eventually(t, "the topology is programmed", func() bool {
		status := get[v1alpha1.PDTopology](t, cluster.Client, key("team-a", "t")).Status
		return strings.HasPrefix(conditionOf(status.Conditions, "Resolved"), "True/AllPoolsReady") &&
			strings.HasPrefix(conditionOf(status.Conditions, "Programmed"), "True/Programmed")
	})
	eventually(t, "the server has the pools", func() bool {
		got := server.topologies()
		return len(got) == 1 && slices.Equal(got[0].Prefill, []string{"prefill"}) && slices.Equal(got[0].Decode, []string{"decode"})
	})
	eventually(t, "the events are there", func() bool {
		var events eventsv1.EventList
		if err := cluster.Client.List(t.Context(), &events, client.InNamespace("team-a")); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, e := range events.Items {
			seen[e.Regarding.Kind+"/"+e.Reason] = true
		}
		return seen["CacheBackend/AwaitingFirstKVEvent"] && seen["CacheBackend/KVEventsObserved"] && seen["Pod/InjectionSkipped"]
	})
	response, err := http.Get("http://" + metricsAddress + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`inferencecache_backend_probe_result_total{backend="team-a/cb",result="ok",stage="ingest"}`,
		`inferencecache_controller_status_writes_total{kind="PDTopology",result="ok"}`,
		`inferencecache_controller_policy_pushes_total{result="ok",`, `inferencecache_controller_snapshot_polls_total{result="ok",`,
		`inferencecache_build_info{`, `controller_runtime_reconcile_total{controller="cachebackend"`,
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// freeAddress is one on which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
