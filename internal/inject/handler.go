// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
)

// HandlerOptions of the pod webhooks. Live is required.
type HandlerOptions struct {
	Options
	// Live lists CacheBackends from the API server, and reads the namespaces
	// of NodeLocal backends; Cached is asked for the former before.
	// Default of Cached: Live.
	Live, Cached client.Reader
	// Resolve finds the storage of a backend and is asked once for a pod.
	// Default Bindings.
	Resolve func(context.Context, *v1alpha1.CacheBackend) (*adapter.Binding, error)
	// Now is the time. Default time.Now.
	Now func() time.Time
	// Registerer takes the metrics. Default none.
	Registerer prometheus.Registerer
	// Panicked is told of each panic; the pod is admitted as it is. Default
	// nobody.
	Panicked func()
	// Logger is silent when nil. It never sees more of a pod than its name.
	Logger *slog.Logger
}

// Handler answers the API server's questions about pods.
type Handler struct {
	options HandlerOptions
	total   *prometheus.CounterVec
	trials  trials
}

// NewHandler returns a handler.
func NewHandler(o HandlerOptions) *Handler {
	if o.Cached == nil {
		o.Cached = o.Live
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registry == nil {
		o.Registry = adapter.Core()
	}
	if o.Panicked == nil {
		o.Panicked = func() {}
	}
	h := &Handler{options: o, total: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "inferencecache_injection_total",
		Help: "Engine pods by what admission did with them; the reason is empty for pods that were wired without a warning.",
	}, []string{"result", "reason"})}
	for result, reasons := range outcomes() {
		for _, reason := range reasons {
			h.total.WithLabelValues(string(result), reason)
		}
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(h.total)
	}
	return h
}

// Inject serves pods that carry a cache domain.
func (h *Handler) Inject() (http.Handler, error) { return serve(h.inject) }

// Strip serves pods that carry stamps without a cache domain.
func (h *Handler) Strip() (http.Handler, error) {
	return serve(func(_ context.Context, request admission.Request) admission.Response {
		pod, err := decode(request)
		if err != nil {
			return admission.Allowed("the pod cannot be read")
		}
		stripped := pod.DeepCopy()
		Strip(stripped)
		return patch(pod, stripped)
	})
}

func serve(handle admission.HandlerFunc) (http.Handler, error) {
	return admission.StandaloneWebhook(&admission.Webhook{
		Handler: handle,
		// What is worth telling the handler tells itself.
		LogConstructor: func(logr.Logger, *admission.Request) logr.Logger { return logr.Discard() },
	}, admission.StandaloneOptions{})
}

// inject answers about one pod. Whatever goes wrong admits the pod.
func (h *Handler) inject(ctx context.Context, request admission.Request) (response admission.Response) {
	var pod *corev1.Pod
	dryRun := request.DryRun != nil && *request.DryRun
	outcome := Outcome{Result: Failed, Reason: ReasonInternalError, Message: "injection broke off"}
	defer func() {
		if fault := recover(); fault != nil {
			h.options.Logger.Error("recovered from a panic", "component", "webhook", "namespace", request.Namespace,
				"panic", fmt.Sprintf("%T", fault), "stack", string(debug.Stack()))
			h.options.Panicked()
			outcome = Outcome{Result: Failed, Reason: ReasonInternalError, Message: "injection broke off"}
			response = admission.Allowed(outcome.Message)
			if pod != nil {
				response = patch(pod, refuse(pod, nil, outcome))
			}
		}
		if !dryRun {
			h.count(outcome)
		}
	}()
	pod, err := decode(request)
	if err != nil {
		outcome.Message = "the pod cannot be read"
		return admission.Allowed(outcome.Message)
	}
	var result *corev1.Pod
	result, outcome = h.decide(ctx, pod, dryRun)
	if outcome.Result == Denied {
		return admission.Denied(outcome.Message)
	}
	h.log(pod, outcome)
	return patch(pod, result)
}

func (h *Handler) count(o Outcome) {
	reason := o.Reason
	if len(o.Warnings) > 0 {
		reason = o.Warnings[0]
	}
	h.total.WithLabelValues(string(o.Result), reason).Inc()
}

// CountUnseen counts a pod that was never asked about, for the reason that the
// reconciler found.
func (h *Handler) CountUnseen(reason string) {
	result := Skipped
	if reason == ReasonWebhookNotCalled {
		result = Failed
	}
	h.count(Outcome{Result: result, Reason: reason})
}

func (h *Handler) log(pod *corev1.Pod, o Outcome) {
	level := slog.LevelInfo
	if o.Result == Failed {
		level = slog.LevelWarn
	}
	name := pod.Name
	if name == "" {
		name = pod.GenerateName
	}
	h.options.Logger.Log(context.Background(), level, "decided about an engine pod",
		"namespace", pod.Namespace, "pod", name, "result", o.Result, "reason", o.Reason, "warnings", strings.Join(o.Warnings, ","))
}

// decide finds the backend of a pod and wires the pod for it.
func (h *Handler) decide(ctx context.Context, pod *corev1.Pod, dryRun bool) (*corev1.Pod, Outcome) {
	if OptedOut(pod) {
		outcome := skip(ReasonOptOut, "")
		return refuse(pod, nil, outcome), outcome
	}
	backends, err := h.backends(ctx, pod.Namespace, pod.Labels[v1alpha1.LabelCacheDomain])
	switch {
	case err != nil:
		outcome := Outcome{Result: Failed, Reason: ReasonBackendLookupFailed, Message: err.Error()}
		return refuse(pod, nil, outcome), outcome
	case len(backends) == 0:
		passed := pod.DeepCopy()
		Strip(passed)
		return passed, Outcome{Result: Passed, Reason: ReasonNoBackend}
	case len(backends) > 1:
		return pod, Outcome{Result: Denied, Reason: ReasonAmbiguous, Message: ambiguous(pod, backends)}
	}
	return h.guarded(pod, &backends[0], h.resolved(ctx), dryRun)
}

// resolved are the options for one pod, whose backend is resolved at most once.
func (h *Handler) resolved(ctx context.Context) Options {
	options := h.options.Options
	if options.PodSecurity == nil {
		options.PodSecurity = func(namespace string) (string, error) { return podSecurity(ctx, h.options.Live, namespace) }
	}
	if h.options.Resolve == nil {
		return options
	}
	var once sync.Once
	var binding *adapter.Binding
	var err error
	options.Bindings = func(backend *v1alpha1.CacheBackend) (*adapter.Binding, error) {
		once.Do(func() { binding, err = h.options.Resolve(ctx, backend) })
		return binding, err
	}
	return options
}

func ambiguous(pod *corev1.Pod, backends []v1alpha1.CacheBackend) string {
	names := make([]string, len(backends))
	for i := range backends {
		names[i] = backends[i].Name
	}
	slices.Sort(names)
	return fmt.Sprintf("CacheBackends %s all select %s=%s in namespace %s: give each a domain of its own, or set the annotation %s",
		strings.Join(names, ", "), v1alpha1.LabelCacheDomain, pod.Labels[v1alpha1.LabelCacheDomain], pod.Namespace, v1alpha1.AnnotationSkipInject)
}

// backends are those that select a domain. A cache that knows none may lag
// behind, so the API server is asked then.
func (h *Handler) backends(ctx context.Context, namespace, domain string) ([]v1alpha1.CacheBackend, error) {
	if domain == "" {
		return nil, nil
	}
	found, err := inDomain(ctx, h.options.Cached, namespace, domain)
	if err == nil && len(found) > 0 {
		return found, nil
	}
	return inDomain(ctx, h.options.Live, namespace, domain)
}

func inDomain(ctx context.Context, reader client.Reader, namespace, domain string) ([]v1alpha1.CacheBackend, error) {
	var list v1alpha1.CacheBackendList
	if err := reader.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list CacheBackends: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(b v1alpha1.CacheBackend) bool {
		selector := b.Spec.EngineSelector
		return b.DeletionTimestamp != nil || selector == nil || len(selector.MatchLabels) != 1 ||
			selector.MatchLabels[v1alpha1.LabelCacheDomain] != domain
	}), nil
}

// decode reads the pod of a request, which may not know its namespace yet.
func decode(request admission.Request) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := json.Unmarshal(request.Object.Raw, pod); err != nil {
		return nil, err
	}
	if pod.Namespace == "" {
		pod.Namespace = request.Namespace
	}
	return pod, nil
}

// patch admits a pod with its changes. Comparing what we read with what we
// made of it leaves alone what we do not know.
func patch(before, after *corev1.Pod) admission.Response {
	old, err := json.Marshal(before)
	if err != nil {
		return admission.Allowed("")
	}
	current, err := json.Marshal(after)
	if err != nil {
		return admission.Allowed("")
	}
	return admission.PatchResponseFromRaw(old, current)
}
