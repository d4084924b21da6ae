// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"time"
)

// Sink takes records, one at a time. Write may keep neither argument; line is
// the record as JSON without an end of line. It may block: then records are
// dropped and counted, and no request waits.
type Sink interface {
	Write(record *Record, line []byte) error
	Close() error
}

// queueLength is the number of records that wait for a sink.
const queueLength = 1024

// line is a record on its way to a sink.
type line struct {
	record *Record
	limit  int
	names  NameMode
}

// queue separates requests from a sink.
type queue struct {
	sink  Sink
	lines chan line
}

func newQueue(sink Sink) *queue { return &queue{sink: sink, lines: make(chan line, queueLength)} }

// put hands a line over or drops it.
func (q *queue) put(l line, m *metrics) bool {
	select {
	case q.lines <- l:
		return true
	default:
		m.dropped.WithLabelValues(droppedSlow).Inc()
		return false
	}
}

// run writes until ctx ends and nothing waits any more.
func (q *queue) run(ctx context.Context, r *Recorder) {
	defer func() { _ = q.sink.Close() }()
	drain(ctx, q.lines, func(l line) { q.write(l, r) })
}

func (q *queue) write(l line, r *Recorder) {
	record := l.record
	switch l.names {
	case NamesHash:
		record = record.renamed(func(name Text) Text {
			if name == "" {
				return ""
			}
			return Text(hashName(r.nameKey, string(name)))
		})
	case NamesNone:
		record = record.renamed(func(Text) Text { return "" })
	}
	text, cut, err := encodeLine(record, l.limit)
	if err == nil {
		r.metrics.bytes.WithLabelValues(formLine).Observe(float64(len(text)))
		err = q.sink.Write(record, text)
	}
	if cut {
		r.metrics.truncated.WithLabelValues("line").Inc()
	}
	if err != nil {
		r.metrics.dropped.WithLabelValues(droppedError).Inc()
	}
}

// logSink writes records to a logger.
type logSink struct{ handler slog.Handler }

// NewLogSink returns a sink that logs each record at level INFO with the
// attributes logger=cache_trace and evidence, the record.
func NewLogSink(logger *slog.Logger) Sink {
	return logSink{logger.Handler().WithAttrs([]slog.Attr{slog.String("logger", "cache_trace")})}
}

// Write implements Sink.
func (s logSink) Write(record *Record, line []byte) error {
	ctx := context.Background()
	if !s.handler.Enabled(ctx, slog.LevelInfo) {
		return nil
	}
	entry := slog.NewRecord(time.Unix(0, record.TSUnixNS), slog.LevelInfo, "cache routing "+string(record.Kind), 0)
	entry.AddAttrs(slog.Any("evidence", json.RawMessage(line)))
	return s.handler.Handle(ctx, entry)
}

// Close implements Sink.
func (logSink) Close() error { return nil }

// LineSink takes lines, one at a time. It may block, and may change what it is
// given.
type LineSink interface {
	WriteLine(line []byte) error
	Close() error
}

// Lines hands lines to a sink that may be slow. Lines that it cannot take in
// time are dropped. It is safe for concurrent use.
type Lines struct {
	sink    LineSink
	lines   chan []byte
	dropped func()
}

// NewLines returns lines that Run writes. dropped is called for each one lost.
func NewLines(sink LineSink, dropped func()) *Lines {
	return &Lines{sink: sink, lines: make(chan []byte, queueLength), dropped: dropped}
}

// Write hands a line over. It never waits.
func (l *Lines) Write(line []byte) {
	select {
	case l.lines <- line:
	default:
		l.dropped()
	}
}

// Run writes until ctx ends, then what is left, and closes the sink. A sink
// that hangs is left behind after a second.
func (l *Lines) Run(ctx context.Context) {
	runBounded(ctx, drainTimeout, func() {
		defer func() { _ = l.sink.Close() }()
		drain(ctx, l.lines, func(line []byte) {
			if l.sink.WriteLine(line) != nil {
				l.dropped()
			}
		})
	})
}

// drain passes on what arrives until ctx ends and nothing waits any more.
func drain[T any](ctx context.Context, from <-chan T, write func(T)) {
	for {
		select {
		case item := <-from:
			write(item)
		case <-ctx.Done():
			for {
				select {
				case item := <-from:
					write(item)
				default:
					return
				}
			}
		}
	}
}

// drainTimeout is how long sinks may take after the context ended.
const drainTimeout = time.Second

// runBounded runs work, which ends soon after ctx unless it hangs; then it is
// left behind.
func runBounded(ctx context.Context, grace time.Duration, work func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		work()
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	limit := time.NewTimer(grace)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
}

// writerSink writes lines to a writer that somebody else closes.
type writerSink struct{ w io.Writer }

// NewWriterSink returns a sink that writes to w and never closes it.
func NewWriterSink(w io.Writer) LineSink { return writerSink{w} }

// WriteLine implements LineSink.
func (s writerSink) WriteLine(line []byte) error {
	_, err := s.w.Write(append(line, '\n'))
	return err
}

// Close implements LineSink.
func (writerSink) Close() error { return nil }
