// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/control"
	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/probe"
)

// The client library may leave a filtered watch behind when its reader ends
// between two events.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
}

func ptr[T any](v T) *T { return &v }

// eventually polls a condition that another goroutine brings about.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return scheme
}

func newCluster(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	return fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(objects...).WithStatusSubresource(
		&v1alpha1.CachePolicy{}, &v1alpha1.CacheTenant{}, &v1alpha1.CacheIndex{}, &v1alpha1.CacheBackend{},
		&v1alpha1.PromptTemplate{}, &v1alpha1.PDTopology{},
	).WithTypeConverters(managedfields.NewDeducedTypeConverter()).Build() // the others take no NetworkPolicies
}

// holdings are the rows of a server's index.
type holdings struct {
	mu       sync.Mutex
	replicas []index.ReplicaRow
	tenants  []index.TenantRow
}

// hold replaces the replicas of a server that is in use.
func (h *holdings) hold(rows ...index.ReplicaRow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.replicas = rows
}

// keep replaces the tenants.
func (h *holdings) keep(rows ...index.TenantRow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tenants = rows
}

func (h *holdings) EachReplica(f func(index.ReplicaRow)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, row := range h.replicas {
		f(row)
	}
}

func (h *holdings) EachTenant(f func(index.TenantRow)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, row := range h.tenants {
		f(row)
	}
}

func (h *holdings) Counters(int64) index.Counters { return index.Counters{} }

type prober func(probe.Request) probe.Result

func (p prober) Run(_ context.Context, r probe.Request) (probe.Result, error) { return p(r), nil }

// testServer is a server's real internal listener, which can be broken.
type testServer struct {
	listener *httptest.Server
	holdings *holdings

	mu       sync.Mutex
	policies *policy.Store
	handler  http.Handler
	// instead serves in place of the handler when it is set.
	instead http.HandlerFunc
	pushes  int // policy bodies received
}

func startServer(t *testing.T, epoch string) *testServer {
	t.Helper()
	s := &testServer{holdings: new(holdings)}
	s.restart(epoch)
	s.listener = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		if r.URL.Path == "/policy" {
			s.pushes++
		}
		handler := s.handler
		if s.instead != nil {
			handler = s.instead
		}
		s.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.listener.Close)
	return s
}

// restart gives the listener a new process that knows nothing.
func (s *testServer) restart(epoch string) {
	policies := policy.NewStore(0)
	handler := control.New(control.Options{
		Gates:    control.Gates{Snapshot: gate.Open{}, Policy: gate.Open{}, Probe: gate.Open{}},
		Policies: policies, Holdings: s.holdings, Epoch: epoch, StartedAt: time.Now(),
		Prober: prober(func(probe.Request) probe.Result {
			return probe.Result{Ingest: probe.OK, Routing: probe.OK, Tier2: probe.Skipped}
		}),
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policies, s.handler = policies, handler
}

// serve replaces the handler, nil brings it back.
func (s *testServer) serve(instead http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instead = instead
}

func (s *testServer) effective(tenant string) *policy.Effective {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policies.View().For(tenant)
}

func (s *testServer) received() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pushes
}

func (s *testServer) named(t *testing.T, name string) controller.Server {
	base := s.listener.URL
	return controller.Server{Name: name, Address: base, Client: controlclient.New(controlclient.Options{
		URLs:                controlclient.URLs{Snapshot: base + "/snapshot", Policy: base + "/policy", Probe: base + "/probe"},
		ControllerTokenFile: filepath.Join(t.TempDir(), "absent"), PolicyTokenFile: filepath.Join(t.TempDir(), "absent"),
		HTTP: &http.Client{Timeout: controlclient.DefaultTimeout, Transport: &http.Transport{DisableKeepAlives: true}},
	})}
}

// servers is a discovery whose result can change.
type servers struct {
	mu  sync.Mutex
	all []controller.Server
}

func (s *servers) Servers(context.Context) ([]controller.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all), nil
}

func (s *servers) set(all ...controller.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = all
}

// run starts something that ends with its context, and ends it with the test.
func run(t *testing.T, start func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
}

func key(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

func object(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 1}
}

// conditionOf returns "Status/Reason: message" of a condition, "" without one.
func conditionOf(conditions []metav1.Condition, kind string) string {
	for _, c := range conditions {
		if c.Type == kind {
			return string(c.Status) + "/" + c.Reason + ": " + c.Message
		}
	}
	return ""
}
