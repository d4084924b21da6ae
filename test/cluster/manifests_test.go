// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const manifest = root + "/deploy/install.yaml"

// split returns the objects of install.yaml in two parts: resource definitions
// and the rest.
func split(t *testing.T) (definitions, rest string) {
	t.Helper()
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	for object := range strings.SplitSeq(string(text), "\n---\n") {
		if strings.Contains(object, "\nkind: CustomResourceDefinition\n") {
			definitions += object + "\n---\n"
			continue
		}
		rest += object + "\n---\n"
	}
	if definitions == "" || rest == "" {
		t.Fatalf("%s has %d bytes of definitions and %d of the rest", filepath.Base(manifest), len(definitions), len(rest))
	}
	return definitions, rest
}

func TestInstallYAMLComesUpInAnEmptyCluster(t *testing.T) {
	definitions, rest := split(t)
	for name, order := range map[string][]string{
		"in one go":             {definitions + rest},
		"with definitions last": {rest, definitions},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.withoutRelease()
			program := filepath.Join(t.TempDir(), "rest.yaml")
			if err := os.WriteFile(program, []byte(rest), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				e.afterwards("delete", "-f", program, "--ignore-not-found", "--wait=true", "--timeout=90s")
				e.removeDefinitions()
			})
			started := time.Now()
			for i, part := range order {
				if i > 0 {
					e.eventually("programs that wait for the other half", e.running)
				}
				if _, err := e.node.Kubectl(t.Context(), part, "apply", "--server-side", "-f", "-"); err != nil {
					t.Fatal(err)
				}
			}
			e.rollOut("inference-cache-server")
			e.rollOut("inference-cache-controller-manager")
			t.Logf("everything is ready after %s", time.Since(started).Round(100*time.Millisecond))
			if got := e.restarts(); got != "" {
				t.Errorf("restarts: %s", got)
			}
			e.startBackend("sim", 1)
			e.condition("cachebackend/sim", "Ready", "False", "AwaitingFirstKVEvent")
		})
	}
}

// running says whether every program of the release runs, ready or not.
func (e *env) running() error {
	e.t.Helper()
	text := e.inSystem("get", "pods", "-o", `go-template={{range .items}}{{range .status.containerStatuses}}{{if .state.running}}up {{else}}down {{end}}{{end}}{{end}}`)
	if strings.Contains(text, "down") || strings.Count(text, "up") < 2 {
		return errors.New("programs are " + text)
	}
	return nil
}

// restarts names the containers of the release that ended and were started
// again.
func (e *env) restarts() string {
	e.t.Helper()
	return strings.TrimSpace(e.inSystem("get", "pods", "-o",
		`go-template={{range .items}}{{$pod := .metadata.name}}{{range .status.containerStatuses}}{{if .restartCount}}{{$pod}} {{.restartCount}}{{"\n"}}{{end}}{{end}}{{end}}`))
}
