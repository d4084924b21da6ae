// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"errors"
	"strings"
	"testing"
)

// impostorYAML is a pod with an engine and a publisher of its own that claims
// to be another pod.
const impostorYAML = `
  - name: kvevent-subscriber
    image: ` + publisherImage + `
    imagePullPolicy: Never
    args: ["--engine-endpoint=tcp://127.0.0.1:5557", "--replay-endpoint=tcp://127.0.0.1:5600", "--model-id=sim", "--tenant-id=$(POD_NAMESPACE)",
      "--replica-id=REPLICA", "--server=dns:///inference-cache-server-headless.` + installed + `.svc.cluster.local:9090", "--server-name=` + serverName + `", "--server-ca-file=/var/run/ingest/ca.crt", "--token-file=/var/run/ingest/token", "--no-exit"]
    env: [{name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}]
    securityContext:
      runAsNonRoot: true
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
      seccompProfile: {type: RuntimeDefault}
    volumeMounts: [{name: ingest, mountPath: /var/run/ingest, readOnly: true}]
  volumes:
  - name: ingest
    projected:
      sources:
      - serviceAccountToken: {path: token, audience: inferencecache.io/ingest, expirationSeconds: 3600}
      - configMap: {name: inference-cache-server-ca, optional: true}
`

// publishing is an engine pod outside the webhook that reports as a replica.
func publishing(name, replica string) string {
	pod := strings.Replace(enginePod(name, "none"), ", inferencecache.io/cache-domain: none", "", 1)
	return pod + strings.TrimPrefix(strings.Replace(impostorYAML, "REPLICA", replica, 1), "\n")
}

func TestTokenOfOnePodDoesNotReportForAnother(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startReaders()
	e.startBackend("real", 1)
	if n := e.denied(); n != "" {
		t.Fatalf("before any impostor: %s", n)
	}
	held := longPrompt("held")
	e.prompt("real-0", held)
	e.matched(held, "real-0")

	e.apply(publishing("impostor", "real-0") + "---" + publishing("honest", "honest"))
	e.waitFor("pod/impostor", "ContainersReady")
	e.waitFor("pod/honest", "ContainersReady")
	forged, own := longPrompt("forged"), longPrompt("own")
	e.prompt("impostor", forged)
	e.prompt("honest", own)
	e.matched(own, "honest") // so that what the impostor says has had its time
	e.eventually("the refusal", func() error {
		if n := e.denied(); n == "" {
			return errors.New("no server has counted one")
		}
		return nil
	})
	answer, err := e.lookup("client", e.asked(forged)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := isMatch(answer, "real-0"); err == nil {
		t.Error("the forged report counts")
	}
	e.matched(held, "real-0")
}

// denied are the lines in which servers count reports for a replica that is not
// the caller's.
func (e *env) denied() string {
	e.t.Helper()
	var lines []string
	for address := range strings.FieldsSeq(e.kubectl("-n", installed, "get", "pod", "-l", "app.kubernetes.io/component=server", "-o", "jsonpath={.items[*].status.podIP}")) {
		page, err := e.tool("client", "get", "http://"+address+":8080/metrics")
		if err != nil {
			e.t.Fatal(err)
		}
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, `inferencecache_ingest_denied_total{reason="replica"}`) && !strings.HasSuffix(line, " 0\n") {
				lines = append(lines, line)
			}
		}
	}
	return strings.Join(lines, "")
}

func TestOnlyAmbiguousOwnershipKeepsAPodOut(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startBackend("one", 0)
	twin := strings.ReplaceAll(backendYAML, "NAME", "one")
	twin = strings.Replace(twin, "{name: one}", "{name: two}", 1)
	if _, err := e.try(twin, "apply", "-f", "-"); err == nil || !strings.Contains(err.Error(), "one") {
		t.Errorf("a second backend of the domain: %v", err)
	}
	// Two requests at once may both pass; this is what they leave.
	e.kubectl("delete", "validatingwebhookconfiguration", "inference-cache-validating-webhook-configuration")
	e.eventually("a backend that nothing refuses", func() error {
		_, err := e.try(twin, "apply", "-f", "-")
		return err
	})
	e.changeRelease()
	if _, err := e.try(enginePod("between", "one"), "apply", "-f", "-"); err == nil || !strings.Contains(err.Error(), "one, two") {
		t.Errorf("a pod of two backends: %v", err)
	}
	e.kubectl("delete", "cachebackend", "two")

	nameless := strings.Replace(strings.ReplaceAll(backendYAML, "NAME", "nameless"), "modelID: sim, ", "", 1)
	e.eventually("backends are checked again", func() error {
		_, err := e.try(nameless, "apply", "-f", "-")
		return err
	})
	optedOut := strings.Replace(enginePod("opted-out", "one"), "labels:", `annotations: {inferencecache.io/skip-inject: "true"}, labels:`, 1)
	e.apply(enginePod("unnamed", "nameless") + "---" + optedOut)
	for pod, want := range map[string]struct{ reason, event string }{
		"unnamed":   {"model-id-unset", "InjectionSkipped"},
		"opted-out": {"skip-inject-annotation", "SkippedByOperator"},
	} {
		if got := e.annotation(pod, "inject-skipped"); got != want.reason {
			t.Errorf("%s was skipped for %q, want %q", pod, got, want.reason)
		}
		e.eventOn("pod", pod, want.event)
		e.waitFor("pod/"+pod, "Ready")
	}
	e.condition("cachebackend/nameless", "InjectionHealthy", "False", "PodsSkipped")
}
