// SPDX-License-Identifier: Apache-2.0

// Command inferencecache is a KV-cache-aware routing plane for fleets of LLM
// engines. Each role is a subcommand.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/inferencecache/inference-cache/internal/memlimit"
)

// Exit codes of every command.
const (
	exitOK      = 0
	exitRuntime = 1
	exitUsage   = 2
)

func main() {
	memlimit.Apply()
	ctx, stop := signalContext()
	defer stop()
	c := &cli{name: invokedAs(os.Args[0]), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	os.Exit(c.run(ctx, os.Args[1:]))
}

// run executes one command line and returns its exit code.
func (c *cli) run(ctx context.Context, args []string) int {
	c.args = args
	root := c.newRootCommand()
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(c.stderr, "%s: %v\nRun '%s --help' for usage.\n", c.called(), err, command.CommandPath())
		return exitUsage
	default:
		fmt.Fprintf(c.stderr, "%s: %v\n", c.called(), err)
		return exitRuntime
	}
}

// signalContext ends its context at the first SIGINT or SIGTERM. The second
// one ends the process at once.
func signalContext() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals
		os.Exit(exitRuntime)
	}()
	return ctx, cancel
}
