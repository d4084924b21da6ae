// SPDX-License-Identifier: Apache-2.0

package house

// provenEvents lists the Kubernetes events. Those of ConnectorReady and
// RemoteStorageReady have the reasons of these conditions and come about in one
// way.
var provenEvents = []provenReason{
	{"CacheBackend event", "Normal AwaitingFirstKVEvent", inController + "BackendWaitsForTheFirstEvent"},
	{"CacheBackend event", "Normal KVEventsObserved", inController + "BackendWaitsForTheFirstEvent"},
	{"CacheBackend event", "Warning NoKVEventsObserved", inController + "BackendWaitsForTheFirstEvent"},
	{"CacheBackend event", "Warning BackendDegraded", inController + "BackendWaitsForTheFirstEvent"},
	{"CacheBackend event", "Normal BackendRecovered", inController + "BackendWaitsForTheFirstEvent"},
	{"CacheBackend event", "Warning ProbeFailed", inController + "ProbeVerdicts"},
	{"CacheBackend event", "Normal ProbeRecovered", inController + "ProbeFailureIsSticky"},
	{"CacheBackend event", "Warning InjectionDegraded", inController + "BreakerEvents"},
	{"CacheBackend event", "Normal InjectionRecovered", inController + "BackendInjectionRecovers"},
	{"CacheBackend event", "Warning SidecarUnavailable", inController + "BreakerEvents"},
	{"CacheBackend event", "Warning ReplicasSilent", inController + "BackendReplicasReporting"},
	{"CacheBackend event", "Normal EngineSelectorUnmatched", inController + "BackendFailOpenIsEchoed"},
	{"CacheBackend event", "Warning FailClosedEnabled", inController + "BackendFailOpenIsEchoed"},
	{"CacheBackend event", "Normal FailOpenRestored", inController + "BackendFailOpenIsEchoed"},
	{"CacheBackend event", "Normal ConnectorReady", inController + "BackendManagedStorageDegrades"},
	{"CacheBackend event", "Warning RemoteStoragePending", inController + "BackendManagedStorageDegrades"},
	{"CacheBackend event", "Warning RemoteStorageUnavailable", inController + "BackendManagedStorageDegrades"},
	{"CacheBackend event", "Warning InjectedEngineCrashLooping", inController + "BackendConnectorEvents"},
	{"CacheBackend event", "Warning NodeLocalServerEnded", inController + "NodeServersThatEndComeBackLater"},
	{"CacheBackend event", "Normal NodeLocalServerReplaced", inController + "NodeServersOfAnotherConfigurationWaitForTheirEngines"},
	{"Pod event", "Warning NodeLocalGateTimeout", inController + "NodeGateTimeoutsAreToldOnce"},
	{"Pod event", "Normal InjectedByCacheBackend", inController + "PodEvents"},
	{"Pod event", "Normal SkippedByOperator", inController + "PodEvents"},
	{"Pod event", "Warning InjectionSkipped", inController + "PodEvents"},
	{"Pod event", "Normal SidecarRepaired", inController + "BlockedPodsAreUnblocked"},
	{"ConfigMap event", "Warning ServerCAConflict", inController + "ServerCALeavesOthersAlone"},
}
