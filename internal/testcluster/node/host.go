// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrUnavailable means that this machine cannot run a node.
var ErrUnavailable = errors.New("no cluster can run on this machine")

// systemPath finds programs of administrators also where a user's PATH lacks
// them.
const systemPath = "/usr/local/sbin:/usr/sbin:/sbin"

// pluginFolders are where distributions put network plugins.
var pluginFolders = []string{"/usr/lib/cni", "/opt/cni/bin"}

// plugins are the network plugins of the node.
var plugins = []string{"bridge", "host-local", "portmap", "loopback"}

// packages are Debian's, by the program they bring.
var packages = map[string]string{
	"containerd": "containerd", "ctr": "containerd", "runc": "runc",
	"iptables": "iptables", "iptables-save": "iptables", "iptables-restore": "iptables",
	"conntrack": "conntrack", "socat": "socat", "ip": "iproute2", "mount": "mount",
	"redis-check-rdb": "redis-tools", // for tests: it is the server as well
}

// host is what the machine itself provides.
type host struct {
	programs map[string]string
	plugins  string // folder
}

// missing returns the Debian packages that the machine lacks.
func (h *host) missing() []string {
	lacking := make(map[string]bool)
	for program, name := range packages {
		if h.programs[program] == "" {
			lacking[name] = true
		}
	}
	if h.plugins == "" {
		lacking["containernetworking-plugins"] = true
	}
	var names []string
	for _, name := range []string{"containerd", "runc", "containernetworking-plugins", "iptables", "conntrack", "socat", "iproute2", "mount", "redis-tools"} {
		if lacking[name] {
			names = append(names, name)
		}
	}
	return names
}

func look() *host {
	h := &host{programs: make(map[string]string)}
	for program := range packages {
		h.programs[program] = lookup(program)
	}
	for _, folder := range pluginFolders {
		complete := true
		for _, plugin := range plugins {
			if _, err := os.Stat(filepath.Join(folder, plugin)); err != nil {
				complete = false
			}
		}
		if complete {
			h.plugins = folder
			break
		}
	}
	return h
}

func lookup(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	for folder := range strings.SplitSeq(systemPath, ":") {
		if path, err := exec.LookPath(filepath.Join(folder, program)); err == nil {
			return path
		}
	}
	return ""
}

// findHost returns what the machine provides, or ErrUnavailable.
func findHost() (*host, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: it takes root", ErrUnavailable)
	}
	h := look()
	if missing := h.missing(); len(missing) > 0 {
		return nil, fmt.Errorf("%w: install %s (make cluster-node-bin does, on Debian)", ErrUnavailable, strings.Join(missing, " "))
	}
	return h, nil
}

// InstallHost installs the Debian packages that the machine lacks. Without
// root or apt-get it returns ErrUnavailable, naming them.
func InstallHost(ctx context.Context, output io.Writer) error {
	missing := look().missing()
	if len(missing) == 0 {
		return nil
	}
	apt := lookup("apt-get")
	if os.Geteuid() != 0 || apt == "" {
		return fmt.Errorf("%w: install %s", ErrUnavailable, strings.Join(missing, " "))
	}
	install := append([]string{"install", "-y", "--no-install-recommends"}, missing...)
	if err := runApt(ctx, output, apt, install...); err != nil {
		// The lists of packages may be absent or old.
		if err := runApt(ctx, output, apt, "update"); err != nil {
			return fmt.Errorf("update the lists of packages: %w", err)
		}
		if err := runApt(ctx, output, apt, install...); err != nil {
			return fmt.Errorf("install %s: %w", strings.Join(missing, " "), err)
		}
	}
	if missing := look().missing(); len(missing) > 0 {
		return fmt.Errorf("%w: still without %s after their installation", ErrUnavailable, strings.Join(missing, " "))
	}
	return nil
}

func runApt(ctx context.Context, output io.Writer, apt string, args ...string) error {
	command := exec.CommandContext(ctx, apt, args...)
	command.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	command.Stdout, command.Stderr = output, output
	return command.Run()
}
