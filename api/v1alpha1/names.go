// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Labels and annotations.
const (
	// LabelCacheDomain on an engine pod names its compatibility domain; the
	// only key an engine selector may use.
	LabelCacheDomain = "inferencecache.io/cache-domain"
	// LabelInjection on a namespace with value "disabled" keeps the pod
	// webhook away.
	LabelInjection = "inferencecache.io/injection"

	// AnnotationInjectedBy is <namespace>/<name> of the CacheBackend.
	AnnotationInjectedBy = "inferencecache.io/injected-by"
	// AnnotationInjectedByUID is the UID of that CacheBackend.
	AnnotationInjectedByUID = "inferencecache.io/injected-by-uid"
	// AnnotationInjectedGeneration is its generation at admission, for people.
	AnnotationInjectedGeneration = "inferencecache.io/injected-generation"
	// AnnotationInjectedConfigHash says with which configuration the pod was
	// wired: 16 hexadecimal digits.
	AnnotationInjectedConfigHash = "inferencecache.io/injected-config-hash"

	// AnnotationSkipInject opts a pod out of injection.
	AnnotationSkipInject = "inferencecache.io/skip-inject"
	// AnnotationInjectSkipped is the reason code why a pod was not injected.
	AnnotationInjectSkipped = "inferencecache.io/inject-skipped"
	// AnnotationInjectSkippedBy is the CacheBackend that would have injected.
	AnnotationInjectSkippedBy = "inferencecache.io/inject-skipped-by"
	// AnnotationInjectMessage explains the reason code in at most 256 bytes.
	AnnotationInjectMessage = "inferencecache.io/inject-message"
	// AnnotationInjectWarnings lists the codes of findings that did not stop
	// the injection, separated by commas.
	AnnotationInjectWarnings = "inferencecache.io/inject-warnings"

	// AnnotationRequireKVEvents with value "false" on a CacheBackend waives
	// the gate on KV events.
	AnnotationRequireKVEvents = "inferencecache.io/require-kv-events"
	// AnnotationSkipFunctionalProbe with value "true" on a CacheBackend waives
	// the functional probe.
	AnnotationSkipFunctionalProbe = "inferencecache.io/skip-functional-probe"
)

// Condition types.
const (
	ConditionReady             = "Ready"
	ConditionProgressing       = "Progressing"
	ConditionDegraded          = "Degraded"
	ConditionFunctionalProbeOK = "FunctionalProbeOK"
	ConditionInjectionHealthy  = "InjectionHealthy"
	ConditionReplicasReporting = "ReplicasReporting"
	ConditionAccepted          = "Accepted"
	ConditionProgrammed        = "Programmed"
	ConditionQuotaExceeded     = "QuotaExceeded"
	ConditionStablePrefix      = "StablePrefix"
	ConditionResolved          = "Resolved"
)

// CacheIndexName is the name of the only CacheIndex.
const CacheIndexName = "cluster-default"

// StampAnnotations are the annotations that only admission writes, at the
// creation of a pod.
func StampAnnotations() []string {
	return []string{
		AnnotationInjectedBy, AnnotationInjectedByUID, AnnotationInjectedGeneration, AnnotationInjectedConfigHash,
		AnnotationInjectSkipped, AnnotationInjectSkippedBy, AnnotationInjectMessage, AnnotationInjectWarnings,
	}
}
