// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/version"
)

const (
	// maxServerLabels bounds the servers with series of their own.
	maxServerLabels = 16
	otherLabel      = "__other__"
)

// Results of calls to servers.
const (
	callOK          = "ok"
	callUnreachable = "unreachable"
	callUnauth      = "unauth"
	callForbidden   = "forbidden"
	callRejected    = "rejected"
	callTooLarge    = "too_large"
	callError       = "error"
)

// Components in which panics are recovered.
const (
	componentReconcile = "reconcile"
	componentWebhook   = "webhook"
)

// Metrics of a controller. A nil Metrics counts nothing. It is safe for
// concurrent use.
type Metrics struct {
	pushes, polls, probeResults, probeCalls, writes, t2Tokens, panics, storage *prometheus.CounterVec
	pushSeconds                                                                *prometheus.HistogramVec
	lastPush, echoMismatch, lastPoll, lastProbe, t2Rate, caCopies              *prometheus.GaugeVec
	objects                                                                    *prometheus.GaugeVec
	nodeServers                                                                *prometheus.CounterVec
	gateTimeouts                                                               prometheus.Counter
	tainted                                                                    prometheus.Gauge

	mu      sync.Mutex
	servers map[string]bool
	asked   map[string]int64 // tier-2 query tokens at the last poll, by backend
}

// NewMetrics registers the metrics of a controller.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "inferencecache_" + name, Help: help}, labels)
		registerer.MustRegister(c)
		return c
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "inferencecache_" + name, Help: help}, labels)
		registerer.MustRegister(g)
		return g
	}
	m := &Metrics{
		pushes:       counter("controller_policy_pushes_total", "Pushes of policy to a server.", "server", "result"),
		lastPush:     gauge("controller_policy_last_push_timestamp_seconds", "Time of the last push that a server took.", "server"),
		echoMismatch: gauge("controller_policy_echo_mismatch", "1 while a server echoes another revision than it should have.", "server"),
		polls:        counter("controller_snapshot_polls_total", "Polls of a server.", "server", "result"),
		lastPoll:     gauge("controller_snapshot_last_success_timestamp_seconds", "Time of the last poll that a server answered, 0 for none.", "server"),
		probeResults: counter("backend_probe_result_total", "Stages of answered self-tests of a backend.", "backend", "stage", "result"),
		probeCalls:   counter("controller_probe_requests_total", "Calls for a self-test, whatever it found.", "result"),
		lastProbe:    gauge("controller_probe_last_timestamp_seconds", "Time of the last answered self-test of a backend.", "backend"),
		writes:       counter("controller_status_writes_total", "Writes of a resource's status.", "kind", "result"),
		storage:      counter("controller_storage_writes_total", "Writes of the objects of managed storages.", "kind", "operation", "result"),
		t2Rate:       gauge("backend_t2_hit_rate", "Share of queried tokens found in a backend's storage tier, from 0 to 1.", "backend"),
		nodeServers:  counter("controller_node_local_servers_total", "LMCache servers on nodes by what the controller did: created or refused, or deleted for the cause given.", "action"),
		t2Tokens:     counter("backend_t2_query_tokens_total", "Tokens for which a backend's storage tier was asked.", "backend"),
		caCopies:     gauge("controller_server_ca_namespaces", "Namespaces with a CacheBackend, by the state of their copy of the servers' authority.", "state"),
		objects:      gauge("objects", "Resources by what their conditions say.", "kind", "state"),
		panics:       counter("panics_total", "Recovered panics.", "component"),
		pushSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "inferencecache_controller_policy_push_seconds", Help: "Time that a push to a server took.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"server", "result"}),
		tainted: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "inferencecache_controller_snapshot_namespaces_tainted",
			Help: "Namespaces whose status the last poll left alone because their pods could not be read.",
		}),
		gateTimeouts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "inferencecache_controller_node_local_gate_timeouts_total",
			Help: "Engine pods that waited in vain for the LMCache server of their node.",
		}),
		servers: make(map[string]bool), asked: make(map[string]int64),
	}
	registerer.MustRegister(m.pushSeconds, m.tainted, m.gateTimeouts, version.Collector("controller"))
	m.panics.WithLabelValues(componentReconcile)
	m.panics.WithLabelValues(componentWebhook)
	m.serverCA(map[string]int{caCurrent: 0, caForeign: 0, caFailed: 0})
	for _, result := range []string{"ok", "http_error", "timeout", "mismatch"} {
		m.probeCalls.WithLabelValues(result)
	}
	for _, action := range []string{"created", "refused", "duplicate", "ended", "outdated", "replace", "idle"} {
		m.nodeServers.WithLabelValues(action)
	}
	for _, kind := range storageKinds() {
		for _, operation := range []string{"apply", "delete"} {
			for _, result := range []string{callOK, callError} {
				m.storage.WithLabelValues(kind.Kind, operation, result)
			}
		}
	}
	for _, kind := range []string{"CacheBackend", "CacheIndex", "CachePolicy", "CacheTenant", "PDTopology", "PromptTemplate"} {
		for _, result := range []string{"ok", "conflict", "error"} {
			m.writes.WithLabelValues(kind, result)
		}
		for _, state := range objectStates() {
			m.objects.WithLabelValues(kind, state)
		}
	}
	return m
}

// serverCA counts namespaces by state.
func (m *Metrics) serverCA(counts map[string]int) {
	if m == nil {
		return
	}
	for state, count := range counts {
		m.caCopies.WithLabelValues(state).Set(float64(count))
	}
}

// recovering counts the panics of a reconciler and makes them errors.
type recovering struct {
	reconcile.Reconciler
	metrics *Metrics
}

// Reconcile implements reconcile.Reconciler.
func (r recovering) Reconcile(ctx context.Context, request reconcile.Request) (result reconcile.Result, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			if r.metrics != nil {
				r.metrics.panics.WithLabelValues(componentReconcile).Inc()
			}
			result, err = reconcile.Result{}, fmt.Errorf("panic of type %T at:\n%s", fault, debug.Stack())
		}
	}()
	return r.Reconciler.Reconcile(ctx, request)
}

// webhookPanicked counts a panic of a webhook.
func (m *Metrics) webhookPanicked() { m.panics.WithLabelValues(componentWebhook).Inc() }

// nodeServer counts what was done about an LMCache server of a node.
func (m *Metrics) nodeServer(action string) {
	if m != nil {
		m.nodeServers.WithLabelValues(action).Inc()
	}
}

// gateTimedOut counts an engine pod that waited in vain.
func (m *Metrics) gateTimedOut() {
	if m != nil {
		m.gateTimeouts.Inc()
	}
}

// server bounds the label.
func (m *Metrics) server(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.servers[name] {
		if len(m.servers) >= maxServerLabels {
			return otherLabel
		}
		m.servers[name] = true
	}
	return name
}

// serverGone removes what would stay at its last value.
func (m *Metrics) serverGone(name string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	delete(m.servers, name)
	m.mu.Unlock()
	label := prometheus.Labels{"server": name}
	for _, gauge := range []*prometheus.GaugeVec{m.lastPush, m.echoMismatch, m.lastPoll} {
		gauge.DeletePartialMatch(label)
	}
	for _, counter := range []*prometheus.CounterVec{m.pushes, m.polls} {
		counter.DeletePartialMatch(label)
	}
	m.pushSeconds.DeletePartialMatch(label)
}

// callResult is the label of how a call ended.
func callResult(err error) string {
	var refused *controlclient.RefusedError
	switch {
	case err == nil:
		return callOK
	case errors.Is(err, controlclient.ErrTooLarge):
		return callTooLarge
	case errors.As(err, &refused):
		switch refused.Status {
		case http.StatusUnauthorized:
			return callUnauth
		case http.StatusForbidden:
			return callForbidden
		case http.StatusBadRequest, http.StatusUnsupportedMediaType:
			return callRejected
		}
		return callError
	}
	return callUnreachable
}

func (m *Metrics) pushed(server string, o *outcome, took time.Duration, now time.Time) {
	if m == nil {
		return
	}
	label, result := m.server(server), callResult(o.policies)
	if result == callOK && !o.extensionsAbsent() {
		result = callResult(o.extensions)
	}
	m.pushes.WithLabelValues(label, result).Inc()
	m.pushSeconds.WithLabelValues(label, result).Observe(took.Seconds())
	if result == callOK {
		m.lastPush.WithLabelValues(label).Set(float64(now.Unix()))
	}
	echoed, differs := o.identity.PolicyRevision, 0.0
	if echoed != "" && echoed != o.push.policies.Revision {
		differs = 1
	}
	m.echoMismatch.WithLabelValues(label).Set(differs)
}

func (m *Metrics) polled(server string, err error, now time.Time) {
	if m == nil {
		return
	}
	label := m.server(server)
	m.polls.WithLabelValues(label, callResult(err)).Inc()
	last := m.lastPoll.WithLabelValues(label) // 0 before the first success
	if err == nil {
		last.Set(float64(now.Unix()))
	}
}

func (m *Metrics) setTainted(namespaces int) {
	if m != nil {
		m.tainted.Set(float64(namespaces))
	}
}

// probed counts one call, and its stages if it was answered.
func (m *Metrics) probed(backend string, result *controlclient.ProbeResult, err error, now time.Time) {
	if m == nil {
		return
	}
	m.probeCalls.WithLabelValues(probeCall(err)).Inc()
	if err != nil {
		return
	}
	m.lastProbe.WithLabelValues(backend).Set(float64(now.Unix()))
	for _, s := range stages() {
		outcome := s.outcome(result)
		switch outcome {
		case controlclient.StageOK, controlclient.StageSkipped:
		default:
			outcome = controlclient.StageFailed
		}
		m.probeResults.WithLabelValues(backend, s.name, string(outcome)).Inc()
	}
}

func probeCall(err error) string {
	var timeout net.Error
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, controlclient.ErrOtherBackend):
		return "mismatch"
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return "http_error"
}

// probeForgotten removes the age of a backend that is not tested.
func (m *Metrics) probeForgotten(backend string) {
	if m != nil {
		m.lastProbe.DeleteLabelValues(backend)
	}
}

// backendGone removes every series of a backend.
func (m *Metrics) backendGone(name types.NamespacedName) {
	if m == nil {
		return
	}
	m.probeForgotten(name.String())
	m.probeResults.DeletePartialMatch(prometheus.Labels{"backend": name.String()})
	m.tier2(name.String(), 0, 0)
}

// tier2 takes the sums over a backend's replicas. Without queries there is no
// series; the first sums are where counting starts.
func (m *Metrics) tier2(backend string, hits, asked int64) {
	if m == nil {
		return
	}
	m.mu.Lock()
	before, known := m.asked[backend]
	if asked > 0 {
		m.asked[backend] = asked
	} else {
		delete(m.asked, backend)
	}
	m.mu.Unlock()
	if asked <= 0 {
		m.t2Rate.DeleteLabelValues(backend)
		m.t2Tokens.DeleteLabelValues(backend)
		return
	}
	m.t2Rate.WithLabelValues(backend).Set(min(max(float64(hits)/float64(asked), 0), 1))
	counter := m.t2Tokens.WithLabelValues(backend)
	if known && asked > before {
		counter.Add(float64(asked - before))
	}
}

// tier2Of removes the series of all but some backends.
func (m *Metrics) tier2Of(backends map[string]bool) {
	if m == nil {
		return
	}
	m.mu.Lock()
	var gone []string
	for backend := range m.asked {
		if !backends[backend] {
			gone = append(gone, backend)
		}
	}
	m.mu.Unlock()
	for _, backend := range gone {
		m.tier2(backend, 0, 0)
	}
}

// storageWritten counts an attempt to write an object of a managed storage.
func (m *Metrics) storageWritten(kind, operation string, err error) {
	if m == nil {
		return
	}
	result := callOK
	if err != nil {
		result = callError
	}
	m.storage.WithLabelValues(kind, operation, result).Inc()
}

// counted is a client whose writes of status are counted.
type counted struct {
	client.Client
	metrics *Metrics
}

// Counted returns a client that counts writes of status.
func (m *Metrics) Counted(c client.Client) client.Client { return &counted{c, m} }

func (c *counted) Status() client.SubResourceWriter {
	return &countedStatus{c.Client.Status(), c.metrics}
}

type countedStatus struct {
	client.SubResourceWriter
	metrics *Metrics
}

func (s *countedStatus) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
	return s.count(object, s.SubResourceWriter.Patch(ctx, object, patch, options...))
}

func (s *countedStatus) Update(ctx context.Context, object client.Object, options ...client.SubResourceUpdateOption) error {
	return s.count(object, s.SubResourceWriter.Update(ctx, object, options...))
}

func (s *countedStatus) count(object client.Object, err error) error {
	result := "ok"
	switch {
	case apierrors.IsConflict(err):
		result = "conflict"
	case err != nil:
		result = "error"
	}
	s.metrics.writes.WithLabelValues(statusKind(object), result).Inc()
	return err
}

func statusKind(object client.Object) string {
	switch object.(type) {
	case *v1alpha1.CacheBackend:
		return "CacheBackend"
	case *v1alpha1.CacheIndex:
		return "CacheIndex"
	case *v1alpha1.PDTopology:
		return "PDTopology"
	}
	return kindOf(object)
}
