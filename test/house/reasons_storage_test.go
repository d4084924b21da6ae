// SPDX-License-Identifier: Apache-2.0

package house

// provenOfStorage lists the reasons around storage tiers and their servers.
var provenOfStorage = []provenReason{
	{"CacheBackend Ready", "True/ConnectorReady", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "True/HostOnlyActive", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "True/BackendReady", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "False/ScaledToZero", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "Unknown/RolloutInProgress", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "False/RolloutInProgress", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "False/ReplicasUnavailable", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "True/ExternalEndpointAccepted", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "False/ExternalEndpointInvalid", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "False/ExternalEndpointMissing", inController + "EnvtestBackendOlderThanTheRules"},
	{"CacheBackend Ready", "False/NoEnginePods", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "Unknown/ConnectorInjectionUnverified", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "False/MPServersNotReady", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "False/RemoteStorageUnavailable", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "Unknown/RemoteStoragePending", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Ready", "False/NodeLocalServerPoolPending", inController + "BackendConnector"},
	{"CacheBackend Progressing", "True/RolloutInProgress", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend Degraded", "True/ReplicasUnavailable", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend ConnectorReady", "True/ConnectorReady", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend ConnectorReady", "False/NoEnginePods", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend ConnectorReady", "Unknown/ConnectorInjectionUnverified", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend ConnectorReady", "False/MPServersNotReady", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend ConnectorReady", "False/RolloutInProgress", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend ConnectorReady", "False/NodeLocalServerPoolPending", inController + "BackendConnector"},
	{"CacheBackend RemoteStorageReady", "True/RemoteStorageReady", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend RemoteStorageReady", "Unknown/RemoteStoragePending", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend RemoteStorageReady", "False/RemoteStorageUnavailable", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend EngineCompatibility", "False/InjectedEngineCrashLooping", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend T2Degraded", "True/T2ZeroHitRate", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend T2Degraded", "False/T2Serving", inController + "EnvtestOffloadVerdicts"},
}
