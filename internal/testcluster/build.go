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
	"runtime"
	"strings"
)

// Versions built.
const (
	KubernetesVersion = "v1.35.4"
	EtcdVersion       = "v3.6.16"
)

// stagingVersion is that of the modules published with KubernetesVersion.
var stagingVersion = strings.Replace(KubernetesVersion, "v1.", "v0.", 1)

// staging are the modules that k8s.io/kubernetes requires at v0.0.0, which is
// published nowhere.
var staging = strings.Fields(`api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider
	cluster-bootstrap code-generator component-base component-helpers controller-manager cri-api cri-client
	csi-translation-lib dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator
	kube-controller-manager kube-proxy kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission
	sample-apiserver`)

// binary is a program built from a module.
type binary struct {
	name, module, version, pkg string
	goVersion                  string
	ldflags                    string
	// replace is the text of go.mod beyond the requirement.
	replace string
}

func binaries() []binary {
	return []binary{
		{name: "etcd", module: "go.etcd.io/etcd/server/v3", version: EtcdVersion, pkg: "go.etcd.io/etcd/server/v3", goVersion: "1.24.0", ldflags: "-s -w"},
		{
			name: "kube-apiserver", module: "k8s.io/kubernetes", version: KubernetesVersion,
			pkg: "k8s.io/kubernetes/cmd/kube-apiserver", goVersion: "1.25.0",
			ldflags: kubernetesFlags(), replace: kubernetesReplacements(),
		},
	}
}

func kubernetesFlags() string {
	parts := strings.Split(strings.TrimPrefix(KubernetesVersion, "v"), ".")
	const version = "k8s.io/component-base/version."
	return "-s -w -X " + version + "gitVersion=" + KubernetesVersion +
		" -X " + version + "gitMajor=" + parts[0] + " -X " + version + "gitMinor=" + parts[1]
}

func kubernetesReplacements() string {
	var text strings.Builder
	for _, name := range staging {
		fmt.Fprintf(&text, "replace k8s.io/%s => k8s.io/%s %s\n", name, name, stagingVersion)
	}
	return text.String()
}

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
	paths := make(map[string]string)
	for _, b := range binaries() {
		paths[b.name] = b.path(cache)
		if _, err := os.Stat(paths[b.name]); err != nil {
			return Binaries{}, fmt.Errorf("%w (%s is missing)", ErrNotBuilt, b.name)
		}
	}
	return Binaries{Etcd: paths["etcd"], APIServer: paths["kube-apiserver"]}, nil
}

// Build builds the programs that a cache lacks. It takes minutes; output shows
// how far it is.
func Build(ctx context.Context, cache string, output io.Writer) error {
	for _, b := range binaries() {
		if _, err := os.Stat(b.path(cache)); err == nil {
			continue
		}
		fmt.Fprintf(output, "building %s %s\n", b.name, b.version)
		if err := b.build(ctx, cache, output); err != nil {
			return fmt.Errorf("build %s: %w", b.name, err)
		}
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
	text := fmt.Sprintf("module scratch\n\ngo %s\n\nrequire %s %s\n\n%s", b.goVersion, b.module, b.version, b.replace)
	if err := os.WriteFile(filepath.Join(module, "go.mod"), []byte(text), 0o644); err != nil {
		return err
	}
	keep := fmt.Sprintf("//go:build tools\n\npackage tools\n\nimport _ %q\n", b.pkg)
	if err := os.WriteFile(filepath.Join(module, "tools.go"), []byte(keep), 0o644); err != nil {
		return err
	}
	unfinished := b.path(cache) + ".unfinished"
	defer os.Remove(unfinished)
	command := exec.CommandContext(ctx, "go", "build", "-mod=mod", "-trimpath", "-ldflags", b.ldflags, "-o", unfinished, b.pkg)
	command.Dir = module
	command.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	command.Stdout, command.Stderr = output, output
	if err := command.Run(); err != nil {
		return err
	}
	return os.Rename(unfinished, b.path(cache))
}
