// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferencecache/inference-cache/internal/sim/demo"
)

// errDemoInterrupted ends a demo that was not let finish.
var errDemoInterrupted = errors.New("interrupted; the engines are stopped")

// errDemoNotGood ends a demo whose result is below its limit.
var errDemoNotGood = errors.New("cache-aware routing did not reuse enough")

type demoOptions struct {
	run    demo.Options
	asJSON bool
}

func (c *cli) newDemoCommand() *cobra.Command {
	options := &demoOptions{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Compare round robin with cache-aware routing on simulated engines",
		Long: `demo starts simulated engines as processes of their own and 'up' in front of
them, and sends the same chats twice: first by round robin, then cache-aware,
each time to fresh engines. It takes about 70 seconds, listens on loopback
only, and leaves nothing behind. So that a busy machine, which also runs the
engines, does not decide the comparison, 'up' gets longer timeouts than its
defaults: 100 ms for the index and 1 s for the tokenizer.

The exit code is 1 if cache-aware routing reuses less than 90 % of what an
all-knowing router would reuse, or if a request fails.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var logger *slog.Logger // silent, so that only progress shows
			if cmd.Flags().Changed("log-level") {
				var err error
				if logger, err = c.logger(); err != nil {
					return err
				}
			}
			return c.runDemo(cmd.Context(), options, logger)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&options.run.Engines, "engines", 4, "number of simulated engines")
	flags.IntVar(&options.run.Engine.Scheduler.CapacityBlocks, "blocks", 1536, "blocks of 16 tokens in each engine")
	flags.DurationVar(&options.run.Workload.Duration, "duration", 30*time.Second, "time in which the requests of one run arrive")
	flags.IntVar(&options.run.Workload.Conversations, "chats", 90, "number of chats")
	flags.Uint64Var(&options.run.Workload.Seed, "seed", 1, "chooses the chats")
	flags.BoolVar(&options.run.Workload.Unique, "unique", false, "send prompts that share nothing")
	flags.BoolVar(&options.asJSON, "json", false, "print the result as JSON")
	return cmd
}

func (c *cli) runDemo(ctx context.Context, options *demoOptions, logger *slog.Logger) error {
	if options.run.Engines < 1 || options.run.Workload.Conversations < 1 || options.run.Workload.Duration <= 0 {
		return usagef("--engines, --chats and --duration must be positive")
	}
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	progress := &demoProgress{out: c.stderr, terminal: isTerminal(c.stderr)}
	options.run.Launch = demo.Processes(executable)
	options.run.Front = demo.Up(logger)
	options.run.Progress = progress.show
	report, err := demo.Run(ctx, options.run)
	progress.end()
	switch {
	case ctx.Err() != nil:
		return errDemoInterrupted
	case err != nil:
		return err
	}
	if options.asJSON {
		encoder := json.NewEncoder(c.stdout)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(report)
	} else {
		err = report.WriteText(c.stdout)
	}
	if err != nil {
		return err
	}
	if !report.Good {
		return errDemoNotGood
	}
	return nil
}

// demoProgress draws one line a policy on a terminal, and elsewhere says only
// when a policy starts.
type demoProgress struct {
	out      io.Writer
	terminal bool

	mu     sync.Mutex
	policy string
}

func (p *demoProgress) show(state demo.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if state.Policy != p.policy {
		if p.policy != "" && p.terminal {
			fmt.Fprintln(p.out)
		}
		p.policy = state.Policy
		if !p.terminal {
			fmt.Fprintf(p.out, "%s: %d requests\n", demo.Title(state.Policy), state.Total)
		}
	}
	if !p.terminal {
		return
	}
	share := 0.0
	if state.PromptTokens > 0 {
		share = 100 * float64(state.ReusedTokens) / float64(state.PromptTokens)
	}
	fmt.Fprintf(p.out, "\r%-12s %4d of %d requests, %4.1f %% of the prompt tokens reused ",
		demo.Title(state.Policy), state.Done, state.Total, share)
}

func (p *demoProgress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.policy != "" && p.terminal {
		fmt.Fprint(p.out, "\n\n")
	}
}

// isTerminal tells whether w is a character device.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
