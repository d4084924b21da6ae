// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	stopTimeout = 15 * time.Second
	killTimeout = 5 * time.Second
	pollEvery   = 100 * time.Millisecond
)

// daemons in the order they start. etcd is stopped last: an API server without
// its etcd does not end when asked to.
var daemons = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "containerd", "kubelet", "kube-proxy"}

// process is one that was started, told from a later one of the same id by the
// time of its start.
type process struct {
	pid     int
	started string // in ticks since the machine's start
}

func (d folder) pidFile(name string) string { return d.path("run", name+".pid") }

func (d folder) logFile(name string) string { return d.path("log", name+".log") }

// run starts a detached process and records it.
func (d folder) run(name, program string, args ...string) error {
	log, err := os.Create(d.logFile(name))
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	command := exec.Command(program, args...)
	command.Stdout, command.Stderr, command.Dir = log, log, string(d)
	command.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":"+systemPath)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	pid := command.Process.Pid
	_, started, err := processStatus(pid)
	if err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", name, err), command.Process.Kill(), command.Wait())
	}
	go func() { _ = command.Wait() }() // so that it leaves no zombie; how it ended is in its log
	return os.WriteFile(d.pidFile(name), fmt.Appendf(nil, "%d %s\n", pid, started), 0o644)
}

// recorded returns the process of a name, if one was started.
func (d folder) recorded(name string) (process, bool) {
	text, err := os.ReadFile(d.pidFile(name))
	if err != nil {
		return process{}, false
	}
	fields := strings.Fields(string(text))
	if len(fields) != 2 {
		return process{}, false
	}
	pid, err := strconv.Atoi(fields[0])
	return process{pid: pid, started: fields[1]}, err == nil && pid > 1
}

func (d folder) alive(name string) bool {
	p, ok := d.recorded(name)
	return ok && p.alive()
}

// halt ends the process of a name: asks, then kills.
func (d folder) halt(ctx context.Context, name string) error {
	p, ok := d.recorded(name)
	if ok {
		if err := p.halt(ctx); err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
	}
	if err := os.Remove(d.pidFile(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (p process) alive() bool {
	state, started, err := processStatus(p.pid)
	return err == nil && started == p.started && state != "Z" && state != "X"
}

func (p process) halt(ctx context.Context) error {
	if p.ends(ctx, syscall.SIGTERM, stopTimeout) || p.ends(ctx, syscall.SIGKILL, killTimeout) {
		return nil
	}
	return fmt.Errorf("process %d does not end", p.pid)
}

// ends sends a signal and says whether the process ended in time.
func (p process) ends(ctx context.Context, signal syscall.Signal, patience time.Duration) bool {
	if !p.alive() {
		return true
	}
	_ = syscall.Kill(p.pid, signal) // fails only when it has just ended
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return poll(ctx, func() bool { return !p.alive() })
}

// poll repeats a check until it passes or ctx ends.
func poll(ctx context.Context, check func() bool) bool {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for !check() {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	return true
}

// processStatus reads what /proc says of a process.
func processStatus(pid int) (state, started string, err error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", "", err
	}
	// The name, in parentheses, may hold anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const startTime = 19 // after the name
	if len(fields) <= startTime {
		return "", "", fmt.Errorf("process %d: status of %d fields", pid, len(fields))
	}
	return fields[0], fields[startTime], nil
}

// lastLines are the end of a daemon's log.
func (d folder) lastLines(name string) string {
	text, err := os.ReadFile(d.logFile(name))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(len(lines)-10, 0):], "\n")
}
