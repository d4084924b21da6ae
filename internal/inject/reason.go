// SPDX-License-Identifier: Apache-2.0

package inject

import "github.com/inferencecache/inference-cache/internal/adapter"

// Result is what became of a pod.
type Result string

// Results.
const (
	Injected Result = "injected"
	Skipped  Result = "skipped"
	Failed   Result = "failed"
	// Denied pods are selected by several backends.
	Denied Result = "denied"
	// Passed pods are selected by none.
	Passed Result = "passed"
)

// Reasons why a pod is not wired.
const (
	ReasonOptOut                  = "skip-inject-annotation"
	ReasonSubscriberImageUnset    = "subscriber-image-unset"
	ReasonModelIDUnset            = "model-id-unset"
	ReasonSidecarPresent          = "sidecar-present"
	ReasonAdapterUnsupported      = "adapter-unsupported"
	ReasonBindingUnsupported      = "binding-unsupported"
	ReasonEndpointUnresolved      = "endpoint-unresolved"
	ReasonEngineContainerNotFound = "engine-container-not-found"
	ReasonEngineArgsConflict      = adapter.ReasonEngineArgsConflict
	ReasonParallelism             = adapter.ReasonParallelism
	ReasonPageSizeMissing         = adapter.ReasonPageSizeMissing
	ReasonPageSizeMismatch        = adapter.ReasonPageSizeMismatch
	ReasonReservedNameConflict    = adapter.ReasonReservedNameConflict
	ReasonShmConflict             = adapter.ReasonShmConflict
	ReasonOSUnsupported           = "os-unsupported"
	ReasonPodSecurity             = "pod-security"
	ReasonBreakerOpen             = "breaker-open"
	ReasonBackendLookupFailed     = "backend-lookup-failed"
	ReasonInternalError           = "internal-error"
	// Of pods that the webhook never saw; the reconciler finds them.
	ReasonPredatesBackend   = "predates-backend"
	ReasonNamespaceExcluded = "namespace-excluded"
	ReasonWebhookNotCalled  = "webhook-not-called"
	ReasonAmbiguous         = "ambiguous-backends"
	ReasonNoBackend         = "no-backend"
)

// Warnings about pods that are wired.
const (
	WarnKVEventsConfigMissing    = "kv-events-config-missing"
	WarnKVEventsDisabled         = "kv-events-disabled"
	WarnKVEventsConfigUnreadable = "kv-events-config-unreadable"
	WarnEngineCommandOpaque      = "engine-command-opaque"
	WarnPrefixCachingOff         = "prefix-caching-off"
	WarnPageSizeOne              = "page-size-one"
	WarnHostNetwork              = "host-network"
)

// Outcome is what became of a pod, and why.
type Outcome struct {
	Result Result
	// Reason is the code of a pod that is not wired; empty if it is.
	Reason string
	// Message explains the reason to people.
	Message string
	// Warnings are codes, in the order of the constants.
	Warnings []string
}

func skip(reason, message string) Outcome {
	return Outcome{Result: Skipped, Reason: reason, Message: message}
}

// outcomes are all that may become of a pod, by result: the reason of one that
// is not wired, the first warning of one that is.
func outcomes() map[Result][]string {
	return map[Result][]string{
		Injected: {
			"", WarnKVEventsConfigMissing, WarnKVEventsDisabled, WarnKVEventsConfigUnreadable, WarnEngineCommandOpaque,
			WarnPrefixCachingOff, WarnPageSizeOne, WarnHostNetwork,
		},
		Skipped: {
			ReasonOptOut, ReasonSubscriberImageUnset, ReasonModelIDUnset, ReasonSidecarPresent, ReasonAdapterUnsupported,
			ReasonBindingUnsupported, ReasonEndpointUnresolved, ReasonEngineContainerNotFound, ReasonEngineArgsConflict,
			ReasonParallelism, ReasonPageSizeMissing, ReasonPageSizeMismatch, ReasonReservedNameConflict, ReasonShmConflict,
			ReasonOSUnsupported, ReasonPodSecurity, ReasonBreakerOpen, ReasonPredatesBackend, ReasonNamespaceExcluded,
		},
		Failed: {ReasonBackendLookupFailed, ReasonInternalError, ReasonWebhookNotCalled},
		Denied: {ReasonAmbiguous},
		Passed: {ReasonNoBackend},
	}
}
