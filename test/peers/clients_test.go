// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// clientRun is how long one client's whole suite may take.
const clientRun = 3 * time.Minute

// startFleet starts two simulated engines and `up` in front of them.
func startFleet(t *testing.T, tools toolbox) *fleet {
	t.Helper()
	return startUp(t, tools.binary,
		startSimEngine(t, tools.binary, "engine a"), startSimEngine(t, tools.binary, "engine b"))
}

func TestOpenAIClients(t *testing.T) {
	tools := requireTools(t)
	f := startFleet(t, tools)
	suites := map[string]*exec.Cmd{
		"node":   exec.Command("node", "--test", "--test-reporter=spec", "openai-node/client.test.mjs"),
		"python": exec.Command(tools.python, "-m", "unittest", "-v", "openai-python/test_client.py"),
	}
	for name, cmd := range suites {
		t.Run(name, func(t *testing.T) {
			cmd.Env = append(os.Environ(), "GATEWAY_URL="+f.Gateway, "MODEL="+simModel, "NODE_MODULE="+tools.nodeModule,
				"PYTHONDONTWRITEBYTECODE=1")
			output, code := runProgram(t, clientRun, cmd)
			t.Logf("%s\n%s", filepath.Base(cmd.Path), output)
			if code != 0 {
				t.Errorf("exit code %d", code)
			}
			f.requireIdle(t)
		})
	}
}
