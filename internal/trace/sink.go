// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"encoding/json"
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
	for {
		select {
		case l := <-q.lines:
			q.write(l, r)
		case <-ctx.Done():
			for {
				select {
				case l := <-q.lines:
					q.write(l, r)
				default:
					return
				}
			}
		}
	}
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
