// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/trace"
)

// BenchmarkRequest records one attempt with 8 candidates and its outcome.
func BenchmarkRequest(b *testing.B) {
	for name, switches := range map[string]*trace.Switches{
		"off":         nil,
		"memory only": {},
		"log 1 in 100": {
			Log: true, Outcome: true, Sample: 100,
		},
		"log each": {Log: true, Outcome: true},
		"header":   {Header: trace.HeaderAny},
	} {
		b.Run(name, func(b *testing.B) {
			var r *trace.Recorder
			if switches != nil {
				var err error
				if r, err = trace.New(trace.Options{Switches: *switches, Log: discard{}}); err != nil {
					b.Fatal(err)
				}
				done := make(chan struct{})
				go func() { r.Run(b.Context()); close(done) }()
				b.Cleanup(func() { <-done })
			}
			now := time.Now()
			b.ReportAllocs()
			for b.Loop() {
				q := r.Begin(trace.Info{Endpoint: "completions", Mode: trace.ModeRegular, RootID: "root"})
				a := q.Attempt(0)
				if a != nil {
					choose(a, trace.RoleSingle, 8)
					a.Dispatch(&trace.Sent{DispatchID: trace.NewID(now), IDs: []trace.EngineID{{ID: "e", Role: trace.RoleSingle}}})
				}
				_, _, _ = q.Header(nil)
				a.Outcome(&trace.Outcome{Status: 200})
				q.End()
			}
		})
	}
}

type discard struct{}

func (discard) Write(*trace.Record, []byte) error { return nil }
func (discard) Close() error                      { return nil }
