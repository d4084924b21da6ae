// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
)

// cli is what all commands share.
type cli struct {
	// name is how the program is called; default inferencecache.
	name           string
	stdin          io.Reader
	stdout, stderr io.Writer
	// args are the words of the command line, without the program.
	args []string

	logFormat, logLevel string
}

// usageError marks a wrong command line; it ends the process with exitUsage.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usagef makes a usageError.
func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

func (c *cli) newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   programName,
		Short: "KV-cache-aware routing for fleets of LLM engines",
		Long: `inferencecache watches the KV events of LLM engines, keeps an exact index of
which replica holds which prompt prefix, and routes each request to where its
prefix already is. Every answer carries the reason for it.

Start with 'inferencecache demo'. Put it in front of your engines with
'inferencecache up --engine http://127.0.0.1:8000,events=tcp://127.0.0.1:5557'.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArguments,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(c.stdin)
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.PersistentFlags().StringVar(&c.logFormat, "log-format", "json", "log format on stderr: json or text")
	root.PersistentFlags().StringVar(&c.logLevel, "log-level", "info", "lowest level logged: debug, info, warn or error")
	root.AddCommand(
		c.newUpCommand(),
		c.newDemoCommand(),
		c.newVersionCommand(),
		c.newGatewayCommand(),
		c.newExplainCommand(),
		c.newServerCommand(),
		c.newPublisherCommand(),
		c.newControllerCommand(),
		c.newSimEngineCommand(),
		c.newBenchCommand(),
	)
	rename(root, c.called())
	return root
}

// called is the name of the program in what the user reads.
func (c *cli) called() string { return cmp.Or(c.name, programName) }

// logger builds the logger the log flags ask for.
func (c *cli) logger() (*slog.Logger, error) {
	var level slog.Level
	switch c.logLevel {
	case "debug", "info", "warn", "error":
		if err := level.UnmarshalText([]byte(c.logLevel)); err != nil {
			return nil, &usageError{err}
		}
	default:
		return nil, usagef("--log-level %q: expected debug, info, warn or error", c.logLevel)
	}
	options := &slog.HandlerOptions{Level: level}
	switch c.logFormat {
	case "json":
		return slog.New(slog.NewJSONHandler(c.stderr, options)), nil
	case "text":
		return slog.New(slog.NewTextHandler(c.stderr, options)), nil
	default:
		return nil, usagef("--log-format %q: expected json or text", c.logFormat)
	}
}

// noArguments refuses positional arguments as a usage error.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		return usagef("unknown command %q for %q", args[0], cmd.CommandPath())
	}
	return usagef("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
}

// untilStdinCloses returns a context that also ends when standard input does,
// so that a child process never outlives its parent.
func (c *cli) untilStdinCloses(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, c.stdin)
		cancel()
	}()
	return ctx
}
