// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/configfile"
	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/gatewayfile"
)

// complete adds what the configuration file says to what the flags say.
func (o *gatewayOptions) complete(options gateway.Options, flags *pflag.FlagSet) (gateway.Options, error) {
	if o.file == "" {
		return options, nil
	}
	file, err := gatewayfile.Load(o.file)
	if err != nil {
		return options, err
	}
	file.Complete(&options, flags.Changed)
	return options, nil
}

// runReloading runs a gateway that follows its configuration file. flagged are
// its options without the file.
func (o *gatewayOptions) runReloading(ctx context.Context, g *gateway.Gateway, flagged gateway.Options, flags *pflag.FlagSet) error {
	watcher := configfile.Watcher{
		Path: o.file, Reloads: configfile.NewReloads(flagged.Registry), Logger: flagged.Logger,
		Apply: func() error {
			options, err := o.complete(flagged, flags)
			if err != nil {
				return err
			}
			return g.Apply(options)
		},
	}
	return watching(ctx, watcher, g.Run)
}

// watching runs something while its configuration file is followed, which
// SIGHUP has read at once.
func watching(ctx context.Context, watcher configfile.Watcher, run func(context.Context) error) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	watcher.Signals = hangups
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() { watcher.Run(ctx) })
	return run(ctx)
}
