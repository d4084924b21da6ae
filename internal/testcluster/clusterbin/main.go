// SPDX-License-Identifier: Apache-2.0

// Command clusterbin builds the programs of test clusters that the cache
// lacks.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/inferencecache/inference-cache/internal/testcluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	cache, err := testcluster.CacheDir()
	if err != nil {
		return err
	}
	return testcluster.Build(ctx, cache, os.Stderr)
}
