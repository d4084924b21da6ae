// SPDX-License-Identifier: Apache-2.0

// Command clusterctl builds, starts and stops the cluster of this machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/inferencecache/inference-cache/internal/testcluster"
	"github.com/inferencecache/inference-cache/internal/testcluster/node"
)

const usage = `clusterctl runs a Kubernetes cluster of one node on this machine, as root.

  clusterctl build            install and build what it is made of
  clusterctl up               start it; it runs until down
  clusterctl import FILE...   bring images to it
  clusterctl env              print what a shell needs to use it
  clusterctl down             stop it, and remove what a killed one left

Its state is in $IC_CLUSTER_DIR (default /var/lib/inference-cache-cluster), its
programs are in $IC_CLUSTER_BIN (default ~/.cache/inference-cache/cluster).
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "clusterctl:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	options := node.Options{Output: os.Stderr}
	switch {
	case len(args) == 1 && args[0] == "build":
		return build(ctx)
	case len(args) == 1 && args[0] == "up":
		return up(ctx, options)
	case len(args) == 1 && args[0] == "env":
		return env(options)
	case len(args) == 1 && args[0] == "down":
		return node.Stop(ctx, options)
	case len(args) > 1 && args[0] == "import":
		return load(ctx, options, args[1:])
	case len(args) == 1 && (args[0] == "help" || args[0] == "--help" || args[0] == "-h"):
		fmt.Print(usage)
		return nil
	}
	return errors.New("expected one of build, up, import FILE..., env, down; see --help")
}

// build builds the programs also where packages of the machine are missing,
// and reports both.
func build(ctx context.Context) error {
	cache, err := testcluster.CacheDir()
	if err != nil {
		return err
	}
	return errors.Join(node.InstallHost(ctx, os.Stderr), testcluster.BuildNode(ctx, cache, os.Stderr))
}

func up(ctx context.Context, options node.Options) error {
	options.Keep = true
	started, err := node.Start(ctx, options)
	if err != nil {
		return err
	}
	printEnv(started)
	return nil
}

func env(options node.Options) error {
	running, err := node.Open(options)
	if err != nil {
		return err
	}
	printEnv(running)
	return nil
}

func printEnv(n *node.Node) {
	fmt.Printf("export KUBECONFIG=%s\nalias kubectl=%s\nalias helm=%s\n", n.Kubeconfig, n.Programs.Kubectl, n.Programs.Helm)
}

func load(ctx context.Context, options node.Options, archives []string) error {
	running, err := node.Open(options)
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if err := running.Import(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}
