// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// backendYAML is a CacheBackend for pods of the domain NAME.
const backendYAML = `
apiVersion: inferencecache.io/v1alpha1
kind: CacheBackend
metadata: {name: NAME}
spec:
  runtime: VLLM
  type: LMCache
  integration: {mode: EventsOnly}
  engineSelector: {matchLabels: {inferencecache.io/cache-domain: NAME}}
  observation: {modelID: sim, firstEventTimeout: 5m}
`

// engineYAML is a pod with a simulated engine, fit for restricted namespaces.
const engineYAML = `
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: engine, inferencecache.io/cache-domain: DOMAIN}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: vllm
    image: ic.test/inferencecache:dev
    imagePullPolicy: Never
    command: [/app, sim-engine]
    args: ["--listen=:8000", --model=sim, --speed=50, "--events=tcp://*:5557", "--replay=tcp://*:5600"]
    readinessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: 1}
    securityContext:
      runAsNonRoot: true
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
      seccompProfile: {type: RuntimeDefault}
`

// startBackend declares a backend with engines of its name followed by -0, -1
// and so on, and waits until they are ready.
func (e *env) startBackend(name string, engines int) {
	e.t.Helper()
	e.eventually("the webhook for backends", func() error {
		_, err := e.try(strings.ReplaceAll(backendYAML, "NAME", name), "apply", "-f", "-")
		return err
	})
	if engines == 0 {
		return
	}
	var pods strings.Builder
	for i := range engines {
		pods.WriteString(enginePod(fmt.Sprintf("%s-%d", name, i), name) + "---\n")
	}
	e.apply(pods.String())
	for i := range engines {
		e.waitFor(fmt.Sprintf("pod/%s-%d", name, i), "Ready")
	}
}

func enginePod(name, domain string) string {
	return strings.NewReplacer("NAME", name, "DOMAIN", domain).Replace(engineYAML)
}

// prompt has an engine read a prompt, from the tool pod client. Flags are those
// of the tool's get.
func (e *env) prompt(engine, text string, flags ...string) {
	e.t.Helper()
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": text, "max_tokens": 1})
	if err != nil {
		e.t.Fatal(err)
	}
	address := e.kubectl("get", "pod", engine, "-o", "jsonpath={.status.podIP}")
	flags = append(flags, "--method=POST", "--body="+string(body), "http://"+address+":8000/v1/completions")
	if _, err := e.tool("client", append([]string{"get"}, flags...)...); err != nil {
		e.t.Fatal(err)
	}
}

// longPrompt is one that is worth a hint, of its own for each word.
func longPrompt(word string) string { return strings.Repeat(word+" ", 512/(len(word)+1)) }

// startReaders prepares lookups of the namespace's tenant: rights for its
// default account, with sharedValues, the servers' authority, and the tool pod
// client.
func (e *env) startReaders() {
	e.t.Helper()
	e.apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [inferencecache.io], resources: [lookups], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: default, namespace: ` + e.namespace + `}]
`)
	e.trustServers()
	e.startTool("client")
}

// asked is what lookup needs to ask for a prompt of the namespace's engines.
func (e *env) asked(prompt string) []string {
	return []string{"--tenant=" + e.namespace, "--model=sim", "--hash-scheme=vllm", "--bytes=" + prompt}
}

// matched waits until the servers know who holds a prompt, and returns the time
// it took.
func (e *env) matched(prompt, replica string) time.Duration {
	e.t.Helper()
	started := time.Now()
	e.eventually("PREFIX_MATCH of "+replica, func() error {
		answer, err := e.lookup("client", e.asked(prompt)...)
		if err != nil {
			return err
		}
		return isMatch(answer, replica)
	})
	return time.Since(started)
}

func isMatch(answer *pb.LookupRouteResponse, replica string) error {
	if answer.ReasonCode != "PREFIX_MATCH" || len(answer.ReplicaScores) == 0 || answer.ReplicaScores[0].ReplicaId != replica {
		return fmt.Errorf("answer %v", answer)
	}
	return nil
}

// condition waits for a condition of a resource with a status and one of
// reasons, and returns its message.
func (e *env) condition(resource, kind, status string, reasons ...string) string {
	e.t.Helper()
	var message string
	e.eventually(fmt.Sprintf("%s %s=%s %v", resource, kind, status, reasons), func() error {
		text, err := e.try("", "get", resource, "-o", fmt.Sprintf(`jsonpath={range .status.conditions[?(@.type=="%s")]}{.status}|{.reason}|{.message}{end}`, kind))
		if err != nil {
			return err
		}
		parts := strings.SplitN(text, "|", 3)
		for _, reason := range reasons {
			if len(parts) == 3 && parts[0] == status && parts[1] == reason {
				message = parts[2]
				return nil
			}
		}
		return fmt.Errorf("it is %q", text)
	})
	return message
}

// eventOn waits for an event about an object.
func (e *env) eventOn(kind, name, reason string) {
	e.t.Helper()
	e.eventually(fmt.Sprintf("event %s of %s %s", reason, kind, name), func() error {
		text, err := e.try("", "get", "events.events.k8s.io", "-o", `jsonpath={range .items[*]}{.regarding.kind}/{.regarding.name} {.reason}{"\n"}{end}`)
		if err == nil && !strings.Contains(strings.ToLower(text), kind+"/"+name+" "+strings.ToLower(reason)+"\n") {
			err = fmt.Errorf("there are %q", text)
		}
		return err
	})
}
