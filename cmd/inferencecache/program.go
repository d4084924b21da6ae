// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

const (
	programName = "inferencecache"
	// pluginFile is the file name under which kubectl finds the program, and
	// pluginName how it is called then.
	pluginFile = "kubectl-" + programName
	pluginName = "kubectl " + programName
)

// invokedAs is how the user calls the program whose path is argv0.
func invokedAs(argv0 string) string {
	file := strings.TrimSuffix(filepath.Base(argv0), ".exe")
	// kubectl looks for underscores where a command has dashes.
	if strings.ReplaceAll(file, "_", "-") == pluginFile {
		return pluginName
	}
	return programName
}

// rename has the usage texts of root and all its commands show another name of
// the program.
func rename(root *cobra.Command, name string) {
	if name == programName {
		return
	}
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: name}
	var commands []string
	for _, command := range root.Commands() {
		commands = append(commands, regexp.QuoteMeta(command.Name()))
	}
	calls := regexp.MustCompile(`\b` + programName + ` (` + strings.Join(commands, "|") + `)\b`)
	var each func(*cobra.Command)
	each = func(command *cobra.Command) {
		command.Long = calls.ReplaceAllString(command.Long, name+" $1")
		command.Example = calls.ReplaceAllString(command.Example, name+" $1")
		for _, sub := range command.Commands() {
			each(sub)
		}
	}
	each(root)
}
