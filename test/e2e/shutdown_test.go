// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is one role as a user starts it.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *bufio.Reader
	logs   *lockedBuffer
	exited chan struct{}
}

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func start(t *testing.T, binary string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(binary, args...), logs: &lockedBuffer{}, exited: make(chan struct{})}
	p.cmd.Stderr = p.logs
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdout = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-p.exited:
		default:
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("%s:\n%s", args[0], p.logs)
		}
	})
	return p
}

// addresses reads the line that --print-addresses prints.
func (p *process) addresses() map[string]string {
	p.t.Helper()
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		p.t.Fatalf("reading addresses: %v\n%s", err, p.logs)
	}
	addresses := map[string]string{}
	if err := json.Unmarshal([]byte(line), &addresses); err != nil {
		p.t.Fatalf("%q: %v", line, err)
	}
	return addresses
}

// logged waits for a JSON log line with the message and returns its fields.
func (p *process) logged(message string) map[string]any {
	p.t.Helper()
	var found map[string]any
	await(p.t, 20*time.Second, "log line "+message, func() bool {
		for line := range strings.Lines(p.logs.String()) {
			fields := map[string]any{}
			if json.Unmarshal([]byte(line), &fields) == nil && fields["msg"] == message {
				found = fields
				return true
			}
		}
		return false
	})
	return found
}

// terminate sends SIGTERM and checks that the process ends well and in time.
func (p *process) terminate(bound time.Duration) {
	p.t.Helper()
	if err := p.terminateWith(bound); err != nil {
		p.t.Errorf("%s: %v", p.cmd.Args[1], err)
	}
}

// terminateWith sends SIGTERM, checks how long the end took, and returns how
// the process ended.
func (p *process) terminateWith(bound time.Duration) error {
	p.t.Helper()
	started := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait(); close(p.exited) }()
	select {
	case err := <-done:
		p.t.Logf("%s ended %s after SIGTERM", p.cmd.Args[1], time.Since(started).Round(time.Millisecond))
		return err
	case <-time.After(bound):
		p.t.Errorf("%s still runs %s after SIGTERM", p.cmd.Args[1], bound)
		return nil
	}
}

// openStream begins a long answer and leaves it open.
func openStream(t *testing.T, url string) {
	t.Helper()
	body := `{"model":"sim","prompt":"a long story","max_tokens":4000,"stream":true}`
	response, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = response.Body.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		t.Fatalf("status %d: %s", response.StatusCode, text)
	}
	if _, err := response.Body.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the stream did not begin: %v", err)
	}
}

// Each role is gone within its bound of SIGTERM although streams are open.
func TestEveryRoleEndsOnSIGTERMWithStreamsOpen(t *testing.T) {
	binary := buildBinary(t)
	newEngine := func() (*process, map[string]string) {
		p := start(t, binary, "sim-engine", "--listen=127.0.0.1:0", "--events=tcp://127.0.0.1:*", "--replay=tcp://127.0.0.1:*",
			"--decode-step=50ms", "--print-addresses")
		return p, p.addresses()
	}
	engineA, addressA := newEngine()
	engineB, addressB := newEngine()

	server := start(t, binary, "server", "--grpc-bind-address=127.0.0.1:0", "--http-bind-address=127.0.0.1:0",
		"--snapshot-bind-address=127.0.0.1:0", "--insecure-disable-auth")
	grpcAddress, _ := server.logged("serving")["grpc"].(string)
	publisher := start(t, binary, "publisher", "--engine-url="+addressA["http"], "--engine-endpoint="+addressA["events"],
		"--replay-endpoint="+addressA["replay"], "--replica-id=a", "--server="+grpcAddress, "--metrics-bind-address=127.0.0.1:0")
	await(t, 20*time.Second, "the publisher's session", func() bool {
		return strings.Contains(server.logs.String(), "snapshot applied")
	})

	gateway := start(t, binary, "gateway", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--index="+grpcAddress,
		"--replica=a="+addressA["http"])
	gatewayAddress, _ := gateway.logged("gateway is serving")["address"].(string)
	gateway.logged("replica is ready")
	openStream(t, "http://"+gatewayAddress)

	up := start(t, binary, "up", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--grpc=127.0.0.1:0", "--print-addresses",
		"--engine="+addressB["http"]+",events="+addressB["events"]+",replay="+addressB["replay"])
	upAddresses := up.addresses()
	up.logged("replica is ready")
	openStream(t, "http://"+upAddresses["gateway"])
	openStream(t, addressB["http"])

	gateway.terminate(5 * time.Second)
	up.terminate(5 * time.Second)
	engineB.terminate(5 * time.Second)
	publisher.terminate(5 * time.Second)
	server.terminate(10 * time.Second)
	engineA.terminate(5 * time.Second)
}

// An interrupted demo says so, and exits with 1.
func TestDemoEndsOnSIGTERM(t *testing.T) {
	demo := start(t, buildBinary(t), "demo", "--engines=2")
	await(t, 30*time.Second, "the first requests", func() bool { return strings.Contains(demo.logs.String(), "round robin") })
	err := demo.terminateWith(5 * time.Second)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want exit code 1", err)
	}
	if logs := demo.logs.String(); !strings.Contains(logs, "interrupted") {
		t.Errorf("output %q does not say that it was interrupted", logs)
	}
}
