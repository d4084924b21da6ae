// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// sharedMemory is where LMCache's server has the blocks.
const sharedMemory = "/dev/shm"

// standIn listens where LMCache's server would, after a file in shared memory
// has shown that it may write there.
func standIn(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("server", flag.ContinueOnError)
	host, port := flags.String("host", "", ""), flags.String("port", "", "")
	httpHost, httpPort := flags.String("http-host", "", ""), flags.String("http-port", "", "")
	for _, name := range []string{"chunk-size", "l1-size-gb", "eviction-policy", "max-workers", "l2-adapter"} {
		flags.String(name, "", "")
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *host == "" || *port == "" || *httpHost == "" || *httpPort == "" {
		return fmt.Errorf("expected hosts and ports, and no words but flags: %q", args)
	}
	blocks := filepath.Join(sharedMemory, "blocks")
	if err := os.WriteFile(blocks, nil, 0o600); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(*host, *port))
	if err != nil {
		return err
	}
	err = serve(ctx, net.JoinHostPort(*httpHost, *httpPort))
	return errors.Join(err, listener.Close(), os.Remove(blocks))
}
