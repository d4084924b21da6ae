// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/engine"
)

const (
	launchLimit = 15 * time.Second
	closeLimit  = 5 * time.Second
)

// Processes returns a Launch that runs `executable sim-engine`, which ends
// when its stdin closes and therefore with this process.
func Processes(executable string) Launch {
	return func(ctx context.Context, config engine.Config) (Engine, error) {
		return startProcess(ctx, exec.Command(executable, simEngineArguments(config)...))
	}
}

func simEngineArguments(config engine.Config) []string {
	arguments := []string{
		"sim-engine", "--listen", "127.0.0.1:0", "--events", "tcp://127.0.0.1:*", "--replay", "tcp://127.0.0.1:*",
		"--print-addresses", "--exit-with-stdin", "--log-level", "error", "--model", config.Model,
		"--answer-seed", strconv.FormatUint(config.AnswerSeed, 10),
	}
	number := func(flag string, value int) {
		if value > 0 {
			arguments = append(arguments, flag, strconv.Itoa(value))
		}
	}
	number("--block-size", config.Scheduler.BlockSize)
	number("--blocks", config.Scheduler.CapacityBlocks)
	number("--max-running", config.Scheduler.MaxRunning)
	number("--step-tokens", config.Scheduler.StepTokens)
	number("--max-model-len", config.Scheduler.MaxModelTokens)
	if rate := config.Timing.PrefillTokensPerSecond; rate > 0 {
		arguments = append(arguments, "--prefill-rate", strconv.FormatFloat(rate, 'f', -1, 64))
	}
	if step := config.Timing.DecodeStep; step > 0 {
		arguments = append(arguments, "--decode-step", step.String())
	}
	if speed := config.Timing.Speed; speed > 0 {
		arguments = append(arguments, "--speed", strconv.FormatFloat(speed, 'f', -1, 64))
	}
	return arguments
}

// process is one sim-engine of its own.
type process struct {
	command   *exec.Cmd
	stdin     io.WriteCloser
	addresses Addresses
	waited    chan error // receives the result of Wait once
}

func startProcess(ctx context.Context, command *exec.Cmd) (*process, error) {
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	p := &process{command: command, stdin: stdin, waited: make(chan error, 1)}
	type result struct {
		line []byte
		err  error
	}
	first := make(chan result, 1)
	go func() {
		reader := bufio.NewReader(stdout)
		line, err := reader.ReadBytes('\n')
		first <- result{line, err}
		_, _ = io.Copy(io.Discard, reader) // until the process ends
		p.waited <- command.Wait()
	}()
	ctx, cancel := context.WithTimeout(ctx, launchLimit)
	defer cancel()
	select {
	case got := <-first:
		if got.err == nil {
			got.err = json.Unmarshal(got.line, &p.addresses)
		}
		if got.err != nil {
			return nil, errors.Join(fmt.Errorf("read the addresses of sim-engine: %w", got.err), p.Close())
		}
		return p, nil
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("wait for sim-engine: %w", ctx.Err()), p.Close())
	}
}

// Addresses implements Engine.
func (p *process) Addresses() Addresses { return p.addresses }

// PID is the process of the engine.
func (p *process) PID() int { return p.command.Process.Pid }

// Close implements Engine: stdin first, a kill for a process that stays.
func (p *process) Close() error {
	_ = p.stdin.Close()
	timer := time.NewTimer(closeLimit)
	defer timer.Stop()
	select {
	case err := <-p.waited:
		if err != nil {
			return fmt.Errorf("sim-engine: %w", err)
		}
		return nil
	case <-timer.C:
		_ = p.command.Process.Kill()
		<-p.waited
		return fmt.Errorf("sim-engine did not end within %v", closeLimit)
	}
}
