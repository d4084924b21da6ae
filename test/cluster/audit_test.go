// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// right is what an account may do, as the table in docs/install.md says it. An
// empty object is any of the resource.
type right struct{ who, group, resource, object, verb string }

func (r right) String() string {
	return strings.TrimSpace(strings.Join([]string{r.who, r.verb, r.group, r.resource, r.object}, " "))
}

// accounts are those of the table by their names in the cluster.
var accounts = map[string]string{"inference-cache-server": "server", "inference-cache-controller-manager": "controller"}

// permissions reads the table: every right, with the value that it comes with.
func permissions() (map[right]string, error) {
	text, err := os.ReadFile(root + "/docs/install.md")
	if err != nil {
		return nil, err
	}
	_, table, found := strings.Cut(string(text), "<!-- permissions: begin -->")
	table, _, ended := strings.Cut(table, "<!-- permissions: end -->")
	if !found || !ended {
		return nil, errors.New("docs/install.md: no table of permissions")
	}
	rights := make(map[right]string)
	for _, line := range strings.Split(strings.TrimSpace(table), "\n")[2:] {
		cells := strings.Split(line, "|")
		if len(cells) != 8 {
			return nil, fmt.Errorf("docs/install.md: %q is no row of permissions", line)
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		names := strings.Fields(strings.ReplaceAll(cells[4], "`", ""))
		r := right{who: cells[1], group: strings.TrimPrefix(cells[3], "core"), resource: names[0]}
		if len(names) > 1 {
			r.object = names[1]
		}
		for verb := range strings.FieldsSeq(cells[5]) {
			r.verb = verb
			if _, twice := rights[r]; !twice || cells[6] == "" {
				rights[r] = cells[6]
			}
		}
	}
	return rights, nil
}

// request is a line of the audit log.
type request struct {
	At          time.Time                                                          `json:"requestReceivedTimestamp"`
	Verb        string                                                             `json:"verb"`
	RequestURI  string                                                             `json:"requestURI"`
	User        struct{ Username string }                                          `json:"user"`
	ObjectRef   *struct{ Resource, Subresource, Namespace, Name, APIGroup string } `json:"objectRef"`
	Annotations map[string]string                                                  `json:"annotations"`
}

// requests are those of the project's accounts so far.
func requests(file string) ([]request, error) {
	log, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	var all []request
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			continue // the last line is being written
		}
		all = append(all, r)
	}
	return all, lines.Err()
}

// needs returns the right that a request asks for, false for those that
// everybody has.
func (r request) needs() (right, bool) {
	name := r.User.Username[strings.LastIndex(r.User.Username, ":")+1:]
	who := accounts[name]
	if who == "" {
		who = name
	}
	if r.ObjectRef == nil {
		return right{who: who, resource: r.RequestURI, verb: r.Verb}, r.Verb != "get" // versions, kinds and health
	}
	resource := r.ObjectRef.Resource
	if r.ObjectRef.Subresource != "" {
		resource += "/" + r.ObjectRef.Subresource
	}
	return right{who, r.ObjectRef.APIGroup, resource, r.ObjectRef.Name, r.Verb}, true
}

// judge compares what was asked for with the table. It returns what the API
// server refused, what the table lacks, and what was used.
func judge(all []request, granted map[right]string) (refused, lacking []string, used map[right]bool) {
	used = make(map[right]bool)
	for _, r := range all {
		need, restricted := r.needs()
		if r.Annotations["authorization.k8s.io/decision"] != "allow" {
			refused = append(refused, fmt.Sprintf("refused: %s (%s)", need, r.RequestURI))
		}
		if !restricted {
			continue
		}
		named, any := need, need
		any.object = ""
		_, byName := granted[named]
		_, byKind := granted[any]
		switch {
		case byName:
			used[named] = true
		case byKind:
			used[any] = true
		default:
			lacking = append(lacking, fmt.Sprintf("not in the table: %s (%s)", need, r.RequestURI))
		}
	}
	slices.Sort(refused)
	slices.Sort(lacking)
	return slices.Compact(refused), slices.Compact(lacking), used
}

// auditProblems are what the accounts asked for in this run without a right in
// the table. Refusals are none: an uninstallation takes the rights first.
func auditProblems(file string) ([]string, error) {
	granted, err := permissions()
	if err != nil {
		return nil, err
	}
	all, err := requests(file)
	if err != nil {
		return nil, err
	}
	_, lacking, _ := judge(all, granted)
	return lacking, nil
}

// sharedConditions are the values of the table that sharedValues have.
var sharedConditions = []string{"", "either mode self", "webhook.certMode: self", "tls.mode: self", "server.tenantAuthz: rbac"}

// exceptions are rights that this test need not see used, and why.
func exceptions() []exception {
	status := func(r right) bool { return strings.HasSuffix(r.resource, "/status") }
	return []exception{
		{"caches watch, and list where a watch cannot begin with what there is", func(r right) bool {
			return (r.verb == "get" || r.verb == "list") && !status(r) && r.resource != "secrets"
		}},
		{"a status is written in one way, by patch or by update", func(r right) bool { return status(r) && (r.verb == "get" || r.verb == "update" || r.verb == "patch") }},
		{"objects are written in one way, by patch or by update", func(r right) bool {
			return r.verb == "patch" && slices.Contains([]string{"secrets", "configmaps", "leases"}, r.resource) ||
				r.verb == "update" && strings.HasSuffix(r.resource, "webhookconfigurations")
		}},
		{"secrets and copies of the authority change with the authority alone", func(r right) bool {
			return r.verb == "update" && (r.resource == "secrets" || r.resource == "configmaps")
		}},
		{"events that repeat are counted by a patch", func(r right) bool { return r.resource == "events" && r.verb == "patch" }},
		{"owners of pods are read for a backend without pods, and only their number", func(r right) bool {
			return r.group == "apps" && r.verb == "watch"
		}},
	}
}

type exception struct {
	why     string
	matches func(right) bool
}

func TestAccountsUseTheRightsOfTheTable(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	granted, err := permissions()
	if err != nil {
		t.Fatal(err)
	}
	var since corev1.Namespace
	if err := e.get("namespace/"+installed, &since); err != nil {
		t.Fatal(err)
	}
	e.exercise()
	all, err := requests(e.node.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(r request) bool { return r.At.Before(since.CreationTimestamp.Time) })
	refused, lacking, used := judge(all, granted)
	for _, problem := range append(refused, lacking...) {
		t.Error(problem)
	}
	t.Logf("%d requests used %d of %d rights", len(all), len(used), len(granted))
	known := exceptions()
	excused := make(map[string][]string)
	for r, with := range granted {
		if !slices.Contains(sharedConditions, with) || used[r] {
			continue
		}
		i := slices.IndexFunc(known, func(x exception) bool { return x.matches(r) })
		if i < 0 {
			t.Errorf("not used, and not known to be: %s", r)
			continue
		}
		excused[known[i].why] = append(excused[known[i].why], r.String())
	}
	for why, rights := range excused {
		slices.Sort(rights)
		t.Logf("not used, as %s:\n  %s", why, strings.Join(rights, "\n  "))
	}
}

// exercise has the accounts do what they do.
func (e *env) exercise() {
	e.t.Helper()
	e.startBackend("sim", 1)
	e.startBackend("idle", 0)
	e.eventually("a copy of the authority", func() error {
		_, err := e.try("", "get", "configmap", "inference-cache-server-ca")
		return err
	})
	e.startReaders()
	prompt := longPrompt("rights")
	e.prompt("sim-0", prompt)
	e.matched(prompt, "sim-0")
	e.apply(strings.ReplaceAll(everyKind, "NAMESPACE", e.namespace))
	for _, resource := range []string{"cachepolicy/default", "cachetenant/quota", "prompttemplate/greeting", "pdtopology/split"} {
		e.condition(resource, "Programmed", "True", "Programmed")
	}
	e.condition("cachebackend/sim", "Ready", "True", "KVEventsObserved")
	e.condition("cachebackend/sim", "FunctionalProbeOK", "True", "ProbeOK")
	e.kubectl("delete", "cachebackend", "--all")
	e.eventually("the end of the authority's copy", func() error {
		if _, err := e.try("", "get", "configmap", "inference-cache-server-ca"); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

const everyKind = policyYAML + `
---
apiVersion: inferencecache.io/v1alpha1
kind: CacheTenant
metadata: {name: quota}
spec: {tenantID: NAMESPACE, quota: {maxIndexEntries: 100000}}
---
apiVersion: inferencecache.io/v1alpha1
kind: PromptTemplate
metadata: {name: greeting}
spec: {body: "Greet {{name}}.", slots: [{name: name, type: Mutable}]}
---
apiVersion: inferencecache.io/v1alpha1
kind: PDTopology
metadata: {name: split}
spec:
  prefillPools: [{name: prefill, matchLabels: {app: engine}, acceleratorType: any}]
  decodePools: [{name: decode, matchLabels: {role: decode}}]
  acceleratorTypes: [{name: any, matchLabels: {kubernetes.io/os: linux}}]
`
