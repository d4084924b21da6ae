// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// lookupAudience is a patch of the controller: the audience of the token it
// shows where clients look up.
func lookupAudience(audience string) string {
	return `{"spec": {"template": {"spec": {"volumes": [{"name": "lookup-token", "projected": {"defaultMode": 288, "sources": [
		{"serviceAccountToken": {"audience": "` + audience + `", "expirationSeconds": 3600, "path": "token"}}]}}]}}}}`
}

// event waits for an event of a CacheBackend.
func (e *env) event(backend, reason string) {
	e.t.Helper()
	e.eventually("event "+reason, func() error {
		text, err := e.try("", "get", "events", "--field-selector=involvedObject.kind=CacheBackend,involvedObject.name="+backend+",reason="+reason, "-o", "name")
		if err == nil && strings.TrimSpace(text) == "" {
			err = errors.New("there is none")
		}
		return err
	})
}

func TestBackendTellsOfServersThatFail(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startReaders()
	e.startBackend("sim", 1)
	e.prompt("sim-0", longPrompt("tested"))
	e.apply(policyYAML)
	e.condition("cachebackend/sim", "FunctionalProbeOK", "True", "ProbeOK")
	e.condition("cachebackend/sim", "Ready", "True", "KVEventsObserved")
	e.programmed("default", 2)

	t.Run("gRPC that takes no token of the controller", func(t *testing.T) {
		e := e.sub(t)
		started := time.Now()
		e.inSystem("patch", "deployment", "inference-cache-controller-manager", "-p", lookupAudience("elsewhere"))
		message := e.condition("cachebackend/sim", "FunctionalProbeOK", "False", "ProbeGRPCFailed")
		if !strings.Contains(message, "inference-cache-server-") || !strings.Contains(message, "Unauthenticated") {
			t.Errorf("message %q", message)
		}
		e.condition("cachebackend/sim", "Ready", "False", "ProbeGRPCFailed")
		e.event("sim", "ProbeFailed")
		failed := time.Since(started)
		started = time.Now()
		e.inSystem("patch", "deployment", "inference-cache-controller-manager", "-p", lookupAudience("inferencecache.io/lookup"))
		e.condition("cachebackend/sim", "FunctionalProbeOK", "True", "ProbeOK")
		e.condition("cachebackend/sim", "Ready", "True", "KVEventsObserved")
		e.event("sim", "ProbeRecovered")
		t.Logf("told after %s, taken back after %s, a replacement of the controller included", failed.Round(100*time.Millisecond), time.Since(started).Round(100*time.Millisecond))
		e.rollOut("inference-cache-controller-manager")
	})
	t.Run("one of two servers that hangs", func(t *testing.T) {
		e := e.sub(t)
		server := e.component("server")[0]
		id, _ := e.containerState(installed, server, "server")
		started := time.Now()
		if err := e.node.Signal(t.Context(), id, "SIGSTOP"); err != nil {
			t.Fatal(err)
		}
		message := e.condition("cachepolicy/default", "Programmed", "False", "PushFailed")
		if !strings.Contains(message, server) {
			t.Errorf("the policy's status does not name %s: %q", server, message)
		}
		told := time.Since(started)
		e.eventually("the index's status", func() error {
			return e.unreachable(server)
		})
		if err := e.node.Signal(t.Context(), id, "SIGCONT"); err != nil {
			t.Logf("the kubelet was faster: %v", err)
		}
		started = time.Now()
		e.programmed("default", 2)
		e.eventually("the index's status", func() error { return e.unreachable("") })
		t.Logf("told after %s, taken back after %s", told.Round(100*time.Millisecond), time.Since(started).Round(100*time.Millisecond))
	})
	t.Run("no server at all", func(t *testing.T) {
		e := e.sub(t)
		started := time.Now()
		e.inSystem("scale", "deployment/inference-cache-server", "--replicas=0")
		e.condition("cachepolicy/default", "Programmed", "Unknown", "NoServers")
		e.condition("cachebackend/sim", "FunctionalProbeOK", "Unknown", "ProbeError")
		told := time.Since(started)
		e.condition("cachebackend/sim", "Ready", "True", "KVEventsObserved")
		started = time.Now()
		e.inSystem("scale", "deployment/inference-cache-server", "--replicas=2")
		e.rollOut("inference-cache-server")
		e.programmed("default", 2)
		e.condition("cachebackend/sim", "FunctionalProbeOK", "True", "ProbeOK")
		t.Logf("told after %s, taken back after %s", told.Round(100*time.Millisecond), time.Since(started).Round(100*time.Millisecond))
	})
}

// unreachable says whether the CacheIndex tells of one server that it cannot be
// reached, or of none.
func (e *env) unreachable(server string) error {
	text, err := e.try("", "get", "cacheindex", "cluster-default", "-o", `go-template={{range .status.servers}}{{if not .reachable}}{{.name}} {{end}}{{end}}`)
	if err == nil && strings.TrimSpace(text) != server {
		err = fmt.Errorf("unreachable are %q", text)
	}
	return err
}
