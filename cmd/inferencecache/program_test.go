// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestInvokedAs(t *testing.T) {
	for argv0, want := range map[string]string{
		"/usr/local/bin/inferencecache":         "inferencecache",
		"/usr/local/bin/kubectl-inferencecache": "kubectl inferencecache",
		"kubectl_inferencecache":                "kubectl inferencecache",
		"bin/kubectl-inferencecache.exe":        "kubectl inferencecache",
		"kubectl-inferencecache-old":            "inferencecache",
		"":                                      "inferencecache",
	} {
		if got := invokedAs(argv0); got != want {
			t.Errorf("invoked by %q as %q, want %q", argv0, got, want)
		}
	}
}

// TestPluginNamesItself runs the program under the name that kubectl looks for.
func TestPluginNamesItself(t *testing.T) {
	plugin := filepath.Join(t.TempDir(), "kubectl-inferencecache")
	if output, err := exec.Command("go", "build", "-trimpath", "-o", plugin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	run := func(t *testing.T, args ...string) (text string, code int) {
		t.Helper()
		command := exec.Command(plugin, args...)
		command.Env = append(os.Environ(), "KUBECONFIG=")
		output, _ := command.CombinedOutput() // how it ended is in the state
		return string(output), command.ProcessState.ExitCode()
	}
	for name, tc := range map[string]struct {
		args []string
		want string
		code int
	}{
		"its help":                {[]string{"--help"}, "\n  kubectl inferencecache [command]", exitOK},
		"a hint of its help":      {[]string{"--help"}, "'kubectl inferencecache demo'", exitOK},
		"the help of a command":   {[]string{"explain", "--help"}, "\n  kubectl inferencecache explain [flags]", exitOK},
		"an example":              {[]string{"explain", "--help"}, "\n  kubectl inferencecache explain --last", exitOK},
		"an unknown command":      {[]string{"nothing"}, "kubectl inferencecache: unknown command \"nothing\" for \"kubectl inferencecache\"\nRun 'kubectl inferencecache --help' for usage.", exitUsage},
		"an error of a command":   {[]string{"explain", "--admin", "127.0.0.1:1"}, "kubectl inferencecache: ", exitRuntime},
		"a flag that is misspelt": {[]string{"explain", "--lost"}, "Run 'kubectl inferencecache explain --help' for usage.", exitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			text, code := run(t, tc.args...)
			if !strings.Contains(text, tc.want) || code != tc.code {
				t.Errorf("exit code %d, want %d; no %q in:\n%s", code, tc.code, tc.want, text)
			}
		})
	}
}

// TestUsageTextsNameThePlugin looks at every command for a call by the other
// name.
func TestUsageTextsNameThePlugin(t *testing.T) {
	root := (&cli{name: pluginName}).newRootCommand()
	var each func(*cobra.Command)
	each = func(command *cobra.Command) {
		for _, text := range []string{command.Long, command.Example} {
			for _, sub := range root.Commands() {
				if strings.Contains(strings.ReplaceAll(text, pluginName, ""), programName+" "+sub.Name()+" ") {
					t.Errorf("%s: a text shows another name: %s", command.CommandPath(), text)
				}
			}
		}
		for _, sub := range command.Commands() {
			each(sub)
		}
	}
	each(root)
}
