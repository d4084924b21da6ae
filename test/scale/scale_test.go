// SPDX-License-Identifier: Apache-2.0

//go:build scale

package scale

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/bench"
	"github.com/inferencecache/inference-cache/internal/kubetest"
)

const (
	goal = "K1"
	// quiet is how long nothing is written before a controller is steady.
	quiet = 10 * time.Second
	// steadyLimit bounds the wait for that.
	steadyLimit = 4 * time.Minute
	// rest is how long calls are counted; changes come for a part of it.
	rest, busy = 2 * time.Minute, 30 * time.Second
	// samples of latencies.
	samples = 100
)

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

func TestControllerAtScale(t *testing.T) {
	ctrllog.SetLogger(logr.Discard())
	report := bench.NewReport(os.Stdout)
	report.Print(bench.ThisMachine())
	program, b := buildProgram(t), startBed(t)
	at := newPlaces(t)
	_, port, err := net.SplitHostPort(at.webhooks)
	must(t, err)
	b.register(t, port)
	others := number("SCALE_OTHERS", 20000)
	begin := time.Now()
	b.populateOthers(t, others)
	report.AtMost(goal, "pods that are no engines", "pods", 0, []float64{float64(others)}, map[string]float64{"seconds": time.Since(begin).Seconds()})
	for _, adapters := range []string{"core", "all"} {
		if only := os.Getenv("SCALE_ADAPTERS"); only != "" && only != adapters {
			continue
		}
		m := &measurement{bed: b, report: report, program: program, at: at, adapters: adapters, server: startServer(t, program)}
		m.populate(t)
		m.measure(t)
		b.clear(t)
	}
	must(t, report.Err())
}

// measurement is one with a value of --adapters.
type measurement struct {
	*bed
	report   *bench.Report
	program  string
	at       places
	adapters string
	server   server
	c        *controller
	offset   int64 // of the audit log
}

func (m *measurement) row(name, unit string, limit, value float64, detail map[string]float64) {
	m.report.AtMost(goal, m.adapters+": "+name, unit, limit, []float64{value}, detail)
}

func (m *measurement) start(t *testing.T) {
	t.Helper()
	_, m.offset = m.callsSince(t, m.offset)
	m.c = m.startController(t, m.program, m.at, m.server, m.adapters)
	kubetest.Eventually(t, "the controller is ready", m.c.ready)
}

// populate has a controller inject the engines as they come.
func (m *measurement) populate(t *testing.T) {
	t.Helper()
	m.start(t)
	kubetest.Eventually(t, "webhooks answer", func() error {
		b := backend(m.adapters, 0, 0)
		b.Namespace = "default"
		return m.Client.Create(t.Context(), b, client.DryRunAll)
	})
	m.populateBackends(t, m.adapters)
	m.populateEngines(t)
	m.reportEngines(t)
	m.c.stop()
}

func (m *measurement) measure(t *testing.T) {
	t.Helper()
	m.forgetStatus(t)
	m.start(t)
	ready := time.Since(m.c.started)
	m.steady(t, "from start to the last write, nothing known before", ready)
	m.c.stop()
	m.start(t)
	ready = time.Since(m.c.started)
	m.steady(t, "from start to the last write, all known before", ready)
	m.atRest(t)
	m.inTraffic(t)
	m.underChange(t)
	m.row("resident memory, highest", "MiB", 256, m.c.memory(t, "VmHWM"), nil)
	m.c.stop()
}

// steady waits until nothing is written any more.
func (m *measurement) steady(t *testing.T, name string, ready time.Duration) {
	t.Helper()
	last, counts, total := m.c.started, map[string]float64{}, 0
	for time.Since(last) < quiet && time.Since(m.c.started) < steadyLimit || time.Since(m.c.started) < 2*quiet {
		pause(t, time.Second)
		var calls []call
		calls, m.offset = m.callsSince(t, m.offset)
		total += len(calls)
		for _, c := range calls {
			if c.writes() && c.StageTimestamp.After(last) {
				last = c.StageTimestamp
			}
			counts[c.what()]++
		}
	}
	counts["calls"], counts["until ready"] = float64(total), ready.Seconds()
	m.row(name, "s", 0, last.Sub(m.c.started).Seconds(), counts)
	m.row("resident memory once steady", "MiB", 128, m.c.memory(t, "VmRSS"), nil)
}

// window counts calls for some time.
func (m *measurement) window(t *testing.T, name string, d time.Duration, limit float64, tick func()) {
	t.Helper()
	_, m.offset = m.callsSince(t, m.offset)
	before, began := m.c.scrape(t), time.Now()
	highest := 0.0
	for time.Since(began) < d {
		if tick != nil {
			tick()
		}
		highest = max(highest, m.c.memory(t, "VmRSS"))
		pause(t, time.Second)
	}
	seconds := time.Since(began).Seconds()
	after := m.c.scrape(t)
	var calls []call
	calls, m.offset = m.callsSince(t, m.offset)
	counts := map[string]float64{"with leases, by rest_client_requests_total": (after.requests() - before.requests()) / seconds}
	for _, c := range calls {
		counts[c.what()]++
	}
	m.row("calls of the API server "+name, "1/s", limit, float64(len(calls))/seconds, counts)
	m.reconciles(name, before, after)
	m.row("resident memory "+name, "MiB", 128, highest, nil)
}

// reconciles prints the time of passes over CacheBackends between two pages.
func (m *measurement) reconciles(name string, before, after families) {
	counts, old := after.reconciles(), before.reconciles()
	for bound := range counts {
		counts[bound] -= old[bound]
	}
	p50, p99, n := quantile(counts, 0.5), quantile(counts, 0.99), 0.0
	for _, c := range counts {
		n = max(n, float64(c))
	}
	m.row("pass over a CacheBackend, p99, "+name, "ms", 100, 1000*p99, map[string]float64{"p50": 1000 * p50, "passes": n})
}

// quantile interpolates in a cumulative histogram.
func quantile(cumulative map[float64]uint64, q float64) float64 {
	var bounds []float64
	for bound := range cumulative {
		bounds = append(bounds, bound)
	}
	slices.Sort(bounds)
	if len(bounds) == 0 {
		return 0
	}
	target := q * float64(cumulative[bounds[len(bounds)-1]])
	below, lower := 0.0, 0.0
	for _, bound := range bounds {
		if count := float64(cumulative[bound]); count >= target && count > below {
			return lower + (bound-lower)*(target-below)/(count-below)
		}
		below, lower = float64(cumulative[bound]), bound
	}
	return lower
}

func (m *measurement) atRest(t *testing.T) {
	t.Helper()
	m.window(t, "at rest", rest, 1, nil)
}

// inTraffic has every engine report all the time.
func (m *measurement) inTraffic(t *testing.T) {
	t.Helper()
	m.window(t, "while every engine stores blocks", rest/2, 0, func() { m.reportEngines(t) })
}

func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
		t.FailNow()
	case <-time.After(d):
	}
}

// underChange has engines come and go while latencies are taken.
func (m *measurement) underChange(t *testing.T) {
	t.Helper()
	before := m.c.scrape(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	go func() { done <- m.flap(ctx) }()
	began := time.Now()
	m.policies(t)
	m.injections(t)
	for time.Since(began) < busy {
		pause(t, time.Second)
	}
	cancel()
	changes := <-done
	m.row("changes of engine pods beside what follows", "1/s", 0, float64(changes)/time.Since(began).Seconds(), nil)
	m.reconciles("while engines change", before, m.c.scrape(t))
}

// flap changes the readiness of engines until the context ends.
func (m *measurement) flap(ctx context.Context) (changes int) {
	for i := 0; ctx.Err() == nil; i++ {
		namespace, _, _ := engineOf(i % engines)
		var pod corev1.Pod
		err := m.Client.Get(ctx, client.ObjectKey{Namespace: space(namespace), Name: engineName(i % engines)}, &pod)
		if err == nil && m.setRunning(ctx, &pod, i/engines%2 == 1) == nil {
			changes++
		}
	}
	return changes
}

// latencies prints how long something takes.
func (m *measurement) latencies(name, unit string, limit, scale float64, took []float64) {
	slices.Sort(took)
	m.row(name+", p99", unit, limit, scale*bench.Quantile(took, 0.99), map[string]float64{"p50": scale * bench.Quantile(took, 0.5), "n": float64(len(took))})
}

// policies measures from the creation of a CachePolicy to its Programmed.
func (m *measurement) policies(t *testing.T) {
	t.Helper()
	var took []float64
	for i := range namespaces {
		p := &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: space(i), Name: "p"}}
		began := time.Now()
		must(t, m.Client.Create(t.Context(), p))
		for deadline := began.Add(time.Minute); !programmed(p); {
			if time.Now().After(deadline) {
				t.Fatalf("policy %d is not programmed: %+v", i, p.Status)
			}
			pause(t, 10*time.Millisecond)
			must(t, m.Client.Get(t.Context(), client.ObjectKeyFromObject(p), p))
		}
		took = append(took, time.Since(began).Seconds())
	}
	m.latencies("from a CachePolicy's creation to Programmed", "s", 0, 1, took)
}

func programmed(p *v1alpha1.CachePolicy) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == v1alpha1.ConditionProgrammed && c.Status == metav1.ConditionTrue
	})
}

// injections measures the creation of engine pods, and of others beside it.
func (m *measurement) injections(t *testing.T) {
	t.Helper()
	took := map[bool][]float64{}
	for i := range 2 * samples {
		engine := i%2 == 0
		namespace, n, node := engineOf(i)
		pod := enginePod(namespace, n, node, fmt.Sprintf("sample-%03d", i))
		if !engine {
			delete(pod.Labels, v1alpha1.LabelCacheDomain)
		}
		began := time.Now()
		must(t, m.Client.Create(t.Context(), pod))
		took[engine] = append(took[engine], time.Since(began).Seconds())
		if engine && pod.Annotations[v1alpha1.AnnotationInjectedByUID] == "" {
			t.Fatalf("pod %s was not injected: %v", pod.Name, pod.Annotations)
		}
	}
	m.latencies("creation of an engine pod, injected", "ms", 0, 1000, took[true])
	m.latencies("creation of the same pod without the label", "ms", 0, 1000, took[false])
}
