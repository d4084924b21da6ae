// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/inferencecache/inference-cache/internal/defaults"
)

// Options of a Recorder. The zero value keeps the latest records in memory and
// writes none.
type Options struct {
	// Switches at the start; see Recorder.Set.
	Switches Switches
	// Log takes the records while Switches.Log is on, and always what is said
	// about omitted headers; default none.
	Log Sink
	// File takes all records; default none.
	File Sink
	// Tracer makes spans of requests and attempts; default none.
	Tracer oteltrace.Tracer
	// Registerer takes the metrics; default a new registry.
	Registerer prometheus.Registerer
	// DrainTimeout is how long sinks may take after Run's context ended;
	// default 1 s.
	DrainTimeout time.Duration
	// Now is the clock; default time.Now.
	Now func() time.Time
	// Problem is told of selections and failures that break the rules of the
	// format; default nobody. It is for tests.
	Problem func(string)
}

// Recorder records the requests of one process. It is safe for concurrent use.
// Methods of a nil Recorder, and of what they return, do nothing.
type Recorder struct {
	options  Options
	switches atomic.Pointer[Switches]
	metrics  *metrics
	ring     ring
	epoch    string
	nameKey  []byte
	// log and file are nil without a sink.
	log, file *queue
	// requests numbers requests, sampled those that lines are considered for.
	requests, sampled atomic.Uint64
	omissions         limiter
}

// New returns a recorder. Errors are ErrSwitches. Run writes what it records.
func New(options Options) (*Recorder, error) {
	if err := options.Switches.Validate(); err != nil {
		return nil, err
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	defaults.Set(&options.DrainTimeout, drainTimeout)
	if options.Registerer == nil {
		options.Registerer = prometheus.NewRegistry()
	}
	r := &Recorder{options: options, metrics: newMetrics(options.Registerer), epoch: NewID(options.Now())}
	r.nameKey = make([]byte, 32)
	_, _ = rand.Read(r.nameKey) // never fails
	if options.Log != nil {
		r.log = newQueue(options.Log)
	}
	if options.File != nil {
		r.file = newQueue(options.File)
	}
	switches := options.Switches.withDefaults()
	r.switches.Store(&switches)
	return r, nil
}

// Set changes the switches for requests that begin from now on. Errors are
// ErrSwitches, and then nothing changes.
func (r *Recorder) Set(switches Switches) error {
	if r == nil {
		return nil
	}
	if err := switches.Validate(); err != nil {
		return err
	}
	switches = switches.withDefaults()
	r.switches.Store(&switches)
	return nil
}

// Switches returns the switches in force, with their defaults filled in.
func (r *Recorder) Switches() Switches {
	if r == nil {
		return Switches{}.withDefaults()
	}
	return *r.switches.Load()
}

// Epoch returns the id of the process in the records.
func (r *Recorder) Epoch() string {
	if r == nil {
		return ""
	}
	return r.epoch
}

// Run writes records until ctx ends, then those still waiting, and closes the
// sinks. A sink that hangs is left behind after Options.DrainTimeout.
func (r *Recorder) Run(ctx context.Context) {
	if r == nil {
		return
	}
	runBounded(ctx, r.options.DrainTimeout, func() {
		var workers sync.WaitGroup
		for _, q := range []*queue{r.log, r.file} {
			if q != nil {
				workers.Go(func() { q.run(ctx, r) })
			}
		}
		workers.Wait()
	})
}

// CountStripped counts trace headers of others that were removed.
func (r *Recorder) CountStripped(side string, headers int) {
	if r != nil && headers > 0 {
		r.metrics.stripped.WithLabelValues(side).Add(float64(headers))
	}
}

// writesLines says whether records go anywhere but memory and spans.
func (r *Recorder) writesLines(s *Switches) bool {
	return s.Log && r.log != nil || r.file != nil
}

// send hands a record to the sinks. It never waits.
func (r *Recorder) send(record *Record, s *Switches) {
	item := line{record: record, limit: s.MaxLineBytes, names: s.ReplicaNames}
	sent := false
	if s.Log && r.log != nil {
		sent = r.log.put(item, r.metrics)
	}
	if r.file != nil {
		sent = r.file.put(item, r.metrics) || sent
	}
	if sent {
		r.metrics.records.WithLabelValues(string(record.Kind)).Inc()
	}
}

// sendOmitted logs that a header is missing, whatever the log switch says, but
// at most omissionsPerSecond of them.
func (r *Recorder) sendOmitted(record *Record, s *Switches) {
	r.metrics.omitted.WithLabelValues(record.Omitted.Reason).Inc()
	r.ring.add(record)
	if !r.omissions.allow(r.options.Now()) {
		return
	}
	always := *s
	always.Log = true
	r.send(record, &always)
}

const omissionsPerSecond = 10

// limiter lets a number of events pass per second.
type limiter struct {
	mu     sync.Mutex
	second int64
	passed int
}

func (l *limiter) allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if second := now.Unix(); second != l.second {
		l.second, l.passed = second, 0
	}
	l.passed++
	return l.passed <= omissionsPerSecond
}
