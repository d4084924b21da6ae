// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/inferencecache/inference-cache/deploy/helm/test/manifest"
)

const (
	chartDir  = "../inference-cache"
	namespace = manifest.Namespace
)

// gatewayOn is the least that switches the gateway on.
const gatewayOn = `
gateway:
  enabled: true
  tenant: team-a
  adminTokenSecret: gateway-admin
  config:
    version: 1
    replicas: [{id: llm-0, url: "http://llm-0.llm.team-a.svc:8000", runtime: vllm}]
`

// everything switches on all that can be on at once.
const everything = gatewayOn + `
server:
  tenantAuthz: rbac
  operatorSubjects: [alice, admins]
  extraArgs: [--index-ttl=1h]
monitoring: {rules: true, podMonitors: true, controllerTokenSecret: scraper, labels: {prometheus: main}}
networkPolicy: {restrictGRPC: true}
controller: {metricsSecure: true}
webhook: {tenantIDScope: namespace}
injection: {repairSidecarImage: true, sidecarMode: native}
adapters: {enabled: true}
`

// variants are the values that checks of every object run with.
var variants = map[string]string{
	"defaults":                 "",
	"everything":               everything,
	"without TLS":              gatewayOn + "tls: {mode: \"off\"}",
	"own certificate":          "tls: {mode: secret}",
	"cert-manager":             "tls: {mode: cert-manager}\nwebhook: {certMode: cert-manager}",
	"webhooks by cert-manager": "webhook: {certMode: cert-manager}",
	"no injection":             "injection: {enabled: false}",
	"adapters":                 "adapters: {enabled: true}",
	"secure metrics":           "controller: {metricsSecure: true}",
	"one of each":              "server: {replicas: 1}\ncontroller: {replicas: 1}",
	"bare":                     "crds: {install: false}\nnetworkPolicy: {enabled: false}\nroles: {create: false}",
	"image by digest":          "image: {digest: \"sha256:" + digest + "\"}",
	"readers of tenants":       "server: {tenantReaders: [{caller: \"system:serviceaccount:a:b\", tenants: [a, c]}]}",
}

const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func loadChart(t *testing.T) *manifest.Chart {
	t.Helper()
	chart, err := manifest.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return chart
}

// templates renders the chart's files by name; the error is the schema's or the
// templates'.
func templates(t *testing.T, values string) (map[string]string, error) {
	t.Helper()
	return loadChart(t).Render(t.Context(), values, "")
}

// objects are rendered objects by kind and name, such as "Service/x".
type objects map[string]runtime.Object

// render decodes what the chart renders; a field that a kind does not have, or
// an object twice, fails the test.
func render(t *testing.T, values string) objects {
	t.Helper()
	return renderFor(t, values, "")
}

// renderFor renders for a version of Kubernetes.
func renderFor(t *testing.T, values, version string) objects {
	t.Helper()
	files, err := loadChart(t).Render(t.Context(), values, version)
	if err != nil {
		t.Fatal(err)
	}
	return decoded(t, files)
}

// decoded reads rendered files.
func decoded(t *testing.T, files map[string]string) objects {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	found := make(objects)
	for file, text := range files {
		if strings.HasSuffix(file, ".txt") || strings.HasSuffix(file, ".tpl") {
			continue
		}
		for _, document := range strings.Split("\n"+text, "\n---") {
			document += "\n"
			var head struct {
				metav1.TypeMeta   `json:",inline"`
				metav1.ObjectMeta `json:"metadata"`
			}
			if err := yaml.Unmarshal([]byte(document), &head); err != nil {
				t.Fatalf("%s: %v\n%s", file, err, document)
			}
			if head.Kind == "" {
				continue
			}
			key := head.Kind + "/" + head.Name
			if found[key] != nil {
				t.Errorf("%s: %s is rendered twice", file, key)
			}
			found[key] = decode(t, scheme, head.GroupVersionKind(), document)
		}
	}
	return found
}

func decode(t *testing.T, scheme *runtime.Scheme, kind schema.GroupVersionKind, document string) runtime.Object {
	t.Helper()
	object, err := scheme.New(kind)
	if err != nil {
		object = &unstructured.Unstructured{}
	}
	if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
		t.Fatalf("%v: %v\n%s", kind, err, document)
	}
	return object
}

// get returns an object that must be there.
func get[T runtime.Object](t *testing.T, found objects, key string) T {
	t.Helper()
	object, ok := found[key].(T)
	if !ok {
		t.Fatalf("%s: rendered as %T", key, found[key])
	}
	return object
}

// deployments returns all of them; there must be some.
func (o objects) deployments(t *testing.T) []*appsv1.Deployment {
	t.Helper()
	var all []*appsv1.Deployment
	for _, object := range o {
		if d, ok := object.(*appsv1.Deployment); ok {
			all = append(all, d)
		}
	}
	if len(all) < 2 {
		t.Fatalf("%d Deployments", len(all))
	}
	return all
}
