// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/webhook"
)

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return scheme
}

// place gives an object of a case its namespace.
func place(object client.Object, namespace string) {
	object.SetNamespace(namespace)
	if tenant, ok := object.(*v1alpha1.CacheTenant); ok && tenant.Spec.TenantID == ownNamespace {
		tenant.Spec.TenantID = namespace
	}
	if backend, ok := object.(*v1alpha1.CacheBackend); ok && backend.Spec.RemoteStorage != nil {
		backend.Spec.RemoteStorage.Endpoint = strings.ReplaceAll(backend.Spec.RemoteStorage.Endpoint, ownNamespace, namespace)
	}
}

// copies returns the objects of a case in a namespace.
func copies(tc admissionCase, namespace string) (existing []client.Object, old, object client.Object) {
	clone := func(o client.Object) client.Object {
		c := o.DeepCopyObject().(client.Object)
		place(c, namespace)
		return c
	}
	for _, o := range tc.existing {
		existing = append(existing, clone(o))
	}
	if tc.old != nil {
		old = clone(tc.old)
	}
	return existing, old, clone(tc.object)
}

// checkRefusals holds an answer against the parts wanted; a part with ! in
// front is not wanted.
func checkRefusals(t *testing.T, refusal string, want []string) {
	t.Helper()
	if len(want) == 0 && refusal != "" {
		t.Errorf("refused: %s", refusal)
	}
	if len(want) > 0 && refusal == "" {
		t.Errorf("admitted, want a refusal that says %q", want)
		return
	}
	for _, part := range want {
		part, unwanted := strings.CutPrefix(part, "!")
		if strings.Contains(refusal, part) == unwanted {
			t.Errorf("says %q: %t, want %t\nin: %s", part, unwanted, !unwanted, refusal)
		}
	}
}

// checkWarnings wants no warning of what is admitted but that of the case.
func checkWarnings(t *testing.T, tc admissionCase, warnings []string) {
	t.Helper()
	text := strings.Join(warnings, "\n")
	if !strings.Contains(text, tc.warning) || tc.warning == "" && tc.refusals == nil && text != "" {
		t.Errorf("warnings %q, want %q", text, tc.warning)
	}
}

// review posts an AdmissionReview as an API server does.
func review(t *testing.T, handler http.Handler, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	t.Helper()
	request.UID = "request"
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request,
	})
	if err != nil {
		t.Fatal(err)
	}
	post := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(body))
	post.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, post)
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Response
}

func raw(t *testing.T, object client.Object) runtime.RawExtension {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return runtime.RawExtension{Raw: text}
}

// kindOf is the kind in lower case, as in the webhooks' paths.
func kindOf(object client.Object) string {
	return strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", object), "*v1alpha1."))
}

func request(t *testing.T, old, object client.Object) *admissionv1.AdmissionRequest {
	t.Helper()
	r := &admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Namespace: object.GetNamespace(), Name: object.GetName(), Object: raw(t, object),
	}
	if old != nil {
		r.Operation, r.OldObject = admissionv1.Update, raw(t, old)
	}
	return r
}

func runCases(t *testing.T, cases map[string]admissionCase) { runCasesWith(t, adapter.Core(), cases) }

func runCasesWith(t *testing.T, registry *adapter.Registry, cases map[string]admissionCase) {
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scheme := newScheme(t)
			existing, old, object := copies(tc, "team")
			if old != nil {
				existing = append(existing, old)
			}
			handlers, err := webhook.Handlers(scheme, webhook.Options{
				Reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(existing...).Build(), TenantScope: tc.scope, Registry: registry,
			})
			if err != nil {
				t.Fatal(err)
			}
			if tc.deleting {
				object.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
			}
			answer := review(t, handlers[webhook.ValidatePath(kindOf(object))], request(t, old, object))
			refusal := ""
			if !answer.Allowed {
				refusal = answer.Result.Message
			}
			checkRefusals(t, refusal, tc.refusals)
			checkWarnings(t, tc, answer.Warnings)
		})
	}
}

func TestBackendRules(t *testing.T)             { runCases(t, backendCases) }
func TestResourceRules(t *testing.T)            { runCases(t, resourceCases) }
func TestUpdateRules(t *testing.T)              { runCases(t, updateCases) }
func TestPolicyAndTenantRules(t *testing.T)     { runCases(t, policyCases) }
func TestTemplateAndTopologyRules(t *testing.T) { runCases(t, templateCases) }

func TestNothingIsAdmittedUnchecked(t *testing.T) {
	scheme := newScheme(t)
	reader := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("the API server is away")
		},
	}).Build()
	registry := prometheus.NewRegistry()
	handlers, err := webhook.Handlers(scheme, webhook.Options{Reader: reader, Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range []client.Object{newBackend("b"), newPolicy("p"), newTenant("ct", "t")} {
		place(object, "team")
		answer := review(t, handlers[webhook.ValidatePath(kindOf(object))], request(t, nil, object))
		if answer.Allowed || !strings.Contains(answer.Result.Message, "the API server is away") || answer.Result.Code != http.StatusInternalServerError {
			t.Errorf("%s: %+v, want a refusal with the cause", kindOf(object), answer)
		}
	}
	if got := testutil.CollectAndCount(registry, "inferencecache_webhook_requests_total"); got != 3 {
		t.Errorf("%d series of answers, want one for each webhook", got)
	}
}

func TestPanicsAreAnsweredAndCounted(t *testing.T) {
	scheme := newScheme(t)
	reader := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			panic("broken")
		},
	}).Build()
	registry, panics := prometheus.NewRegistry(), 0
	handlers, err := webhook.Handlers(scheme, webhook.Options{Reader: reader, Registerer: registry, Panicked: func() { panics++ }})
	if err != nil {
		t.Fatal(err)
	}
	object := newPolicy("p")
	place(object, "team")
	if answer := review(t, handlers[webhook.ValidatePath("cachepolicy")], request(t, nil, object)); answer.Allowed || answer.Result.Code != http.StatusInternalServerError {
		t.Errorf("%+v, want a refusal", answer)
	}
	want := `
# HELP inferencecache_webhook_requests_total Admission requests for declared resources, by webhook and what became of them.
# TYPE inferencecache_webhook_requests_total counter
inferencecache_webhook_requests_total{reason="Panic",result="error",webhook="vcachepolicy"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "inferencecache_webhook_requests_total"); err != nil || panics != 1 {
		t.Errorf("%d panics are counted, %v", panics, err)
	}
}

func TestDefaulting(t *testing.T) {
	open := `"failOpen":true,"mode":"Offload","role":"ReadWrite"`
	for name, tc := range map[string]struct {
		spec, want string
	}{
		"an empty backend":           {`{"runtime":"VLLM"}`, `{"integration":{` + open + `},"observation":{"firstEventTimeout":"5m0s"},"runtime":"VLLM","type":"LMCache"}`},
		"what is set stays":          {`{"runtime":"SGLang","type":"Memory","integration":{"mode":"EventsOnly","failOpen":false},"observation":{"firstEventTimeout":"1m0s"}}`, `{"integration":{"failOpen":false,"mode":"EventsOnly","role":"ReadWrite"},"observation":{"firstEventTimeout":"1m0s"},"runtime":"SGLang","type":"Memory"}`},
		"injected events are local":  {`{"runtime":"VLLM","observation":{"kvEvents":{"inject":true}}}`, `{"integration":{` + open + `},"observation":{"firstEventTimeout":"5m0s","kvEvents":{"inject":true,"transport":"Loopback"}},"runtime":"VLLM","type":"LMCache"}`},
		"what is missing stays so":   {`{"observation":{"kvEvents":{"transport":"Loopback","loraAdapterNames":[{"name":"a"}]}}}`, `{"integration":{` + open + `},"observation":{"firstEventTimeout":"5m0s","kvEvents":{"loraAdapterNames":[{"name":"a"}],"transport":"Loopback"}},"type":"LMCache"}`},
		"what cannot be read stays":  {`{"runtime":7}`, `{"runtime":7}`},
		"no spec":                    {`null`, `null`},
		"an engine's own events not": {`{"runtime":"VLLM","observation":{"kvEvents":{}}}`, `{"integration":{` + open + `},"observation":{"firstEventTimeout":"5m0s","kvEvents":{"transport":"Wildcard"}},"runtime":"VLLM","type":"LMCache"}`},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := newScheme(t)
			handlers, err := webhook.Handlers(scheme, webhook.Options{Reader: fake.NewClientBuilder().WithScheme(scheme).Build()})
			if err != nil {
				t.Fatal(err)
			}
			object := []byte(`{"apiVersion":"inferencecache.io/v1alpha1","kind":"CacheBackend","metadata":{"name":"b","namespace":"team"},"spec":` + tc.spec + `}`)
			answer := review(t, handlers[webhook.DefaultPath("cachebackend")], &admissionv1.AdmissionRequest{
				Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: object},
			})
			if got := specAfter(t, object, answer.Patch); got != tc.want {
				t.Error(cmp.Diff(tc.want, got))
			}
		})
	}
}

// specAfter is the spec of an object after a patch, its members sorted.
func specAfter(t *testing.T, object, patch []byte) string {
	t.Helper()
	patched := object
	if len(patch) > 0 {
		operations, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			t.Fatal(err)
		}
		if patched, err = operations.Apply(object); err != nil {
			t.Fatal(err)
		}
	}
	var result struct{ Spec map[string]any }
	if err := json.Unmarshal(patched, &result); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(result.Spec)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// reserving supports everything and reserves some names.
type reserving struct{ adapter.Adapter }

func (reserving) Supports(v1alpha1.EngineRuntime, *v1alpha1.CacheBackend) bool { return true }
func (reserving) ReservedArgs() []string                                       { return []string{"--kv-transfer-config"} }
func (reserving) ReservedEnv() []string                                        { return []string{"PYTHONHASHSEED"} }

func TestReservedNamesStayTheIntegrations(t *testing.T) {
	scheme := newScheme(t)
	handlers, err := webhook.Handlers(scheme, webhook.Options{
		Reader: fake.NewClientBuilder().WithScheme(scheme).Build(), Registry: adapter.NewRegistry(reserving{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		overrides v1alpha1.EngineOverrides
		refusals  []string
	}{
		"a flag":                {v1alpha1.EngineOverrides{Args: []string{"--x", "--kv-transfer-config={}"}}, []string{"args[1]", "--kv-transfer-config belongs"}},
		"a suppressed flag":     {v1alpha1.EngineOverrides{SuppressArgs: []string{"--kv-transfer-config"}}, []string{"suppressArgs[0]"}},
		"a variable":            {v1alpha1.EngineOverrides{Env: []corev1.EnvVar{{Name: "PYTHONHASHSEED", Value: "1"}}}, []string{"env[0].name"}},
		"a suppressed variable": {v1alpha1.EngineOverrides{SuppressEnv: []string{"PYTHONHASHSEED"}}, []string{"suppressEnv[0]"}},
		"others":                {v1alpha1.EngineOverrides{Args: []string{"--seed=1", "kv"}, SuppressEnv: []string{"OTHER"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			object := newBackend("b", overrides(tc.overrides))
			answer := review(t, handlers[webhook.ValidatePath("cachebackend")], request(t, nil, object))
			refusal := ""
			if !answer.Allowed {
				refusal = answer.Result.Message
			}
			checkRefusals(t, refusal, tc.refusals)
		})
	}
}
