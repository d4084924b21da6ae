// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
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
	"github.com/inferencecache/inference-cache/internal/inject"
)

// harness is a handler over some backends.
type harness struct {
	*inject.Handler
	registry *prometheus.Registry
}

func newReader(t *testing.T, fault error, backends ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(backends...)
	if fault != nil {
		builder = builder.WithInterceptorFuncs(interceptor.Funcs{
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return fault },
		})
	}
	return builder.Build()
}

func newHarness(o inject.HandlerOptions) harness {
	h := harness{registry: prometheus.NewRegistry()}
	o.Registerer = h.registry
	h.Handler = inject.NewHandler(o)
	return h
}

// answer asks about a pod and returns it as it is admitted.
func answer(t *testing.T, handler http.Handler, object []byte, changes ...func(*admissionv1.AdmissionRequest)) (*admissionv1.AdmissionResponse, *corev1.Pod) {
	t.Helper()
	asked := &admissionv1.AdmissionRequest{UID: "1", Namespace: "team", Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: object}}
	for _, change := range changes {
		change(asked)
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: asked,
	})
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(recorder.Body.Bytes(), &review); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if len(review.Response.Patch) > 0 {
		operations, err := jsonpatch.DecodePatch(review.Response.Patch)
		if err != nil {
			t.Fatal(err)
		}
		if object, err = operations.Apply(object); err != nil {
			t.Fatal(err)
		}
	}
	if err := json.Unmarshal(object, pod); err != nil {
		t.Fatal(err)
	}
	return review.Response, pod
}

func (h harness) ask(t *testing.T, pod *corev1.Pod) (*admissionv1.AdmissionResponse, *corev1.Pod) {
	t.Helper()
	handler, err := h.Inject()
	if err != nil {
		t.Fatal(err)
	}
	pod = pod.DeepCopy()
	pod.Namespace = "" // as requests have it
	object, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return answer(t, handler, object)
}

// counted wants one pod with this outcome, and no other.
func (h harness) counted(t *testing.T, result, reason string) {
	t.Helper()
	outcomes := h.outcomes(t)
	for outcome, pods := range outcomes {
		if want := outcome == [2]string{result, reason}; want && pods != 1 || !want && pods != 0 {
			t.Errorf("%v pods are counted as %v, want one as %s, %q", pods, outcome, result, reason)
		}
	}
	if _, ok := outcomes[[2]string{result, reason}]; !ok {
		t.Errorf("no pod is counted as %s, %q", result, reason)
	}
}

// outcomes are the pods counted by result and reason.
func (h harness) outcomes(t *testing.T) map[[2]string]float64 {
	t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[[2]string]float64{}
	for _, family := range families {
		if family.GetName() != "inferencecache_injection_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			var outcome [2]string
			for _, label := range metric.GetLabel() {
				outcome[map[string]int{"result": 0, "reason": 1}[label.GetName()]] = label.GetValue()
			}
			counted[outcome] = metric.GetCounter().GetValue()
		}
	}
	return counted
}

// Without a series at 0 the first pod of a reason is no increase.
func TestEveryOutcomeIsCountedFromTheStart(t *testing.T) {
	counted := newHarness(inject.HandlerOptions{Options: options(), Live: newReader(t, nil)}).outcomes(t)
	for outcome, pods := range counted {
		if pods != 0 {
			t.Errorf("%v starts at %v", outcome, pods)
		}
	}
	want := [][2]string{
		{"injected", ""}, {"denied", inject.ReasonAmbiguous}, {"passed", inject.ReasonNoBackend},
		{"failed", inject.ReasonBackendLookupFailed}, {"failed", inject.ReasonInternalError}, {"failed", inject.ReasonWebhookNotCalled},
	}
	for _, reason := range []string{
		inject.ReasonOptOut, inject.ReasonSubscriberImageUnset, inject.ReasonModelIDUnset, inject.ReasonSidecarPresent, inject.ReasonAdapterUnsupported,
		inject.ReasonBindingUnsupported, inject.ReasonEndpointUnresolved, inject.ReasonEngineContainerNotFound, inject.ReasonEngineArgsConflict,
		inject.ReasonParallelism, inject.ReasonPageSizeMissing, inject.ReasonPageSizeMismatch, inject.ReasonReservedNameConflict, inject.ReasonShmConflict,
		inject.ReasonOSUnsupported, inject.ReasonPodSecurity, inject.ReasonBreakerOpen, inject.ReasonPredatesBackend, inject.ReasonNamespaceExcluded,
	} {
		want = append(want, [2]string{"skipped", reason})
	}
	for _, warning := range []string{
		inject.WarnKVEventsConfigMissing, inject.WarnKVEventsDisabled, inject.WarnKVEventsConfigUnreadable, inject.WarnEngineCommandOpaque,
		inject.WarnPrefixCachingOff, inject.WarnPageSizeOne, inject.WarnHostNetwork,
	} {
		want = append(want, [2]string{"injected", warning})
	}
	for _, outcome := range want {
		if _, ok := counted[outcome]; !ok {
			t.Errorf("no series for %v", outcome)
		}
	}
	if len(counted) != len(want) {
		t.Errorf("%d series, want %d", len(counted), len(want))
	}
}

func forged(p *corev1.Pod) {
	p.Annotations = map[string]string{v1alpha1.AnnotationInjectedBy: "team/cache", v1alpha1.AnnotationInjectedByUID: "4c1f", "mine": "kept"}
}

func optOut(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { forged(p); p.Annotations[v1alpha1.AnnotationSkipInject] = value }
}

func named(name string) func(*v1alpha1.CacheBackend) {
	return func(b *v1alpha1.CacheBackend) { b.Name, b.UID = name, "" }
}

func TestDecisions(t *testing.T) {
	for name, tc := range map[string]struct {
		backends       []client.Object
		pod            func(*corev1.Pod)
		fault          error
		registry       *adapter.Registry
		result, reason string
	}{
		"one backend":                    {backends: []client.Object{newBackend(vllm)}, result: "injected"},
		"one backend and a warning":      {backends: []client.Object{newBackend(vllm)}, pod: func(p *corev1.Pod) { p.Spec.HostNetwork = true }, result: "injected", reason: "host-network"},
		"forged stamps of another":       {backends: []client.Object{newBackend(vllm)}, pod: forged, result: "injected"},
		"no backend":                     {pod: forged, result: "passed", reason: "no-backend"},
		"a backend of another domain":    {backends: []client.Object{newBackend(vllm)}, pod: func(p *corev1.Pod) { forged(p); p.Labels[v1alpha1.LabelCacheDomain] = "e" }, result: "passed", reason: "no-backend"},
		"a backend of another namespace": {backends: []client.Object{newBackend(vllm, func(b *v1alpha1.CacheBackend) { b.Namespace = "other" })}, result: "passed", reason: "no-backend"},
		"two backends":                   {backends: []client.Object{newBackend(vllm), newBackend(vllm, named("second"))}, result: "denied", reason: "ambiguous-backends"},
		"a lookup that fails":            {fault: errors.New("the API server is away"), pod: forged, result: "failed", reason: "backend-lookup-failed"},
		"a pod that opts out":            {backends: []client.Object{newBackend(vllm)}, pod: optOut("true"), result: "skipped", reason: "skip-inject-annotation"},
		"an opt-out in other words":      {backends: []client.Object{newBackend(vllm)}, pod: optOut("please"), result: "skipped", reason: "skip-inject-annotation"},
		"an opt-out that says no":        {backends: []client.Object{newBackend(vllm)}, pod: optOut("Disabled"), result: "injected"},
		"an opt-out that says no widely": {backends: []client.Object{newBackend(vllm)}, pod: optOut(" FALSE\n"), result: "injected"},
		"an opt-out of white space":      {backends: []client.Object{newBackend(vllm)}, pod: optOut(" \t"), result: "injected"},
		"an opt-out among white space":   {backends: []client.Object{newBackend(vllm)}, pod: optOut(" True "), result: "skipped", reason: "skip-inject-annotation"},
		"an engine that starts first": {backends: []client.Object{newBackend(vllm)}, pod: func(p *corev1.Pod) {
			p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, []corev1.Container{{Name: "proxy"}}
		}, result: "skipped", reason: "engine-container-not-found"},
		"an adapter that breaks":        {backends: []client.Object{newBackend(vllm)}, registry: adapter.NewRegistry(nil), pod: forged, result: "failed", reason: "internal-error"},
		"an opt-out beats two backends": {backends: []client.Object{newBackend(vllm), newBackend(vllm, named("second"))}, pod: optOut("1"), result: "skipped", reason: "skip-inject-annotation"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(inject.HandlerOptions{Options: options(), Live: newReader(t, tc.fault, tc.backends...)})
			if tc.registry != nil {
				o := options()
				o.Registry = tc.registry
				h = newHarness(inject.HandlerOptions{Options: o, Live: newReader(t, tc.fault, tc.backends...)})
			}
			pod := newPod(vllm)
			if tc.pod != nil {
				tc.pod(pod)
			}
			response, got := h.ask(t, pod)
			h.counted(t, tc.result, tc.reason)
			if response.Allowed != (tc.result != "denied") {
				t.Fatalf("allowed %t: %+v", response.Allowed, response.Result)
			}
			switch tc.result {
			case "denied":
				if !strings.Contains(response.Result.Message, "cache, second") {
					t.Errorf("the answer does not name the backends: %s", response.Result.Message)
				}
				return
			case "injected":
				if got.Annotations[v1alpha1.AnnotationInjectedByUID] != "4c1f" || got.Annotations[v1alpha1.AnnotationInjectedConfigHash] == "" {
					t.Errorf("stamps are %v", got.Annotations)
				}
				return
			}
			if got.Annotations[v1alpha1.AnnotationInjectedBy] != "" || got.Annotations[v1alpha1.AnnotationInjectedByUID] != "" {
				t.Errorf("forged stamps stay: %v", got.Annotations)
			}
			if diff := cmp.Diff(pod.Spec, got.Spec); diff != "" {
				t.Errorf("the pod was changed:\n%s", diff)
			}
			if want := tc.reason; tc.result != "passed" && got.Annotations[v1alpha1.AnnotationInjectSkipped] != want {
				t.Errorf("reason on the pod %q, want %q", got.Annotations[v1alpha1.AnnotationInjectSkipped], want)
			}
		})
	}
}

func TestACacheThatLagsIsNotBelieved(t *testing.T) {
	h := newHarness(inject.HandlerOptions{Options: options(), Cached: newReader(t, nil), Live: newReader(t, nil, newBackend(vllm))})
	h.ask(t, newPod(vllm))
	h.counted(t, "injected", "")
}

func TestACacheThatKnowsSpares(t *testing.T) {
	h := newHarness(inject.HandlerOptions{
		Options: options(), Cached: newReader(t, nil, newBackend(vllm)), Live: newReader(t, errors.New("asked")),
	})
	h.ask(t, newPod(vllm))
	h.counted(t, "injected", "")
}

func TestFieldsWeDoNotKnowStay(t *testing.T) {
	h := newHarness(inject.HandlerOptions{Options: options(), Live: newReader(t, nil, newBackend(vllm))})
	handler, err := h.Inject()
	if err != nil {
		t.Fatal(err)
	}
	object := []byte(`{"metadata":{"generateName":"e-","labels":{"inferencecache.io/cache-domain":"d"}},` +
		`"spec":{"later":{"field":1},"containers":[{"name":"vllm","image":"x","command":["vllm"],"newer":true}]}}`)
	response, _ := answer(t, handler, object)
	if len(response.Patch) == 0 || bytes.Contains(response.Patch, []byte("later")) || bytes.Contains(response.Patch, []byte("newer")) {
		t.Errorf("the patch touches what is not ours: %s", response.Patch)
	}
}

func TestAPodThatCannotBeReadIsAdmitted(t *testing.T) {
	h := newHarness(inject.HandlerOptions{Options: options(), Live: newReader(t, nil)})
	handler, err := h.Inject()
	if err != nil {
		t.Fatal(err)
	}
	response, _ := answer(t, handler, []byte(`{"spec":{}}`))
	if !response.Allowed {
		t.Error("a pod without a label was refused")
	}
	body := strings.NewReader(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1","object":{"spec":7}}}`)
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", body)
	request.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	if !strings.Contains(recorder.Body.String(), `"allowed":true`) {
		t.Errorf("answer %s, want admitted", recorder.Body)
	}
}

func TestBreakerHoldsThePublisherBack(t *testing.T) {
	backend := newBackend(vllm)
	a, _ := adapter.Core().For(backend)
	hash, err := inject.ConfigHash(backend, a, nil)
	if err != nil {
		t.Fatal(err)
	}
	opened := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		change func(*v1alpha1.InjectionBreaker)
		// results of pods 1, 10, 11 and 21 minutes after it opened
		want []string
	}{
		"open":                {func(*v1alpha1.InjectionBreaker) {}, []string{"breaker-open", "", "breaker-open", ""}},
		"closed":              {func(b *v1alpha1.InjectionBreaker) { b.Open = false }, []string{"", "", "", ""}},
		"for another image":   {func(b *v1alpha1.InjectionBreaker) { b.Image = "other" }, []string{"", "", "", ""}},
		"for an older wiring": {func(b *v1alpha1.InjectionBreaker) { b.ConfigHash = "0" }, []string{"", "", "", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			b := backend.DeepCopy()
			breaker := &v1alpha1.InjectionBreaker{Open: true, Reason: "ImagePullBackOff", Since: &metav1.Time{Time: opened}, Image: options().Image, ConfigHash: hash}
			tc.change(breaker)
			b.Status.Injection = &v1alpha1.InjectionStatus{Breaker: breaker}
			now := opened
			h := newHarness(inject.HandlerOptions{Options: options(), Live: newReader(t, nil, b), Now: func() time.Time { return now }})
			for i, minutes := range []time.Duration{1, 10, 11, 21} {
				now = opened.Add(minutes * time.Minute)
				_, got := h.ask(t, newPod(vllm))
				if reason := got.Annotations[v1alpha1.AnnotationInjectSkipped]; reason != tc.want[i] {
					t.Errorf("after %d minutes: reason %q, want %q", minutes, reason, tc.want[i])
				}
			}
		})
	}
}

func TestPanicsAdmitThePodAndAreCounted(t *testing.T) {
	panics := 0
	broken := func(string) (string, error) { panic("broken") }
	o := options()
	allAdapters(&o)
	o.PodSecurity = broken
	h := newHarness(inject.HandlerOptions{Options: o, Live: newReader(t, nil, newBackend(vllm, nodeLocal)), Panicked: func() { panics++ }})
	pod := newPod(vllm)
	answer, admitted := h.ask(t, pod)
	if !answer.Allowed || admitted.Annotations[v1alpha1.AnnotationInjectSkipped] != inject.ReasonInternalError || !cmp.Equal(admitted.Spec, pod.Spec) {
		t.Errorf("%+v %v", answer, admitted.Annotations)
	}
	h.counted(t, "failed", inject.ReasonInternalError)
	if panics != 1 {
		t.Errorf("%d panics are counted", panics)
	}
}

func TestPodsNeverAskedAboutAreCounted(t *testing.T) {
	h := newHarness(inject.HandlerOptions{Options: options(), Live: newReader(t, nil)})
	for reason, result := range map[string]string{
		inject.ReasonPredatesBackend: "skipped", inject.ReasonNamespaceExcluded: "skipped", inject.ReasonWebhookNotCalled: "failed",
	} {
		h.CountUnseen(reason)
		h.counted(t, result, reason)
		h = newHarness(inject.HandlerOptions{Options: options(), Live: newReader(t, nil)})
	}
}

// Replicas of the webhook know of each other's trials by the status; what was
// not wired is no trial.
func TestBreakerTrialsAreBounded(t *testing.T) {
	backend := newBackend(vllm)
	a, _ := adapter.Core().For(backend)
	hash, err := inject.ConfigHash(backend, a, nil)
	if err != nil {
		t.Fatal(err)
	}
	opened := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	breaker := &v1alpha1.InjectionBreaker{Open: true, Reason: "ImagePullBackOff", Since: &metav1.Time{Time: opened}, Image: options().Image, ConfigHash: hash}
	backend.Status.Injection = &v1alpha1.InjectionStatus{Breaker: breaker}
	var (
		now   = opened.Add(10 * time.Minute)
		clock = func() time.Time { return now }
		mine  = newHarness(inject.HandlerOptions{Options: options(), Live: newReader(t, nil, backend), Now: clock})
		want  = func(h harness, what, reason string, pod *corev1.Pod) {
			t.Helper()
			_, got := h.ask(t, pod)
			if got := got.Annotations[v1alpha1.AnnotationInjectSkipped]; got != reason {
				t.Errorf("%s: reason %q, want %q", what, got, reason)
			}
		}
	)
	handler, err := mine.Inject()
	if err != nil {
		t.Fatal(err)
	}
	object, err := json.Marshal(newPod(vllm))
	if err != nil {
		t.Fatal(err)
	}
	if _, got := answer(t, handler, object, func(r *admissionv1.AdmissionRequest) { r.DryRun = ptr(true) }); got.Annotations[v1alpha1.AnnotationInjectSkipped] != "" {
		t.Error("a dry run does not show the trial")
	}
	want(mine, "a pod that cannot be wired", "breaker-open", newPod(vllm, shapes["existing-sidecar"]))
	want(mine, "the trial", "", newPod(vllm))
	want(mine, "the next pod", "breaker-open", newPod(vllm))

	breaker.LastTrialAt = &metav1.Time{Time: now}
	others := newHarness(inject.HandlerOptions{Options: options(), Live: newReader(t, nil, backend), Now: clock})
	want(others, "another replica that knows of the trial", "breaker-open", newPod(vllm))
	now = now.Add(10 * time.Minute)
	want(others, "its own trial", "", newPod(vllm))
}

func TestStampsWithoutADomainAreTakenOff(t *testing.T) {
	h := newHarness(inject.HandlerOptions{Options: options(), Live: newReader(t, errors.New("asked"))})
	handler, err := h.Strip()
	if err != nil {
		t.Fatal(err)
	}
	pod := newPod(vllm, optOut("true"))
	delete(pod.Labels, v1alpha1.LabelCacheDomain)
	object, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	_, got := answer(t, handler, object)
	want := map[string]string{"mine": "kept", v1alpha1.AnnotationSkipInject: "true"}
	if diff := cmp.Diff(want, got.Annotations); diff != "" {
		t.Error(diff)
	}
}
