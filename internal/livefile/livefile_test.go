// SPDX-License-Identifier: Apache-2.0

//go:build unix

package livefile_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/livefile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func text(b []byte) (string, error) {
	if string(b) == "bad" {
		return "", errors.New("not good")
	}
	return string(b), nil
}

func write(t *testing.T, path, content string, modified time.Time) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, modified, modified); err != nil {
		t.Fatal(err)
	}
}

func TestFileFollowsChanges(t *testing.T) {
	path, began := filepath.Join(t.TempDir(), "f"), time.Now().Add(-time.Hour)
	write(t, path, "one", began)
	var logs strings.Builder
	file, err := livefile.Open(path, slog.New(slog.NewTextHandler(&logs, nil)), text)
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		what   string
		change func()
		want   string
	}{
		{"as it was", func() {}, "one"},
		{"another content", func() { write(t, path, "two", began.Add(time.Second)) }, "two"},
		{"one that cannot be used", func() { write(t, path, "bad", began.Add(2*time.Second)) }, "two"},
		{"one that is still unusable", func() {}, "two"},
		{"no file", func() { _ = os.Remove(path) }, "two"},
		{"too many bytes", func() { write(t, path, strings.Repeat("x", 1<<20+1), began.Add(3*time.Second)) }, "two"},
		{"a good one again", func() { write(t, path, "three", began.Add(4*time.Second)) }, "three"},
	} {
		step.change()
		if got := file.Get(); got != step.want {
			t.Errorf("step %d, %s: %.10q, want %q", i, step.what, got, step.want)
		}
	}
	if n := strings.Count(logs.String(), "keeping what a file said before"); n != 1 {
		t.Errorf("%d warnings, want 1: %s", n, logs.String())
	}
}

func TestFileThatCannotBeOpened(t *testing.T) {
	if _, err := livefile.Open(filepath.Join(t.TempDir(), "none"), slog.New(slog.DiscardHandler), text); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// A caller that is held up by the file system holds nobody else up.
func TestNobodyWaitsForASlowFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, "old", time.Now())
	file, err := livefile.Open(path, slog.New(slog.DiscardHandler), text)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skipf("no named pipes here: %v", err)
	}
	slow := make(chan string)
	go func() { slow <- file.Get() }()
	var pipe *os.File
	for pipe == nil { // until the reader is in the middle of the file
		if pipe, err = os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0); err != nil {
			runtime.Gosched()
		}
	}
	if got := file.Get(); got != "old" {
		t.Errorf("%q while another looks", got)
	}
	if _, err := pipe.WriteString("new"); err != nil {
		t.Error(err)
	}
	pipe.Close()
	if got := <-slow; got != "new" {
		t.Errorf("the slow one got %q", got)
	}
}
