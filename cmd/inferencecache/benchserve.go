// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/bench"
	"github.com/inferencecache/inference-cache/internal/bench/serve"
)

func (c *cli) newBenchServeCommand() *cobra.Command {
	var f corpusFlags
	var o serve.Options
	var path string
	command := &cobra.Command{
		Use:   "serve",
		Short: "Measure lookups over gRPC, freshness, recovery and idling",
		Long: `Starts this program's server as a process of its own and measures it over
loopback: lookups beside arriving events (G6), the time from an engine's event
to a lookup that sees it (G7), recovery after a restart (G8), and a server with
idle publishers (G11). Prints one JSON object a row; a row with a goal has a
limit and says whether it is kept. The numbers hold for an otherwise idle
machine.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := knownGoals(o.Goals, serve.Goals); err != nil {
				return err
			}
			if err := checkSizes(cmd.Flags(), "runs", "rate", "events", "blocks", "publishers", "idle-publishers"); err != nil {
				return err
			}
			if o.Short {
				shorten(cmd.Flags(), map[string]func(){
					"duration": func() { o.Duration = 0 },
					"runs":     func() { o.Runs = 0 },
				})
			}
			executable, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			o.Launch = serve.Process(executable)
			o.Corpus = func() (*bench.Corpus, error) { return f.read(path) }
			return serve.Run(cmd.Context(), c.stdout, o)
		},
	}
	f.add(command)
	addCorpusFile(command, &path)
	addServeFlags(command.Flags(), &o)
	return command
}

func addServeFlags(flags *pflag.FlagSet, o *serve.Options) {
	flags.BoolVar(&o.Short, "short", false, "one run of each row and shorter stretches, under two minutes")
	flags.StringSliceVar(&o.Goals, "goals", nil, "goals to measure, such as G6,G8; empty = all")
	flags.DurationVar(&o.Duration, "duration", 10*time.Second, "length of one stretch; 5s with --short")
	flags.IntVar(&o.Runs, "runs", 3, "how often each row is measured; 1 with --short")
	flags.IntVar(&o.Rate, "rate", 5_000, "lookups a second of G6")
	flags.IntVar(&o.Events, "events", 200_000, "block events a second of G6")
	flags.IntVar(&o.Blocks, "blocks", 2_300_000, "blocks that all replicas of G8 hold")
	flags.IntVar(&o.Publishers, "publishers", 64, "publishers of G8")
	flags.IntVar(&o.Idle, "idle-publishers", 100, "publishers of G11")
}
