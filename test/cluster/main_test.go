// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/inferencecache/inference-cache/internal/testcluster"
	"github.com/inferencecache/inference-cache/internal/testcluster/node"
)

const (
	// useTimeout is how long another run may keep the machine's cluster.
	useTimeout  = 45 * time.Minute
	stopTimeout = 5 * time.Minute
	root        = "../.."
)

// shared is the cluster of all tests, or why there is none.
var shared struct {
	node *node.Node
	err  error
	// released says that there is the release of env.shareRelease.
	released bool
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	log.SetLogger(logr.Discard()) // of the typed client
	ctx := context.Background()
	release, err := take(ctx)
	if err == nil {
		defer release()
		shared.node, err = start(ctx)
	}
	shared.err = err
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return m.Run() // each test says why it did not run
	}
	code := m.Run()
	if problems, err := auditProblems(shared.node.AuditLog()); err != nil || len(problems) > 0 {
		fmt.Fprintln(os.Stderr, "rights of the accounts:", err, strings.Join(problems, "\n"))
		code = max(code, 1)
	}
	if shared.node.Kept {
		if shared.released {
			fmt.Fprintln(os.Stderr, "the release of the tests is left in the cluster; make cluster-down removes it")
		}
		return code
	}
	stopping, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := shared.node.Stop(stopping); err != nil {
		fmt.Fprintln(os.Stderr, "stop the cluster:", err)
		return 1
	}
	return code
}

// take waits for its turn to use the machine's cluster.
func take(ctx context.Context) (release func(), err error) {
	if err := node.Check(node.Options{}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, useTimeout, errors.New("another run of cluster tests took too long"))
	defer cancel()
	return node.Use(ctx, "", os.Stderr)
}

// start uses a cluster that was started to be kept, else starts one. The images
// of this tree are imported to it.
func start(ctx context.Context) (*node.Node, error) {
	options := node.Options{Output: os.Stderr}
	image := exec.CommandContext(ctx, "make", "-C", root, "image")
	if output, err := image.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make image: %w: %s", err, output)
	}
	running, err := node.Open(options)
	if err != nil || !running.Kept {
		// One that a killed run left is of unknown state.
		if err := node.Stop(ctx, options); err != nil {
			return nil, err
		}
		if running, err = node.Start(ctx, options); err != nil {
			return nil, err
		}
	}
	archives, err := filepath.Glob(filepath.Join(root, "bin", "images", "*.tar"))
	if err != nil || len(archives) == 0 {
		return nil, errors.Join(fmt.Errorf("make image left no archives in bin/images"), err)
	}
	for _, archive := range archives {
		if err := running.Import(ctx, archive); err != nil {
			return nil, err
		}
	}
	return running, nil
}

// need skips or fails a test without a cluster.
func need(t *testing.T) *node.Node {
	t.Helper()
	lacking := errors.Is(shared.err, node.ErrUnavailable) || errors.Is(shared.err, testcluster.ErrNodeNotBuilt)
	switch {
	case lacking && os.Getenv("CI") != "true":
		t.Skip(shared.err)
	case shared.err != nil:
		t.Fatal(shared.err)
	}
	return shared.node
}
