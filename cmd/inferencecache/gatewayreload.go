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
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	watcher := configfile.Watcher{
		Path: o.file, Signals: hangups, Registerer: flagged.Registry, Logger: flagged.Logger,
		Apply: func() error {
			options, err := o.complete(flagged, flags)
			if err != nil {
				return err
			}
			return g.Apply(options)
		},
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { watcher.Run(ctx) })
	return g.Run(ctx)
}
