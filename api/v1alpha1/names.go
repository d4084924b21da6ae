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
	// AnnotationInjectedServerHash says for which configuration of a NodeLocal
	// server the pod was wired: the AnnotationNodeLocalConfigHash of servers
	// that it can use.
	AnnotationInjectedServerHash = "inferencecache.io/injected-server-hash"

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
	// AnnotationKernelCheck on a CacheBackend is the mode of the check of
	// LMCache's kernels.
	AnnotationKernelCheck = "inferencecache.io/lmcache-kernel-check"

	// LabelLMCacheMetrics with value "true" is on pods with an LMCache server,
	// for scrapers.
	LabelLMCacheMetrics = "inferencecache.io/lmcache-mp-metrics"
	// LabelLMCacheNodeServer and LabelCacheBackendUID are on NodeLocal servers.
	LabelLMCacheNodeServer = "inferencecache.io/lmcache-node-server"
	LabelCacheBackendUID   = "inferencecache.io/cache-backend-uid"

	// Annotations of NodeLocal servers.
	AnnotationNodeLocalOwner      = "inferencecache.io/node-local-owner"
	AnnotationNodeLocalOwnerUID   = "inferencecache.io/node-local-owner-uid"
	AnnotationNodeLocalGeneration = "inferencecache.io/node-local-generation"
	AnnotationNodeLocalTargetNode = "inferencecache.io/node-local-target-node"
	AnnotationNodeLocalShmName    = "inferencecache.io/node-local-shm-name"
	AnnotationNodeLocalIdleSince  = "inferencecache.io/node-local-idle-since"
	AnnotationNodeLocalConfigHash = "inferencecache.io/node-local-config-hash"
	// AnnotationNodeLocalFailures counts the servers of a node that ended one
	// soon after the other.
	AnnotationNodeLocalFailures = "inferencecache.io/node-local-failures"
	// AnnotationNodeLocalReplace with value "now" replaces a server although
	// engines use it.
	AnnotationNodeLocalReplace = "inferencecache.io/node-local-replace"
)

// KernelCheckMode is a value of AnnotationKernelCheck.
type KernelCheckMode string

// Kernel check modes.
const (
	// KernelCheckAuto checks engines with an nvidia.com/gpu; the default.
	KernelCheckAuto KernelCheckMode = "auto"
	// KernelCheckReportOnly checks every engine.
	KernelCheckReportOnly KernelCheckMode = "report-only"
	// KernelCheckStrict keeps engines with broken kernels from starting.
	KernelCheckStrict KernelCheckMode = "strict"
	// KernelCheckOff checks none.
	KernelCheckOff KernelCheckMode = "off"
)

// KernelCheck is the mode of a backend's annotation. One that is no mode
// counts as auto.
func KernelCheck(b *CacheBackend) KernelCheckMode {
	switch mode := KernelCheckMode(b.Annotations[AnnotationKernelCheck]); mode {
	case KernelCheckReportOnly, KernelCheckStrict, KernelCheckOff:
		return mode
	}
	return KernelCheckAuto
}

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

	ConditionConnectorReady       = "ConnectorReady"
	ConditionRemoteStorageReady   = "RemoteStorageReady"
	ConditionEngineKernelsHealthy = "EngineKernelsHealthy"
	ConditionEngineCompatibility  = "EngineCompatibility"
	ConditionT2Degraded           = "T2Degraded"
)

// CacheIndexName is the name of the only CacheIndex.
const CacheIndexName = "cluster-default"

// StampAnnotations are the annotations that only admission writes, at the
// creation of a pod.
func StampAnnotations() []string {
	return []string{
		AnnotationInjectedBy, AnnotationInjectedByUID, AnnotationInjectedGeneration, AnnotationInjectedConfigHash, AnnotationInjectedServerHash,
		AnnotationInjectSkipped, AnnotationInjectSkippedBy, AnnotationInjectMessage, AnnotationInjectWarnings,
	}
}
