// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/internal/trace"
)

// TestSlowSinkDropsRecords checks that requests go on while a sink hangs, and
// that what it cannot take is counted.
func TestSlowSinkDropsRecords(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true})
	f.sink.block = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		f.Run(ctx)
		close(stopped)
	}()
	const sent = 3000
	for i := range sent { // none of this waits, or the test would hang
		q := f.begin(fmt.Sprint(i))
		send(q.Attempt(0), "e")
		q.End()
	}
	dropped := f.value("dropped_total", "reason", "sink_slow")
	if dropped == 0 || dropped+f.value("records_total", "kind", "dispatch") != sent {
		t.Errorf("%v dropped and %v accepted of %d", dropped, f.value("records_total", "kind", "dispatch"), sent)
	}
	close(f.sink.block)
	cancel()
	<-stopped
	if got := float64(len(f.sink.records)); got != sent-dropped {
		t.Errorf("%v written, want %v", got, sent-dropped)
	}
	if !f.sink.closed {
		t.Error("the sink was not closed")
	}
}

func TestFailingSinkIsCounted(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true})
	f.sink.fail = true
	send(f.begin("root").Attempt(0), "e")
	f.flush()
	if got := f.value("dropped_total", "reason", "sink_error"); got != 1 {
		t.Errorf("%v counted, want 1", got)
	}
}

func TestLogSink(t *testing.T) {
	var text bytes.Buffer
	f := newFixture(t, trace.Switches{Log: true}, func(o *trace.Options) {
		o.Log = trace.NewLogSink(slog.New(slog.NewJSONHandler(&text, nil)))
	})
	a := f.begin("grün\n").Attempt(0)
	choose(a, trace.RoleSingle, 1)
	send(a, "e")
	f.flush()
	var entry struct {
		Time, Level, Msg, Logger string
		Evidence                 trace.Record
	}
	if err := json.Unmarshal(text.Bytes(), &entry); err != nil {
		t.Fatalf("%v: %s", err, text.String())
	}
	if entry.Level != "INFO" || entry.Msg != "cache routing dispatch" || entry.Logger != "cache_trace" ||
		entry.Evidence.RootID != "grün\n" || !strings.HasPrefix(entry.Time, "2023-11-14T") {
		t.Errorf("entry %+v", entry)
	}
	if strings.Count(text.String(), "\n") != 1 {
		t.Errorf("more than one line: %q", text.String())
	}
	text.Reset()
	quiet := newFixture(t, trace.Switches{Log: true}, func(o *trace.Options) {
		o.Log = trace.NewLogSink(slog.New(slog.NewJSONHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn})))
	})
	send(quiet.begin("root").Attempt(0), "e")
	quiet.flush()
	if text.Len() != 0 {
		t.Errorf("a log of warnings has %s", text.String())
	}
}

func TestFileIsRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	file, err := trace.OpenFile(path, trace.FileOptions{MaxBytes: 100, Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Repeat("x", 39)
	for i := range 9 { // two lines to a file
		if err := file.WriteLine([]byte(fmt.Sprint(i) + line)); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"": "8" + line + "\n", ".1": "6" + line + "\n7" + line + "\n", ".2": "4" + line + "\n5" + line + "\n"} {
		got, err := os.ReadFile(path + name)
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
		if info, err := os.Stat(path + name); err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, want 0600", name, info.Mode().Perm())
		}
	}
	if _, err := os.Stat(path + ".3"); err == nil {
		t.Error("a third old file is kept")
	}
	again, err := trace.OpenFile(path, trace.FileOptions{MaxBytes: 100, Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	_ = again.WriteLine([]byte("9"))
	_ = again.Close()
	if got, _ := os.ReadFile(path); string(got) != "8"+line+"\n9\n" {
		t.Errorf("after opening again: %q", got)
	}
}

func TestFileSink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	file, err := trace.OpenFile(path, trace.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, trace.Switches{}, func(o *trace.Options) { o.File = file })
	send(f.begin("root").Attempt(0), "e")
	if got := len(f.written()); got != 0 {
		t.Errorf("%d lines in the log, which is off", got)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var record trace.Record
	if err := json.Unmarshal(text, &record); err != nil || record.RootID != "root" {
		t.Errorf("%v: %s", err, text)
	}
	if _, err := trace.OpenFile(filepath.Join(path, "none"), trace.FileOptions{}); err == nil || !strings.Contains(err.Error(), "open trace file") {
		t.Errorf("a file below a file: %v", err)
	}
}
