// SPDX-License-Identifier: Apache-2.0

package house

// provenOfStorage lists the reasons around storage tiers and their servers,
// which the docs are still to explain.
var provenOfStorage = []provenReason{
	{"CacheBackend ConnectorReady", "True/ConnectorReady", inController + "BackendConnector"},
	{"CacheBackend ConnectorReady", "ConnectorInjectionUnverified", inController + "BackendConnector"},
	{"CacheBackend ConnectorReady", "MPServersNotReady", inController + "BackendConnector"},
	{"CacheBackend ConnectorReady", "NodeLocalServerPoolPending", inController + "BackendNodeServers"},
	{"CacheBackend EngineCompatibility", "InjectedEngineCrashLooping", inController + "BackendConnector"},
	{"CacheBackend T2Degraded", "T2ZeroHitRate", inController + "BackendTier2"},
	{"CacheBackend T2Degraded", "T2Serving", inController + "BackendTier2"},
	{"CacheBackend Ready", "BackendReady", inController + "BackendManagedStorage"},
	{"CacheBackend Ready", "ScaledToZero", inController + "BackendManagedStorage"},
	{"CacheBackend Ready", "RolloutInProgress", inController + "BackendManagedStorage"},
	{"CacheBackend Ready", "ReplicasUnavailable", inController + "BackendManagedStorageDegrades"},
	{"CacheBackend Ready", "ExternalEndpointAccepted", inController + "BackendExternalStorage"},
	{"CacheBackend Ready", "ExternalEndpointMissing", inController + "BackendExternalStorage"},
	{"CacheBackend Ready", "ExternalEndpointInvalid", inController + "BackendExternalStorage"},
	{"CacheBackend RemoteStorageReady", "RemoteStorageReady", inController + "BackendManagedStorage"},
	{"CacheBackend RemoteStorageReady", "RemoteStoragePending", inController + "BackendManagedStorage"},
	{"CacheBackend RemoteStorageReady", "RemoteStorageUnavailable", inController + "BackendManagedStorage"},
}

// unproven are left to the code that is being written around them.
var unproven = map[string]bool{"endpoint-unresolved": true, "ServerCAConflict": true, "HostOnlyActive": true}
