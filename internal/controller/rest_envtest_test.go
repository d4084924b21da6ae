// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package controller_test

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/kubetest"
)

// calls keeps what the API server is asked, but for watches.
type calls struct {
	mu  sync.Mutex
	all []string
}

func (c *calls) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.all
	c.all = nil
	return all
}

type recording struct {
	next  http.RoundTripper
	calls *calls
}

func (r recording) RoundTrip(request *http.Request) (*http.Response, error) {
	if !request.URL.Query().Has("watch") {
		r.calls.mu.Lock()
		r.calls.all = append(r.calls.all, request.Method+" "+request.URL.Path)
		r.calls.mu.Unlock()
	}
	return r.next.RoundTrip(request)
}

// atRest creates one resource of each kind, and engines that report.
func atRest(t *testing.T, cluster *kubetest.Cluster, server *testServer) {
	t.Helper()
	cluster.Namespace(t, "team-a", nil)
	backend := func(name string) *v1alpha1.CacheBackend {
		b := &v1alpha1.CacheBackend{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}}
		b.Spec.Runtime, b.Spec.Type = v1alpha1.RuntimeVLLM, v1alpha1.BackendMemory
		b.Spec.EngineSelector = &v1alpha1.EngineSelector{MatchLabels: map[string]string{v1alpha1.LabelCacheDomain: name}}
		return b
	}
	wanting := deployment("idle", ptr(int32(2)))
	wanting.Namespace, wanting.Spec.Selector = "team-a", &metav1.LabelSelector{MatchLabels: wanting.Spec.Template.Labels}
	wanting.Spec.Template.Spec.Containers = []corev1.Container{{Name: "vllm", Image: "vllm"}}
	policy := &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "p"}}
	tenant := &v1alpha1.CacheTenant{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "t"}}
	tenant.Spec.TenantID, tenant.Spec.Quota.MaxIndexEntries = "team-a", ptr(int64(9))
	template := &v1alpha1.PromptTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "t"}}
	template.Spec.Body = "hello"
	topology := &v1alpha1.PDTopology{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "t"}}
	topology.Spec.PrefillPools, topology.Spec.DecodePools = []v1alpha1.PDPool{pool("p", "prefill")}, []v1alpha1.PDPool{pool("d", "decode")}
	for _, o := range []client.Object{wanting, policy, tenant, template, topology, backend("used"), backend("idle")} {
		if err := cluster.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "engine", Labels: map[string]string{v1alpha1.LabelCacheDomain: "used", "role": "decode"}}}
	pod.Spec.Containers = []corev1.Container{{Name: "vllm", Image: "vllm"}}
	if err := cluster.Client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	if err := cluster.Client.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	server.holdings.hold(index.ReplicaRow{Tenant: "team-a", Replica: "engine", Memberships: 3, LastSeenMillis: time.Now().UnixMilli()})
}

// Polls, pushes, self-tests and passes over resources go on while nothing
// changes, and ask the API server for nothing.
func TestEnvtestTicksWithoutChangeCallNobody(t *testing.T) {
	cluster := kubetest.Start(t, "../../deploy/crds")
	server := startServer(t, "1")
	server.holdings.tenants = []index.TenantRow{{Tenant: "team-a", Keys: 3}}
	asked := &calls{}
	atRest(t, cluster, server)
	startController(t, cluster, server, false, func(o *controller.Options) {
		o.Config = rest.CopyConfig(o.Config)
		o.Config.QPS = 0 // what a pod's account comes with
		o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return recording{next, asked} })
		o.PushInterval = o.PollInterval
	})
	conditions := func(name string) []metav1.Condition {
		return get[v1alpha1.CacheBackend](t, cluster.Client, key("team-a", name)).Status.Conditions
	}
	eventually(t, "everything is looked at", func() bool {
		return strings.HasPrefix(conditionOf(conditions("used"), "FunctionalProbeOK"), "True/ProbeOK") &&
			strings.HasPrefix(conditionOf(conditions("idle"), "Ready"), "False/AwaitingFirstKVEvent") &&
			get[v1alpha1.CacheBackend](t, cluster.Client, key("team-a", "idle")).Status.EngineSelectorMessage != "" &&
			strings.HasPrefix(conditionOf(get[v1alpha1.PDTopology](t, cluster.Client, key("team-a", "t")).Status.Conditions, "Programmed"), "True/")
	})
	writes := slices.ContainsFunc(asked.take(), func(call string) bool { return strings.HasPrefix(call, "PATCH ") })
	if !writes {
		t.Error("no write of a status was recorded")
	}
	// Longer than the time between two passes over a backend that waits for
	// its pods.
	const ticks = 40
	last := server.received()
	var since []string
	eventually(t, "a stretch without a call", func() bool {
		if since = append(since, asked.take()...); len(since) > 0 {
			t.Logf("not at rest after %d ticks: %s", server.received()-last, strings.Join(since, ", "))
			since, last = nil, server.received()
		}
		return server.received()-last >= ticks
	})
}

// Engines that store and use blocks all the time change what is known of them
// at each poll, and have a status written at few. The clock of the controller
// goes by polls.
func TestEnvtestSteadyTrafficIsWrittenSeldom(t *testing.T) {
	cluster := kubetest.Start(t, "../../deploy/crds")
	server := startServer(t, "1")
	asked := &calls{}
	atRest(t, cluster, server)
	const interval, polls = 100 * time.Millisecond, 60
	start, served := time.Now(), atomic.Int64{}
	inner := server.handler
	server.serve(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/snapshot" {
			n := min(served.Add(1), polls)
			at := start.Add(time.Duration(n) * interval)
			server.holdings.hold(reports("team-a", "engine", 1000+n, .5, at))
			server.holdings.keep(index.TenantRow{Tenant: "team-a", Keys: 1000 + n})
		}
		inner.ServeHTTP(w, r)
	})
	startController(t, cluster, server, false, func(o *controller.Options) {
		o.Config = rest.CopyConfig(o.Config)
		o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return recording{next, asked} })
		o.PollInterval = interval
		o.Now = func() time.Time { return start.Add(time.Duration(served.Load()) * interval) }
	})
	eventually(t, "the traffic has passed", func() bool { return served.Load() >= polls })
	writes := map[string]int{}
	for _, call := range asked.take() {
		for _, object := range []string{"cachebackends/used", "cachetenants/t", "cacheindices/cluster-default"} {
			if strings.HasSuffix(call, "/"+object+"/status") {
				writes[object]++
			}
		}
	}
	for object, n := range writes {
		// One at once, 3 without a wait, one in 4 polls; the conditions of a
		// backend have their own.
		if n > 30 {
			t.Errorf("%s was written %d times in %d polls", object, n, polls)
		}
	}
	t.Logf("writes in %d polls: %v", polls, writes)
	if len(writes) != 3 {
		t.Errorf("writes of %v, want those of 3 objects", writes)
	}
	eventually(t, "what was last stored is shown exactly", func() bool {
		shown := get[v1alpha1.CacheBackend](t, cluster.Client, key("team-a", "used")).Status.IndexParticipation
		return shown != nil && shown.PrefixCount == 1000+polls && get[v1alpha1.CacheIndex](t, cluster.Client, indexKey).Status.Prefixes.Summary.Total == 1000+polls
	})
}
