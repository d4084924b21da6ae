// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Limits of a child process.
const (
	launchLimit = 30 * time.Second
	stopLimit   = 15 * time.Second
	askEvery    = 20 * time.Millisecond
)

// child is a running program.
type child struct {
	command *exec.Cmd
	stdin   io.Closer // children of this program end with it
	said    *tail
	ended   chan struct{} // closed when the process is gone
}

// startChild starts a program and waits until a URL of it answers 200.
func startChild(ctx context.Context, ready, executable string, arguments ...string) (*child, error) {
	c := &child{command: exec.Command(executable, arguments...), said: &tail{}, ended: make(chan struct{})}
	stdin, err := c.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	c.stdin, c.command.Stdout, c.command.Stderr = stdin, c.said, c.said
	if err := c.command.Start(); err != nil {
		return nil, fmt.Errorf("start a router: %w", err)
	}
	go func() {
		_ = c.command.Wait() // what it said is told where it matters
		close(c.ended)
	}()
	if err := c.awaitOK(ctx, ready); err != nil {
		c.stop()
		return nil, fmt.Errorf("wait for %s: %w, the last it said: %q", ready, err, c.said)
	}
	return c, nil
}

func (c *child) awaitOK(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, launchLimit)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	for !answersOK(ctx, client, url) {
		select {
		case <-c.ended:
			return errors.New("it ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(askEvery):
		}
	}
	return nil
}

func answersOK(ctx context.Context, client *http.Client, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

func (c *child) pid() int { return c.command.Process.Pid }

// stop asks the program to end, and kills it when it does not.
func (c *child) stop() {
	_ = c.stdin.Close()
	_ = c.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(stopLimit):
		_ = c.command.Process.Kill()
		<-c.ended
	}
}

// tail keeps the end of what a program says.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// tailBytes is how much a tail keeps.
const tailBytes = 400

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(len(t.text)-tailBytes, 0):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// freeAddress returns an address of the loopback interface that nobody listens
// on, for programs that cannot tell which they chose.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// freeAddresses returns several.
func freeAddresses(n int) ([]string, error) {
	out := make([]string, n)
	for i := range out {
		var err error
		if out[i], err = freeAddress(); err != nil {
			return nil, err
		}
	}
	return out, nil
}
