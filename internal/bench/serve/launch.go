// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// Instance is a running server.
type Instance interface {
	// GRPC and HTTP are host:port.
	GRPC() string
	HTTP() string
	// PID is the process that the server runs in.
	PID() int
	// Stop ends it and waits.
	Stop() error
}

// Launch starts a server that serves gRPC on an address of the loopback
// interface and waits until it listens.
type Launch func(ctx context.Context, grpcAddress string) (Instance, error)

// Limits of a server process.
const (
	launchLimit = 15 * time.Second
	stopLimit   = 15 * time.Second
)

// Process returns a Launch that runs `executable server`.
func Process(executable string) Launch {
	return func(ctx context.Context, grpcAddress string) (Instance, error) {
		return startProcess(ctx, exec.Command(executable, "server",
			"--grpc-bind-address", grpcAddress, "--http-bind-address", "127.0.0.1:0",
			"--snapshot-bind-address", "127.0.0.1:0", "--insecure-disable-auth"))
	}
}

// process is a server of its own.
type process struct {
	command   *exec.Cmd
	addresses struct{ Msg, GRPC, HTTP string }
	waited    chan error // receives the result of Wait once
}

func startProcess(ctx context.Context, command *exec.Cmd) (Instance, error) {
	stderr, err := command.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start a server: %w", err)
	}
	p := &process{command: command, waited: make(chan error, 1)}
	serving := make(chan error, 1)
	go func() {
		lines := bufio.NewReader(stderr)
		serving <- p.readAddresses(lines)
		_, _ = io.Copy(io.Discard, lines) // until the process ends
		p.waited <- command.Wait()
	}()
	timer := time.NewTimer(launchLimit)
	defer timer.Stop()
	select {
	case err = <-serving:
	case <-timer.C:
		err = errors.New("nothing said in time")
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("wait for a server: %w", err), p.Stop())
	}
	return p, nil
}

// readAddresses reads log lines up to the one that names the addresses.
func (p *process) readAddresses(lines *bufio.Reader) error {
	for said := ""; ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return fmt.Errorf("it ended, the last it said: %.300q", said)
		}
		said = line
		if json.Unmarshal([]byte(line), &p.addresses) == nil && p.addresses.Msg == "serving" {
			return nil
		}
	}
}

func (p *process) GRPC() string { return p.addresses.GRPC }
func (p *process) HTTP() string { return p.addresses.HTTP }
func (p *process) PID() int     { return p.command.Process.Pid }

// Stop asks the server to end, and kills it when it does not.
func (p *process) Stop() error {
	_ = p.command.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(stopLimit)
	defer timer.Stop()
	select {
	case err := <-p.waited:
		if err != nil {
			return fmt.Errorf("server: %w", err)
		}
		return nil
	case <-timer.C:
		_ = p.command.Process.Kill()
		<-p.waited
		return fmt.Errorf("server did not end within %v", stopLimit)
	}
}
