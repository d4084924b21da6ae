// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/bench/proxy"
)

func (c *cli) newBenchGatewayCommand() *cobra.Command {
	var o proxy.Options
	command := &cobra.Command{
		Use:   "gateway",
		Short: "Measure the gateway: reuse, added latency, processor time, and peers",
		Long: `Measures the gateway in front of simulated engines. G9 places generated
workloads and those of --trace in virtual time, beside an all-knowing router,
least load and round robin. The rest runs over loopback with engines, index and
gateways as processes of their own: what the gateway adds to a request (G10),
the processor time of requests and of idling (cost) and of the decision trace
(trace). --peers adds other routers that hack/bench-peers.sh installed: what they
add, and what they reuse of the same chats (peers).
Prints one JSON object a row; a row with a goal has a limit and says whether it
is kept. Times hold for an otherwise idle machine.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := knownGoals(o.Goals, proxy.Goals); err != nil {
				return err
			}
			if err := checkSizes(cmd.Flags(), "runs", "rate", "engines", "idle-replicas"); err != nil {
				return err
			}
			if o.Seeds < 0 {
				return usagef("--seeds %d: expected at least 0", o.Seeds)
			}
			if o.Seeds == 0 {
				o.Seeds = -1
			}
			if o.Short {
				shorten(cmd.Flags(), map[string]func(){
					"duration": func() { o.Duration = 0 },
					"runs":     func() { o.Runs = 0 },
					"seeds":    func() { o.Seeds = 0 },
				})
			}
			if o.Executable, err = os.Executable(); err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			return proxy.Run(cmd.Context(), c.stdout, o)
		},
	}
	addBenchGatewayFlags(command.Flags(), &o)
	return command
}

func addBenchGatewayFlags(flags *pflag.FlagSet, o *proxy.Options) {
	flags.StringArrayVar(&o.Traces, "trace", nil, "public request trace for G9; may be repeated")
	flags.BoolVar(&o.Short, "short", false, "one run of each row and shorter stretches, about a minute without --trace")
	flags.StringSliceVar(&o.Goals, "goals", nil, "what to measure, some of "+strings.Join(proxy.Goals, ",")+"; empty = all")
	flags.DurationVar(&o.Duration, "duration", 10*time.Second, "length of one stretch; 2s with --short")
	flags.IntVar(&o.Runs, "runs", 3, "how often each row is measured; 1 with --short")
	flags.IntVar(&o.Rate, "rate", 1_000, "requests a second of G10")
	flags.IntVar(&o.Seeds, "seeds", 5, "generated workloads of each kind for G9, 0 is none; 1 with --short")
	flags.IntVar(&o.Engines, "engines", 2, "simulated engines")
	flags.IntVar(&o.Idle, "idle-replicas", 100, "replicas of an idle gateway")
	flags.StringVar(&o.Peers, "peers", "", "measure other routers too, from this folder of hack/bench-peers.sh")
	flags.Lookup("peers").NoOptDefVal = defaultPeers()
}

// defaultPeers is where hack/bench-peers.sh installs.
func defaultPeers() string {
	cache, err := os.UserHomeDir()
	if err != nil {
		cache = "."
	}
	return filepath.Join(cache, ".cache", "inference-cache", "bench-peers")
}
