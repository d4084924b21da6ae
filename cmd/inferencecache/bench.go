// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/bench"
)

func (c *cli) newBenchCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "bench",
		Short: "Measure index, service and gateway against their goals",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(c.newBenchCorpusCommand(), c.newBenchIndexCommand(), c.newBenchServeCommand(), c.newBenchGatewayCommand())
	return command
}

// corpusFlags say how a corpus is made.
type corpusFlags struct {
	trace           string
	stretch, copies int
	requests        int
	header          bench.Header
}

func (f *corpusFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.trace, "trace", "", "public request trace to run; empty = a generated one of the same shape")
	flags.IntVar(&f.requests, "requests", 12_000, "requests of a generated trace")
	flags.IntVar(&f.stretch, "stretch", 4, "blocks that each block of the trace becomes")
	flags.IntVar(&f.copies, "copies", 4, "interleaved copies of the trace")
	flags.Uint64Var(&f.header.Seed, "seed", 1, "seed of the placement and of a generated trace")
	flags.IntVar(&f.header.Replicas, "replicas", 64, "replicas")
	flags.IntVar(&f.header.PoolBlocks, "pool-blocks", 16_384, "blocks that each replica holds")
	flags.IntVar(&f.header.BlockSize, "block-size", 128, "tokens of a block")
}

// make runs the trace.
func (f *corpusFlags) make() (*bench.Corpus, error) {
	h := f.header
	if f.stretch < 1 || f.copies < 1 || f.requests < 1 || h.Replicas < 1 || h.Replicas > 1<<14 || h.PoolBlocks < 1 || h.BlockSize < 1 {
		return nil, usagef("--stretch, --copies, --requests, --replicas (up to 16384), --pool-blocks and --block-size must be positive")
	}
	h.Source = "generated"
	trace := []bench.Request(nil)
	if f.trace == "" {
		trace = bench.Generate(bench.Shape{Seed: h.Seed, Requests: f.requests})
	} else {
		file, err := os.Open(f.trace)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		if trace, err = bench.ReadTrace(file); err != nil {
			return nil, err
		}
		h.Source = "trace"
	}
	return bench.Make(bench.Repeat(bench.Stretch(trace, uint32(f.stretch)), f.copies), h), nil
}

func (c *cli) newBenchCorpusCommand() *cobra.Command {
	var f corpusFlags
	var out string
	command := &cobra.Command{
		Use:   "corpus",
		Short: "Turn a request trace into a file of index operations",
		Long: `Runs a trace on replicas with block pools of their own and writes what an
index would see: lookups, stores and removals. All measurements replay such a
file.`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			corpus, err := f.make()
			if err != nil {
				return err
			}
			return writeTo(out, c.stdout, corpus)
		},
	}
	f.add(command)
	command.Flags().StringVar(&out, "out", "", "file to write; empty = stdout")
	return command
}

// writeTo writes a corpus to a file or to standard output.
func writeTo(path string, stdout io.Writer, corpus *bench.Corpus) (err error) {
	if path == "" {
		_, err = corpus.WriteTo(stdout)
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err = corpus.WriteTo(file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

func (c *cli) newBenchIndexCommand() *cobra.Command {
	var f corpusFlags
	var o bench.IndexOptions
	var path string
	command := &cobra.Command{
		Use:   "index",
		Short: "Measure ingest, eviction, lookup, memory and mixed load",
		Long: `Prints one JSON object a row. A row with a goal has a limit and says whether
it is kept. Without --corpus one is made as by 'bench corpus'.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := knownGoals(o.Goals, bench.IndexGoals); err != nil {
				return err
			}
			if err := checkSizes(cmd.Flags(), "memberships", "runs"); err != nil {
				return err
			}
			if o.Short {
				shorten(cmd.Flags(), map[string]func(){
					"memberships": func() { o.Memberships = 0 },
					"duration":    func() { o.Duration = 0 },
					"runs":        func() { o.Runs = 0 },
				})
			}
			if o.Corpus, err = f.read(path); err != nil {
				return err
			}
			return bench.Index(cmd.Context(), c.stdout, o)
		},
	}
	f.add(command)
	addCorpusFile(command, &path)
	flags := command.Flags()
	flags.BoolVar(&o.Short, "short", false, "fewer and smaller runs, under three minutes")
	flags.StringSliceVar(&o.Goals, "goals", nil, "goals to measure, such as G1,G3; empty = all")
	flags.IntVar(&o.Memberships, "memberships", 10_000_000, "memberships of the large tables; 4000000 with --short")
	flags.DurationVar(&o.Duration, "duration", 10*time.Second, "length of one stretch of mixed load; 3s with --short")
	flags.IntVar(&o.Runs, "runs", 5, "how often most rows are measured; 3 with --short")
	return command
}

// addCorpusFile adds the flag that replaces a trace by a finished corpus.
func addCorpusFile(command *cobra.Command, path *string) {
	command.Flags().StringVar(path, "corpus", "", "file of 'bench corpus' to replay")
}

// knownGoals refuses names that are none of a command's goals.
func knownGoals(names, known []string) error {
	for _, name := range names {
		if !slices.Contains(known, name) {
			return usagef("--goals %q: expected some of %s", name, strings.Join(known, ","))
		}
	}
	return nil
}

// checkSizes refuses a duration and counts that measure nothing.
func checkSizes(flags *pflag.FlagSet, counts ...string) error {
	for _, name := range counts {
		if n, err := flags.GetInt(name); err != nil || n < 1 {
			return usagef("--%s %d: expected at least 1", name, n)
		}
	}
	if d, err := flags.GetDuration("duration"); err != nil || d <= 0 {
		return usagef("--duration %v: expected more than 0", d)
	}
	return nil
}

// shorten leaves to --short what flags did not set.
func shorten(flags *pflag.FlagSet, reset map[string]func()) {
	for name, f := range reset {
		if !flags.Changed(name) {
			f()
		}
	}
}

// read returns the corpus of a file, or makes one where none is named.
func (f *corpusFlags) read(path string) (*bench.Corpus, error) {
	if path == "" {
		return f.make()
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	corpus, err := bench.Read(file)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return corpus, nil
}
