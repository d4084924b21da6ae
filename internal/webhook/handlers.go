// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
)

// TenantScope says which tenant ids a CacheTenant may name.
type TenantScope string

// Tenant scopes.
const (
	// TenantScopeCluster admits every id.
	TenantScopeCluster TenantScope = "cluster"
	// TenantScopeNamespace admits only the namespace's name.
	TenantScopeNamespace TenantScope = "namespace"
)

// ParseTenantScope reads a flag's value.
func ParseTenantScope(text string) (TenantScope, error) {
	switch scope := TenantScope(text); scope {
	case TenantScopeCluster, TenantScopeNamespace:
		return scope, nil
	}
	return "", fmt.Errorf("tenant id scope %q: cluster or namespace expected", text)
}

// Options of the webhooks. Reader is required.
type Options struct {
	// Reader lists the resources. It must ask the API server: a cache lags
	// behind the writes that are compared.
	Reader client.Reader
	// Registry says which backends are supported. Default adapter.Core.
	Registry *adapter.Registry
	// TenantScope bounds tenant ids. Default TenantScopeCluster.
	TenantScope TenantScope
	// Registerer takes the metrics. Default none.
	Registerer prometheus.Registerer
	// Panicked is told of each panic; the API server gets an error. Default
	// nobody.
	Panicked func()
}

// Kinds with a defaulting webhook, and those with a validating one.
var (
	defaultedKinds = []string{"cachebackend", "cachepolicy", "cachetenant"}
	validatedKinds = []string{"cachebackend", "cachepolicy", "cachetenant", "prompttemplate", "pdtopology"}
)

// DefaultPath and ValidatePath are where the webhooks of a kind, in lower
// case, are served.
func DefaultPath(kind string) string { return "/mutate-inferencecache-io-v1alpha1-" + kind }

// ValidatePath is where a kind is validated.
func ValidatePath(kind string) string { return "/validate-inferencecache-io-v1alpha1-" + kind }

// Handlers returns the webhooks of the declared resources by path.
func Handlers(scheme *runtime.Scheme, o Options) (map[string]http.Handler, error) {
	if o.Registry == nil {
		o.Registry = adapter.Core()
	}
	if o.Panicked == nil {
		o.Panicked = func() {}
	}
	requests := newRequests(o)
	handlers := map[string]http.Handler{}
	add := func(path string, hook *admission.Webhook) error {
		hook.Handler = requests.count(path, hook.Handler)
		hook.LogConstructor = func(logr.Logger, *admission.Request) logr.Logger { return logr.Discard() } // answers are counted
		handler, err := admission.StandaloneWebhook(hook, admission.StandaloneOptions{})
		handlers[path] = handler
		return err
	}
	backends := backendRules{o.Registry, o.Reader}
	policies := policyRules{o.Reader}
	tenants := tenantRules{o.Reader, o.TenantScope}
	for path, hook := range map[string]*admission.Webhook{
		DefaultPath("cachebackend"): {Handler: admission.HandlerFunc(defaultBackends)},
		DefaultPath("cachepolicy"):  {Handler: admission.HandlerFunc(defaultNothing)},
		DefaultPath("cachetenant"):  {Handler: admission.HandlerFunc(defaultNothing)},
		ValidatePath("cachebackend"): admission.WithValidator[*v1alpha1.CacheBackend](scheme,
			validator[*v1alpha1.CacheBackend]{"CacheBackend", backends.judge, backends.compare}),
		ValidatePath("cachepolicy"): admission.WithValidator[*v1alpha1.CachePolicy](scheme,
			validator[*v1alpha1.CachePolicy]{"CachePolicy", policies.judge, policies.compare}),
		ValidatePath("cachetenant"): admission.WithValidator[*v1alpha1.CacheTenant](scheme,
			validator[*v1alpha1.CacheTenant]{"CacheTenant", tenants.judge, tenants.compare}),
		ValidatePath("prompttemplate"): admission.WithValidator[*v1alpha1.PromptTemplate](scheme,
			validator[*v1alpha1.PromptTemplate]{"PromptTemplate", judgeTemplate, nil}),
		ValidatePath("pdtopology"): admission.WithValidator[*v1alpha1.PDTopology](scheme,
			validator[*v1alpha1.PDTopology]{"PDTopology", judgeTopology, nil}),
	} {
		if err := add(path, hook); err != nil {
			return nil, fmt.Errorf("serve %s: %w", path, err)
		}
	}
	return handlers, nil
}

// requests counts what the webhooks answer.
type requests struct {
	total    *prometheus.CounterVec
	panicked func()
}

func newRequests(o Options) requests {
	r := requests{panicked: o.Panicked, total: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "inferencecache_webhook_requests_total",
		Help: "Admission requests for declared resources, by webhook and what became of them.",
	}, []string{"webhook", "result", "reason"})}
	if o.Registerer != nil {
		o.Registerer.MustRegister(r.total)
	}
	return r
}

func (r requests) count(path string, next admission.Handler) admission.Handler {
	name := path[strings.LastIndex(path, "-")+1:]
	if strings.HasPrefix(path, "/mutate") {
		name = "m" + name
	} else {
		name = "v" + name
	}
	return admission.HandlerFunc(func(ctx context.Context, request admission.Request) admission.Response {
		defer func() {
			if fault := recover(); fault != nil {
				r.total.WithLabelValues(name, "error", "Panic").Inc()
				r.panicked()
				panic(fault) // whoever calls it logs and answers
			}
		}()
		response := next.Handle(ctx, request)
		result, reason := "allowed", ""
		if !response.Allowed {
			result, reason = "denied", "unknown"
			if response.Result != nil {
				if response.Result.Code >= http.StatusInternalServerError || response.Result.Code == http.StatusBadRequest {
					result = "error"
				}
				if response.Result.Reason != "" {
					reason = string(response.Result.Reason)
				}
			}
		}
		r.total.WithLabelValues(name, result, reason).Inc()
		return response
	})
}
