// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/control"
	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/probe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const epoch = "000102030405060708090a0b0c0d0e0f"

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fixedGate always says the same.
type fixedGate gate.Verdict

func (g fixedGate) Check(*http.Request) gate.Verdict { return gate.Verdict(g) }

// holdings is an index made of rows.
type holdings struct {
	replicas []index.ReplicaRow
	tenants  []index.TenantRow
	counters index.Counters
}

func (h *holdings) EachReplica(f func(index.ReplicaRow)) {
	for _, row := range h.replicas {
		f(row)
	}
}

func (h *holdings) EachTenant(f func(index.TenantRow)) {
	for _, row := range h.tenants {
		f(row)
	}
}

func (h *holdings) Counters(int64) index.Counters { return h.counters }

type proberFunc func(context.Context, probe.Request) (probe.Result, error)

func (f proberFunc) Run(ctx context.Context, r probe.Request) (probe.Result, error) { return f(ctx, r) }

// harness is a handler over fakes.
type harness struct {
	t        *testing.T
	handler  http.Handler
	policies *policy.Store
	registry *prometheus.Registry
	logs     strings.Builder
	panics   atomic.Int64
}

func start(t *testing.T, change ...func(*control.Options)) *harness {
	h := &harness{t: t, policies: policy.NewStore(0), registry: prometheus.NewRegistry()}
	options := control.Options{
		Gates:     control.Gates{Snapshot: gate.Open{}, Policy: gate.Open{}, Probe: gate.Open{}},
		Policies:  h.policies,
		Holdings:  new(holdings),
		Prober:    proberFunc(func(context.Context, probe.Request) (probe.Result, error) { return probe.Result{}, nil }),
		Epoch:     epoch,
		StartedAt: noon,
		Registry:  h.registry,
		Panicked:  func(any, []byte) { h.panics.Add(1) },
		Logger:    slog.New(slog.NewTextHandler(&h.logs, nil)),
		Now:       func() time.Time { return noon },
	}
	for _, c := range change {
		c(&options)
	}
	h.handler = control.New(options)
	return h
}

// call serves one request; headers come in pairs.
func (h *harness) call(method, path, body string, headers ...string) *http.Response {
	return h.stream(method, path, strings.NewReader(body), headers...)
}

func (h *harness) stream(method, path string, body io.Reader, headers ...string) *http.Response {
	h.t.Helper()
	request := httptest.NewRequest(method, path, body)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	recorder := httptest.NewRecorder()
	h.handler.ServeHTTP(recorder, request)
	return recorder.Result()
}

func textOf(t *testing.T, response *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// wantAnswer checks the status and how the body starts.
func (h *harness) wantAnswer(response *http.Response, code int, text string) {
	h.t.Helper()
	got := textOf(h.t, response)
	if response.StatusCode != code || !strings.HasPrefix(got, text) || text == "" && got != "" {
		h.t.Errorf("answer %d %q, want %d %q", response.StatusCode, got, code, text)
	}
}

func compressed(t *testing.T, plain []byte) string {
	t.Helper()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// metric returns the value of the one series with the labels, given in pairs.
func (h *harness) metric(name string, labels ...string) float64 {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "inferencecache_"+name {
			continue
		}
		for _, m := range family.GetMetric() {
			if hasLabels(m, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	h.t.Errorf("no series %s%v", name, labels)
	return -1
}

// count returns how many series a metric has.
func (h *harness) count(name string) int {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "inferencecache_"+name {
			return len(family.GetMetric())
		}
	}
	return 0
}

func hasLabels(m *dto.Metric, labels []string) bool {
	want := make(map[string]string)
	for i := 0; i < len(labels); i += 2 {
		want[labels[i]] = labels[i+1]
	}
	for _, l := range m.GetLabel() {
		if want[l.GetName()] != l.GetValue() {
			return false
		}
	}
	return len(m.GetLabel()) == len(want)
}

func (h *harness) wantMetric(want float64, name string, labels ...string) {
	h.t.Helper()
	if got := h.metric(name, labels...); got != want {
		h.t.Errorf("%s%v = %v, want %v", name, labels, got, want)
	}
}
