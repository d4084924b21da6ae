// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stopGrace is how long a process may take to end after a signal.
const stopGrace = 30 * time.Second

// process is a program this test started, with all its children in one
// process group.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it ended

	logMu sync.Mutex
	log   bytes.Buffer
}

// Write keeps what the program prints, for a failure's report.
func (p *process) Write(b []byte) (int, error) {
	p.logMu.Lock()
	defer p.logMu.Unlock()
	return p.log.Write(b)
}

func (p *process) logTail(maxBytes int) []byte {
	p.logMu.Lock()
	defer p.logMu.Unlock()
	log := p.log.Bytes()
	return bytes.Clone(log[max(0, len(log)-maxBytes):])
}

// startProcess runs a program until the test ends. When firstLine is not nil, it
// receives the program's first line on standard output, read as JSON.
func startProcess(t *testing.T, name string, cmd *exec.Cmd, firstLine any) *process {
	t.Helper()
	p := &process{name: name, cmd: cmd, done: make(chan struct{})}
	cmd.Stderr = p
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stdout io.ReadCloser
	if firstLine == nil {
		cmd.Stdout = p
	} else {
		var err error
		if stdout, err = cmd.StdoutPipe(); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	t.Cleanup(func() { p.stop(t) })
	var firstErr error
	if firstLine != nil {
		lines := bufio.NewReader(stdout)
		var line []byte
		if line, firstErr = lines.ReadBytes('\n'); firstErr == nil {
			firstErr = json.Unmarshal(line, firstLine)
		}
		go p.wait(func() { _, _ = io.Copy(p, lines) })
	} else {
		go p.wait(func() {})
	}
	if firstErr != nil {
		t.Fatalf("reading the addresses of %s: %v", name, firstErr)
	}
	return p
}

func (p *process) wait(drain func()) {
	drain()
	_ = p.cmd.Wait()
	close(p.done)
}

// stop ends the program and its group, and shows its log if the test failed.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopGrace):
		t.Errorf("%s did not end within %s of SIGTERM", p.name, stopGrace)
	}
	p.signalGroup(syscall.SIGKILL)
	<-p.done
	if t.Failed() {
		t.Logf("end of the log of %s:\n%s", p.name, p.logTail(4000))
	}
}

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// signalGroup also reaches children that outlive the program.
func (p *process) signalGroup(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// ended reports whether the program is gone.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// runProgram executes a program to its end and returns what it printed. A failure
// to start it, or a run beyond the deadline, fails the test.
func runProgram(t *testing.T, within time.Duration, cmd *exec.Cmd) (output []byte, exitCode int) {
	t.Helper()
	var buffer bytes.Buffer
	cmd.Stdout, cmd.Stderr = &buffer, &buffer
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", filepath.Base(cmd.Path), err)
	}
	overdue := time.AfterFunc(within, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err := cmd.Wait()
	if !overdue.Stop() {
		t.Fatalf("%s ran for more than %s:\n%s", filepath.Base(cmd.Path), within, buffer.Bytes())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("running %s: %v", filepath.Base(cmd.Path), err)
	}
	return buffer.Bytes(), cmd.ProcessState.ExitCode()
}

// eventually polls until ok returns true.
func eventually(t *testing.T, within time.Duration, what string, ok func(ctx context.Context) bool) {
	t.Helper()
	deadline := time.After(within)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for !ok(t.Context()) {
		select {
		case <-deadline:
			t.Fatalf("not within %s: %s", within, what)
		case <-ticker.C:
		}
	}
}
