// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// removeBridge deletes the bridge of the pods.
func (n *Node) removeBridge(ctx context.Context) error {
	if _, err := os.Stat("/sys/class/net/" + bridge); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if output, err := exec.CommandContext(ctx, n.host.programs["ip"], "link", "delete", bridge).CombinedOutput(); err != nil {
		return fmt.Errorf("delete the bridge %s: %w: %s", bridge, err, output)
	}
	return nil
}

// cleanTables removes the rules of proxy, kubelet and network plugins.
func (n *Node) cleanTables(ctx context.Context) error {
	command := exec.CommandContext(ctx, n.Programs.Proxy, "--cleanup")
	command.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":"+systemPath)
	// What it does not clean, or complains of, is taken care of below.
	_ = command.Run()
	var errs []error
	for _, family := range []string{"iptables", "ip6tables"} {
		save, restore := lookup(family+"-save"), lookup(family+"-restore")
		if save == "" || restore == "" {
			continue
		}
		saved, err := exec.CommandContext(ctx, save).Output()
		if err != nil {
			continue // a kernel without this family has none of our rules
		}
		script := removal(string(saved))
		if script == "" {
			continue
		}
		command := exec.CommandContext(ctx, restore, "--noflush")
		command.Stdin = strings.NewReader(script)
		if output, err := command.CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("remove rules of %s: %w: %s", family, err, bytes.TrimSpace(output)))
		}
	}
	return errors.Join(errs...)
}

// removal turns what iptables-save prints into the input of iptables-restore
// that removes the cluster's chains and the rules that lead to them.
func removal(saved string) string {
	var script strings.Builder
	for table := range strings.SplitSeq("\n"+saved, "\n*") {
		name, rest, _ := strings.Cut(table, "\n")
		lines := strings.Split(rest, "\n")
		chains := ownChains(lines)
		var commands []string
		for _, line := range lines {
			if rule, ok := strings.CutPrefix(line, "-A "); ok && !slices.Contains(chains, firstWord(rule)) && leadsTo(rule, chains) {
				commands = append(commands, "-D "+rule)
			}
		}
		for _, command := range []string{"-F ", "-X "} {
			for _, chain := range chains {
				commands = append(commands, command+chain)
			}
		}
		if len(commands) > 0 {
			fmt.Fprintf(&script, "*%s\n%s\nCOMMIT\n", name, strings.Join(commands, "\n"))
		}
	}
	return script.String()
}

// ownChains are Kubernetes' own, and those the network plugins made for our
// network, which the comments of rules name.
func ownChains(lines []string) []string {
	var chains []string
	for _, line := range lines {
		if chain, ok := strings.CutPrefix(line, ":"); ok && strings.HasPrefix(chain, "KUBE-") {
			chains = append(chains, firstWord(chain))
		}
	}
	comment := `name: \"` + network + `\"`
	for _, line := range lines {
		target := jump(line)
		if strings.Contains(line, comment) && strings.HasPrefix(target, "CNI-") && !slices.Contains(chains, target) {
			chains = append(chains, target)
		}
	}
	return chains
}

func leadsTo(rule string, chains []string) bool { return slices.Contains(chains, jump(rule)) }

// jump returns the chain that a rule leads to.
func jump(rule string) string {
	words := strings.Fields(rule)
	if at := slices.Index(words, "-j"); at >= 0 && at+1 < len(words) {
		return words[at+1]
	}
	return ""
}

func firstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}

// settings of the kernel that kubelet and network plugins change.
var settings = []string{
	"net/ipv4/ip_forward", "net/ipv4/conf/all/route_localnet", "vm/overcommit_memory", "vm/panic_on_oom",
	"kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

func (d folder) settingsFile() string { return d.path("run", "settings.json") }

func (d folder) saveSettings() error {
	values := make(map[string]string)
	for _, name := range settings {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			values[name] = string(value)
		}
	}
	text, err := json.Marshal(values)
	if err != nil {
		return err
	}
	return os.WriteFile(d.settingsFile(), text, 0o644)
}

func (d folder) restoreSettings() error {
	text, err := os.ReadFile(d.settingsFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	values := make(map[string]string)
	if err := json.Unmarshal(text, &values); err != nil {
		return fmt.Errorf("read the kernel's settings: %w", err)
	}
	var errs []error
	for _, name := range settings {
		path := filepath.Join("/proc/sys", name)
		now, err := os.ReadFile(path)
		before, saved := values[name]
		if err != nil || !saved || string(now) == before {
			continue
		}
		errs = append(errs, os.WriteFile(path, []byte(before), 0o644))
	}
	return errors.Join(errs...)
}
