// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestChartLints(t *testing.T) {
	result := lint.RunAll(chartDir, map[string]any{}, namespace)
	for _, message := range result.Messages {
		if message.Severity >= support.WarningSev {
			t.Errorf("%s: %v", message.Path, message.Err)
		}
	}
}

func TestSchema(t *testing.T) {
	refused := map[string]struct{ values, want string }{
		"a section that is misspelt":            {"serveur: {}", "serveur"},
		"a field that is misspelt":              {"server: {replica: 3}", "replica"},
		"no replicas":                           {"server: {replicas: 0}", "replicas"},
		"replicas in quotes":                    {`controller: {replicas: "2"}`, "replicas"},
		"a mode of TLS nobody knows":            {"tls: {mode: chart}", "mode"},
		"an issuer of webhooks nobody knows":    {"webhook: {certMode: files}", "certMode"},
		"a scope of tenants nobody knows":       {"webhook: {tenantIDScope: pod}", "tenantIDScope"},
		"a form of sidecars nobody knows":       {"injection: {sidecarMode: init}", "sidecarMode"},
		"a short repository of the publisher":   {"injection: {image: {repository: x}}", `injection.image.repository "x": expected a name with its registry`},
		"the publisher's tag latest":            {"injection: {image: {tag: latest}}", `injection.image.tag "latest": expected a tag that stays`},
		"adapters in quotes":                    {`adapters: {enabled: "true"}`, "enabled"},
		"a mode of authentication nobody knows": {"server: {grpcAuth: on}", "grpcAuth"},
		"an argument that is no flag":           {"server: {extraArgs: [index-ttl=1h]}", "extraArgs"},
		"the tag latest":                        {"image: {tag: latest}", `image.tag "latest": expected a tag that stays`},
		"a digest that is none":                 {"image: {digest: abc}", "digest"},
		"a repository with a tag":               {"image: {repository: ic.test/x:1}", `image.repository "ic.test/x:1": expected a name with its registry and without tag`},
		"a short repository":                    {"image: {repository: inferencecache}", `image.repository "inferencecache": expected a name with its registry`},
		"no repository":                         {`image: {repository: ""}`, `image.repository "": expected a name with its registry`},
		"a pull secret by its name alone":       {"image: {pullSecrets: [registry]}", "pullSecrets"},
		"a pull secret without a name":          {"image: {pullSecrets: [{secret: registry}]}", "name"},
		"a reader without tenants":              {"server: {tenantReaders: [{caller: x, tenants: []}]}", "tenants"},
		"a reader in two words":                 {"server: {tenantReaders: [{caller: x y, tenants: [a]}]}", "caller"},
		"a reader that is a comment":            {`server: {tenantReaders: [{caller: "#x", tenants: [a]}]}`, "caller"},
		"readers where roles decide":            {"server: {tenantAuthz: rbac, tenantReaders: [{caller: x, tenants: [a]}]}", `server.tenantReaders: with server.tenantAuthz "rbac"`},
		"roles of callers that nobody knows":    {`server: {tenantAuthz: rbac, grpcAuth: "off"}`, `server.tenantAuthz "rbac": roles need callers with credentials`},
		"a gateway without tenant":              {"gateway: {enabled: true, adminTokenSecret: x}", "gateway.tenant: expected the namespace"},
		"a gateway of all tenants":              {`gateway: {enabled: true, adminTokenSecret: x, tenant: "*"}`, "tenant"},
		"a gateway of two tenants":              {`gateway: {enabled: true, adminTokenSecret: x, tenant: "a,b"}`, "tenant"},
		"a gateway without an admin token":      {"gateway: {enabled: true, tenant: x}", "gateway.adminTokenSecret: expected the name of a Secret"},
		"a Secret that cannot be":               {"gateway: {enabled: true, tenant: x, adminTokenSecret: My Token}", "adminTokenSecret"},
		"monitors that are not let in":          {"controller: {metricsSecure: true}\nmonitoring: {podMonitors: true}", "monitoring.controllerTokenSecret: expected"},
		"memory in a unit nobody knows":         {"server: {resources: {limits: {memory: 1GB}}}", "memory"},
		"a class that cannot be":                {"server: {priorityClassName: Very High}", "priorityClassName"},
		"a section that is taken away":          {"tls: null", "tls"},
		"a value that is taken away":            {"injection: {sidecarMode: null}", "sidecarMode"},
		"a resource kind nobody knows":          {"server: {resources: {limit: {cpu: 1}}}", "limit"},
	}
	for name, tc := range refused {
		t.Run(name+" is refused", func(t *testing.T) {
			_, err := templates(t, tc.values)
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error does not name %s: %v", tc.want, err)
			}
		})
	}
	for name, values := range variants {
		t.Run(name+" is accepted", func(t *testing.T) {
			if _, err := templates(t, values); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestOffWithoutQuotes: YAML reads it as false.
func TestOffWithoutQuotes(t *testing.T) {
	for values, quoted := range map[string]string{
		"tls: {mode: off}":        `tls: {mode: "off"}`,
		"server: {grpcAuth: off}": `server: {grpcAuth: "off"}`,
	} {
		got, err := templates(t, values)
		if err != nil {
			t.Fatal(err)
		}
		want, err := templates(t, quoted)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", values, diff)
		}
	}
}

// TestNamesThatAreNumbers: names of namespaces, releases and Secrets may be what
// YAML takes for something else.
func TestNamesThatAreNumbers(t *testing.T) {
	values := everything + `
image: {pullSecrets: [{name: "7"}]}
`
	for _, name := range []string{"7", "no", "true", "null", "1e3", strings.Repeat("n", 63)} {
		renamed := strings.NewReplacer("adminTokenSecret: gateway-admin", "adminTokenSecret: \""+name+"\"", "controllerTokenSecret: scraper", "controllerTokenSecret: \""+name+"\"", "tenant: team-a", "tenant: \""+name+"\"").Replace(values)
		files, err := loadChart(t).RenderAs(t.Context(), name, name, renamed, "")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for key, object := range decoded(t, files) {
			o, ok := object.(metav1.Object)
			if !ok {
				t.Fatalf("%s is a %T", key, object)
			}
			if ns := o.GetNamespace(); ns != "" && ns != name {
				t.Errorf("%s is in namespace %q, want %q", key, ns, name)
			}
			if got := o.GetLabels()["app.kubernetes.io/instance"]; got != name {
				t.Errorf("%s is of %q, want %q", key, got, name)
			}
		}
	}
}

// TestAnnotationsOfPods: those of the values win.
func TestAnnotationsOfPods(t *testing.T) {
	own := "{podAnnotations: {prometheus.io/scrape: \"false\", a.example/b: c}}"
	for _, d := range render(t, "server: "+own+"\ncontroller: "+own).deployments(t) {
		want := map[string]string{"prometheus.io/scrape": "false", "prometheus.io/port": "8080", "prometheus.io/path": "/metrics", "a.example/b": "c"}
		if diff := cmp.Diff(want, d.Spec.Template.Annotations); diff != "" {
			t.Errorf("%s: %s", d.Name, diff)
		}
	}
}

func TestNotes(t *testing.T) {
	for values, want := range map[string]string{
		"":                            "inference-cache-server-headless." + namespace,
		"tls: {mode: \"off\"}":        "TLS is off",
		"server: {grpcAuth: \"off\"}": "gRPC takes callers without credentials",
		gatewayOn + "server: {tenantAuthz: rbac}": "may get\nlookups.inferencecache.io in namespace team-a",
		"injection: {enabled: false}":             "Pods are not injected",
		"tls: {mode: self}":                       "ca\\.crt",
	} {
		files, err := templates(t, values)
		if err != nil {
			t.Fatal(err)
		}
		if notes := files["inference-cache/templates/NOTES.txt"]; !strings.Contains(notes, want) {
			t.Errorf("values %q: notes without %q:\n%s", values, want, notes)
		}
	}
}

func TestImages(t *testing.T) {
	for values, want := range map[string]string{
		"": "ic.test/inferencecache:" + loadChart(t).AppVersion(),
		"image: {tag: v1.2.3, repository: \"mirror.example:5000/a/b\"}": "mirror.example:5000/a/b:v1.2.3",
		"image: {tag: v1, repository: localhost/a}":                     "localhost/a:v1",
		"image: {tag: v1, repository: \"localhost:5001/a\"}":            "localhost:5001/a:v1",
		"image: {tag: v1, repository: \"registry:5000/a/b\"}":           "registry:5000/a/b:v1",
		"image: {tag: v1.2.3, digest: \"sha256:" + digest + "\"}":       "ic.test/inferencecache@sha256:" + digest,
	} {
		for _, d := range render(t, values+"\n"+gatewayOn).deployments(t) {
			for _, c := range d.Spec.Template.Spec.Containers {
				if c.Image != want {
					t.Errorf("values %q: %s runs %s, want %s", values, d.Name, c.Image, want)
				}
			}
		}
	}
}

func TestSubscriberImages(t *testing.T) {
	tag := loadChart(t).AppVersion()
	for values, want := range map[string]string{
		"": "ic.test/kvevent-subscriber:" + tag,
		"image: {tag: v1.2.3, repository: \"mirror.example:5000/a/b\"}": "mirror.example:5000/a/kvevent-subscriber:v1.2.3",
		"image: {digest: \"sha256:" + digest + "\"}":                    "ic.test/kvevent-subscriber:" + tag,
		"injection: {image: {digest: \"sha256:" + digest + "\"}}":       "ic.test/kvevent-subscriber@sha256:" + digest,
		"injection: {image: {repository: r.example/p, tag: v2}}":        "r.example/p:v2",
		"injection: {enabled: false, image: {tag: v2}}":                 "",
	} {
		manager := get[*appsv1.Deployment](t, render(t, values), "Deployment/inference-cache-controller-manager").Spec.Template.Spec.Containers[0]
		var expanded []string
		for _, arg := range manager.Args {
			for _, variable := range manager.Env {
				arg = strings.ReplaceAll(arg, "$("+variable.Name+")", variable.Value)
			}
			expanded = append(expanded, arg)
		}
		if !slices.Contains(expanded, "--kvevent-subscriber-image="+want) {
			t.Errorf("values %q: pods do not get %q: %v", values, want, expanded)
		}
	}
}
