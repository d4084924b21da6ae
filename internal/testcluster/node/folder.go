// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const (
	defaultDir = "/var/lib/inference-cache-cluster"
	// maxDir leaves room for the names of sockets, whose paths have at most 107
	// bytes.
	maxDir = 60
)

// folder holds the state of a cluster.
type folder string

// Dir returns where a cluster's state is: $IC_CLUSTER_DIR, or a folder of
// /var/lib.
func Dir() string {
	if dir := os.Getenv("IC_CLUSTER_DIR"); dir != "" {
		return dir
	}
	return defaultDir
}

func newFolder(dir string) (folder, error) {
	if dir == "" {
		dir = Dir()
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if len(dir) > maxDir || strings.ContainsAny(dir, " \"$\n") {
		return "", fmt.Errorf("cluster folder %q: expected at most %d bytes, as sockets are in it, without spaces, quotes and $", dir, maxDir)
	}
	return folder(dir), os.MkdirAll(dir, 0o755)
}

func (d folder) path(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// Files of a folder that outlive the cluster.
const (
	lockName = "lock" // held while a cluster starts or stops
	useName  = "use"  // held while tests use it
	logName  = "log"
)

// lock waits for a file's lock, and says so in output. The lock ends with the
// process, or when it is released.
func (d folder) lock(ctx context.Context, name string, output io.Writer) (release func(), err error) {
	file, err := os.OpenFile(d.path(name), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	var failed error
	said := false
	locked := poll(ctx, func() bool {
		failed = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		busy := errors.Is(failed, syscall.EWOULDBLOCK)
		if busy && !said {
			fmt.Fprintf(output, "waiting for another process to release %s\n", file.Name())
			said = true
		}
		return !busy
	})
	if !locked {
		failed = context.Cause(ctx)
	}
	if failed != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s, which another process holds: %w", d.path(name), failed)
	}
	return func() { file.Close() }, nil
}

// Use waits until no other process uses the cluster of a folder (default Dir),
// and keeps others from it until release or the end of this process. Whoever
// shares a machine's cluster calls it before Start. Output says that it waits.
func Use(ctx context.Context, dir string, output io.Writer) (release func(), err error) {
	d, err := newFolder(dir)
	if err != nil {
		return nil, err
	}
	return d.lock(ctx, useName, output)
}

// clear removes the state of a stopped cluster; the logs stay.
func (d folder) clear() error {
	return d.remove(lockName, useName, logName)
}

func (d folder) remove(except ...string) error {
	if left := mountsUnder(string(d)); len(left) > 0 {
		return fmt.Errorf("not removing %s: %s is still mounted", d, left[0])
	}
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if !slices.Contains(except, entry.Name()) {
			errs = append(errs, os.RemoveAll(d.path(entry.Name())))
		}
	}
	return errors.Join(errs...)
}

// prepare makes a cluster's folders, empty.
func (d folder) prepare() error {
	if err := d.remove(lockName, useName); err != nil {
		return err
	}
	for _, name := range []string{"run", logName, "cni", "pki", "images", "pods-log", "volume-plugins", "opt"} {
		if err := os.MkdirAll(d.path(name), 0o755); err != nil {
			return err
		}
	}
	return nil
}
