// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	appsv1 "k8s.io/api/apps/v1"
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
		"a short repository of the publisher":   {"injection: {image: {repository: x}}", "repository"},
		"the publisher's tag latest":            {"injection: {image: {tag: latest}}", "tag"},
		"adapters in quotes":                    {`adapters: {enabled: "true"}`, "enabled"},
		"a mode of authentication nobody knows": {"server: {grpcAuth: on}", "grpcAuth"},
		"an argument that is no flag":           {"server: {extraArgs: [index-ttl=1h]}", "extraArgs"},
		"the tag latest":                        {"image: {tag: latest}", "tag"},
		"a digest that is none":                 {"image: {digest: abc}", "digest"},
		"a repository with a tag":               {"image: {repository: ic.test/x:1}", "repository"},
		"a short repository":                    {"image: {repository: inferencecache}", "repository"},
		"a reader without tenants":              {"server: {tenantReaders: [{caller: x, tenants: []}]}", "tenants"},
		"a reader in two words":                 {"server: {tenantReaders: [{caller: x y, tenants: [a]}]}", "caller"},
		"a gateway without tenant":              {"gateway: {enabled: true, adminTokenSecret: x}", "tenant"},
		"a gateway without an admin token":      {"gateway: {enabled: true, tenant: x}", "adminTokenSecret"},
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

func TestNotes(t *testing.T) {
	for values, want := range map[string]string{
		"":                            "inference-cache-server-headless." + namespace,
		"tls: {mode: \"off\"}":        "TLS is off",
		"server: {grpcAuth: \"off\"}": "gRPC takes callers without credentials",
		"injection: {enabled: false}": "Pods are not injected",
		"tls: {mode: self}":           "ca\\.crt",
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
