// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
)

var updateDocs = flag.Bool("update-docs", false, "write the table of permissions into docs/install.md")

// accounts names processes by their ServiceAccounts.
var accounts = map[string]string{
	"inference-cache-server":             "server",
	"inference-cache-controller-manager": manager,
}

// flatten turns rules into one line per resource, verbs merged and sorted.
func flatten(who, scope string, rules []rbacv1.PolicyRule, lines map[string][]string) {
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			if group == "" {
				group = "core"
			}
			for _, resource := range rule.Resources {
				names := rule.ResourceNames
				if len(names) == 0 {
					names = []string{""}
				}
				for _, name := range names {
					key := strings.Join([]string{who, scope, group, strings.TrimSpace(resource + " " + name)}, " | ")
					lines[key] = append(lines[key], rule.Verbs...)
				}
			}
		}
	}
}

// granted follows the bindings of the processes to what they may do.
func granted(t *testing.T, found objects) []string {
	t.Helper()
	lines := make(map[string][]string)
	bind := func(scope string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		rules := found[ref.Kind+"/"+ref.Name]
		for _, subject := range subjects {
			who := accounts[subject.Name]
			if who == "" || subject.Kind != "ServiceAccount" || subject.Namespace != namespace {
				t.Errorf("%s is bound to %+v", ref.Name, subject)
			}
			switch role := rules.(type) {
			case *rbacv1.ClusterRole:
				flatten(who, scope, role.Rules, lines)
			case *rbacv1.Role:
				flatten(who, scope, role.Rules, lines)
			default:
				t.Errorf("a binding refers to %s/%s, which is not rendered", ref.Kind, ref.Name)
			}
		}
	}
	for _, object := range found {
		switch b := object.(type) {
		case *rbacv1.ClusterRoleBinding:
			bind("cluster", b.RoleRef, b.Subjects)
		case *rbacv1.RoleBinding:
			bind("namespace", b.RoleRef, b.Subjects)
		}
	}
	return joined(lines)
}

// tableOf lists the permissions that some values ask for, in the form of
// granted.
func tableOf(on ...string) []string {
	lines := make(map[string][]string)
	for _, g := range permissions {
		if g.when == "" || slices.Contains(on, g.when) {
			key := strings.Join([]string{g.who, g.scope, g.group, g.resource}, " | ")
			lines[key] = append(lines[key], strings.Fields(g.verbs)...)
		}
	}
	return joined(lines)
}

func joined(lines map[string][]string) []string {
	var all []string
	for key, verbs := range lines {
		slices.Sort(verbs)
		all = append(all, key+" | "+strings.Join(slices.Compact(verbs), " "))
	}
	slices.Sort(all)
	return all
}

func TestPermissionsEqualTheTable(t *testing.T) {
	for name, tc := range map[string]struct {
		values string
		on     []string
	}{
		"defaults":                 {"", []string{tlsSelf, webhookSelf, selfSigned}},
		"everything":               {everything, []string{tlsSelf, webhookSelf, selfSigned, repair, adapters, secureMetrics, byRoles}},
		"certificates by others":   {variants["cert-manager"], nil},
		"webhooks by cert-manager": {variants["webhooks by cert-manager"], []string{tlsSelf, selfSigned}},
		"without TLS":              {variants["without TLS"], []string{webhookSelf, selfSigned}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tableOf(tc.on...), granted(t, render(t, tc.values))); diff != "" {
				t.Errorf("table against roles:\n%s", diff)
			}
		})
	}
}

func TestPermissionsAreDocumented(t *testing.T) {
	const file, begin, end = "../../../docs/install.md", "<!-- permissions: begin -->\n", "<!-- permissions: end -->"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	documented, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no table between %q and %q", file, begin, end)
	}
	var want strings.Builder
	want.WriteString("| who | where | group | resource, object | verbs | with |\n|---|---|---|---|---|---|\n")
	for _, g := range permissions {
		resource, name, _ := strings.Cut(g.resource, " ")
		object := "`" + resource + "`"
		if name != "" {
			object += " `" + name + "`"
		}
		fmt.Fprintf(&want, "| %s | %s | %s | %s | %s | %s |\n", g.who, g.scope, g.group, object, g.verbs, g.when)
	}
	if documented == want.String() {
		return
	}
	if !*updateDocs {
		t.Fatalf("the table is out of date, run with -update-docs:\n%s", cmp.Diff(want.String(), documented))
	}
	if err := os.WriteFile(file, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestUserRoles(t *testing.T) {
	const toView, toEdit = "rbac.authorization.k8s.io/aggregate-to-view", "rbac.authorization.k8s.io/aggregate-to-edit"
	kinds := map[string]struct {
		plural     string
		aggregated bool
	}{
		"cachebackend": {"cachebackends", false}, "cacheindex": {"cacheindices", false},
		"cachepolicy": {"cachepolicies", true}, "cachetenant": {"cachetenants", false},
		"pdtopology": {"pdtopologies", true}, "prompttemplate": {"prompttemplates", true},
	}
	found, alone := render(t, ""), render(t, "roles: {aggregate: false}")
	for kind, tc := range kinds {
		viewer := get[*rbacv1.ClusterRole](t, found, "ClusterRole/inference-cache-"+kind+"-viewer")
		editor := get[*rbacv1.ClusterRole](t, found, "ClusterRole/inference-cache-"+kind+"-editor")
		if viewer.Labels[toView] != "true" || viewer.Labels[toEdit] != "" {
			t.Errorf("the viewer of %s aggregates as %v", kind, viewer.Labels)
		}
		if (editor.Labels[toEdit] == "true") != tc.aggregated || editor.Labels[toView] != "" {
			t.Errorf("the editor of %s aggregates as %v", kind, editor.Labels)
		}
		lines := make(map[string][]string)
		flatten("viewer", "", viewer.Rules, lines)
		flatten("editor", "", editor.Rules, lines)
		want := map[string][]string{
			"viewer |  | inferencecache.io | " + tc.plural:             {"get", "list", "watch"},
			"viewer |  | inferencecache.io | " + tc.plural + "/status": {"get"},
			"editor |  | inferencecache.io | " + tc.plural:             {"create", "delete", "get", "list", "patch", "update", "watch"},
			"editor |  | inferencecache.io | " + tc.plural + "/status": {"get"},
		}
		if diff := cmp.Diff(want, lines); diff != "" {
			t.Errorf("%s:\n%s", kind, diff)
		}
		for _, role := range []string{"viewer", "editor"} {
			labels := get[*rbacv1.ClusterRole](t, alone, "ClusterRole/inference-cache-"+kind+"-"+role).Labels
			if labels[toView] != "" || labels[toEdit] != "" {
				t.Errorf("roles.aggregate is false, and the %s of %s aggregates", role, kind)
			}
		}
	}
}
