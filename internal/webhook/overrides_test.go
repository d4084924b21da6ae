// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/webhook"
)

func fields(version, path string) corev1.EnvVarSource {
	return corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: version, FieldPath: path}}
}

func shareOf(name, divisor string) corev1.EnvVarSource {
	selector := &corev1.ResourceFieldSelector{Resource: name}
	if divisor != "" {
		selector.Divisor = resource.MustParse(divisor)
	}
	return corev1.EnvVarSource{ResourceFieldRef: selector}
}

func secretKey(name, key string) corev1.EnvVarSource {
	return corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: ptr(true)}}
}

func configKey(name, key string) corev1.EnvVarSource {
	return corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key}}
}

// variableSources are where variables come from, with what a refusal names, ""
// for none. The API server takes the same of a pod.
var variableSources = map[string]struct {
	source corev1.EnvVarSource
	want   string
}{
	"a field":                               {fields("", "status.hostIP"), ""},
	"a field of the version":                {fields("v1", "spec.serviceAccountName"), ""},
	"a label":                               {fields("", "metadata.labels['team.test/name']"), ""},
	"an annotation":                         {fields("", "metadata.annotations['a']"), ""},
	"a field that pods lack":                {fields("", "spec.bogus"), "valueFrom.fieldRef.fieldPath"},
	"no field":                              {fields("", ""), "valueFrom.fieldRef.fieldPath"},
	"all labels":                            {fields("", "metadata.labels"), "valueFrom.fieldRef.fieldPath"},
	"a label that cannot be":                {fields("", "metadata.labels['a b']"), "valueFrom.fieldRef.fieldPath"},
	"a member of a name":                    {fields("", "metadata.name['a']"), "valueFrom.fieldRef.fieldPath"},
	"a field of another version":            {fields("v2", "metadata.name"), "valueFrom.fieldRef.apiVersion"},
	"a resource":                            {shareOf("limits.cpu", "1m"), ""},
	"huge pages":                            {shareOf("requests.hugepages-2Mi", "1Mi"), ""},
	"a resource that pods lack":             {shareOf("limits.nvidia.com/gpu", ""), "valueFrom.resourceFieldRef.resource"},
	"a divisor of no unit":                  {shareOf("limits.memory", "3"), "valueFrom.resourceFieldRef.divisor"},
	"a divisor of another resource":         {shareOf("limits.cpu", "1Gi"), "valueFrom.resourceFieldRef.divisor"},
	"a secret that may be absent":           {secretKey("s", "k"), ""},
	"a secret without a name":               {secretKey("", "k"), "valueFrom.secretKeyRef.name"},
	"a key that cannot be":                  {secretKey("s", "a/b"), "valueFrom.secretKeyRef.key"},
	"a configuration":                       {configKey("c", "k.yaml"), ""},
	"a configuration without a name":        {configKey("", "k"), "valueFrom.configMapKeyRef.name"},
	"a file of a volume that pods may lack": {corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "v", Path: "a", Key: "K"}}, "valueFrom.fileKeyRef"},
	"a configuration without a key":         {configKey("c", ""), "valueFrom.configMapKeyRef.key"},
}

// What no pod may have would have the API server refuse every engine.
func TestVariablesOfOverridesAreThoseOfPods(t *testing.T) {
	for name, tc := range variableSources {
		t.Run(name, func(t *testing.T) {
			object := newBackend("b", overrides(v1alpha1.EngineOverrides{Env: []corev1.EnvVar{{Name: "A", ValueFrom: &tc.source}}}))
			place(object, "team")
			scheme := newScheme(t)
			handlers, err := webhook.Handlers(scheme, webhook.Options{Reader: fake.NewClientBuilder().WithScheme(scheme).Build()})
			if err != nil {
				t.Fatal(err)
			}
			answer := review(t, handlers[webhook.ValidatePath("cachebackend")], request(t, nil, object))
			if answer.Allowed != (tc.want == "") || !answer.Allowed && !strings.Contains(answer.Result.Message, tc.want) {
				t.Errorf("%+v, want a refusal with %q", answer, tc.want)
			}
		})
	}
}
