// SPDX-License-Identifier: Apache-2.0

package testcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// directory is where the program is kept: one for each version, Go version
// and platform.
func (b binary) directory(cache string) string {
	return filepath.Join(cache, fmt.Sprintf("%s-%s-%s-%s-%s", b.name, b.version, runtime.Version(), runtime.GOOS, runtime.GOARCH))
}

func (b binary) path(cache string) string { return filepath.Join(b.directory(cache), b.name) }

// CacheDir returns where programs are kept: $IC_CLUSTER_BIN, or a folder of
// the user's cache.
func CacheDir() (string, error) {
	if dir := os.Getenv("IC_CLUSTER_BIN"); dir != "" {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find the cluster programs: %w", err)
	}
	return filepath.Join(home, ".cache", "inference-cache", "cluster"), nil
}

// Binaries are the paths of the programs.
type Binaries struct{ Etcd, APIServer string }

// ErrNotBuilt means that a program is not in the cache.
var ErrNotBuilt = errors.New("cluster programs are not built: run make cluster-bin")

// Find returns the programs of a cache, or ErrNotBuilt.
func Find(cache string) (Binaries, error) {
	paths, missing := find(cache, serverPrograms())
	if len(missing) > 0 {
		return Binaries{}, fmt.Errorf("%w (%s is missing)", ErrNotBuilt, missing[0])
	}
	return Binaries{Etcd: paths["etcd"], APIServer: paths["kube-apiserver"]}, nil
}

// find returns the paths by name, and the names of programs that are not
// there.
func find(cache string, programs []binary) (paths map[string]string, missing []string) {
	paths = make(map[string]string)
	for _, b := range programs {
		paths[b.name] = b.path(cache)
		if _, err := os.Stat(paths[b.name]); err != nil {
			missing = append(missing, b.name)
		}
	}
	return paths, missing
}

// Build builds the programs of Find that a cache lacks. It takes minutes;
// output shows how far it is.
func Build(ctx context.Context, cache string, output io.Writer) error {
	return build(ctx, cache, output, serverPrograms())
}

func build(ctx context.Context, cache string, output io.Writer, programs []binary) error {
	for _, b := range programs {
		if _, err := os.Stat(b.path(cache)); err == nil {
			continue
		}
		fmt.Fprintf(output, "building %s %s\n", b.name, b.version)
		started := time.Now()
		if err := b.build(ctx, cache, output); err != nil {
			return fmt.Errorf("build %s: %w", b.name, err)
		}
		fmt.Fprintf(output, "built %s in %s\n", b.name, time.Since(started).Round(time.Second))
	}
	return nil
}

// build leaves nothing in the cache unless it succeeds.
func (b binary) build(ctx context.Context, cache string, output io.Writer) error {
	if err := os.MkdirAll(b.directory(cache), 0o755); err != nil {
		return err
	}
	module, err := os.MkdirTemp("", "testcluster-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(module)
	requirements := b.requirements
	if b.shared {
		if requirements, err = ownRequirements(ctx); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("module scratch\n\ngo %s\n\nrequire %s %s\n\n%s", b.goVersion, b.module, b.version, requirements)
	if err := os.WriteFile(filepath.Join(module, "go.mod"), []byte(text), 0o644); err != nil {
		return err
	}
	source := b.source
	if source == "" {
		source = fmt.Sprintf("//go:build tools\n\npackage tools\n\nimport _ %q\n", b.pkg)
	}
	if err := os.WriteFile(filepath.Join(module, "main.go"), []byte(source), 0o644); err != nil {
		return err
	}
	unfinished := b.path(cache) + ".unfinished"
	defer os.Remove(unfinished)
	command := exec.CommandContext(ctx, "go", "build", "-mod=mod", "-trimpath", "-ldflags", b.ldflags, "-o", unfinished, b.pkg)
	command.Dir = module
	command.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if b.static {
		command.Env = append(command.Env, "CGO_ENABLED=0")
	}
	command.Stdout, command.Stderr = output, output
	if err := command.Run(); err != nil {
		return err
	}
	return os.Rename(unfinished, b.path(cache))
}

var requireBlock = regexp.MustCompile(`(?ms)^require \(.*?^\)\n`)

// ownRequirements are those of the module this process runs in.
func ownRequirements(ctx context.Context) (string, error) {
	path, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find this module: %w", err)
	}
	text, err := os.ReadFile(strings.TrimSpace(string(path)))
	if err != nil {
		return "", fmt.Errorf("read this module's requirements: %w", err)
	}
	return strings.Join(requireBlock.FindAllString(string(text), -1), "\n"), nil
}
