// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/storage"
)

// Reasons that say how a storage is.
const (
	reasonBackendReady             = "BackendReady"
	reasonScaledToZero             = "ScaledToZero"
	reasonRolloutInProgress        = "RolloutInProgress"
	reasonReplicasUnavailable      = "ReplicasUnavailable"
	reasonExternalEndpointAccepted = "ExternalEndpointAccepted"
	reasonExternalEndpointMissing  = "ExternalEndpointMissing"
	reasonExternalEndpointInvalid  = "ExternalEndpointInvalid"

	reasonRemoteStorageReady       = "RemoteStorageReady"
	reasonRemoteStoragePending     = "RemoteStoragePending"
	reasonRemoteStorageUnavailable = "RemoteStorageUnavailable"
)

// remote is how the storage of a backend is.
type remote struct {
	provider v1alpha1.StorageProvider
	// binding is how engines reach it, nil for not yet or not at all.
	binding *adapter.Binding
	// verdict is True for a storage that can be used, Unknown while it starts.
	// Its kind is left open.
	verdict condition
}

func (r *remote) status() *v1alpha1.RemoteStorageStatus {
	s := &v1alpha1.RemoteStorageStatus{Provider: r.provider, Ready: r.verdict.status == metav1.ConditionTrue}
	if r.binding != nil {
		s.Endpoint = r.binding.Endpoint
	}
	return s
}

// condition says whether the storage can be used.
func (r *remote) condition() condition {
	c := condition{kind: v1alpha1.ConditionRemoteStorageReady, status: r.verdict.status, message: r.verdict.reason + ": " + r.verdict.message}
	switch c.status {
	case metav1.ConditionTrue:
		c.reason = reasonRemoteStorageReady
	case metav1.ConditionUnknown:
		c.reason = reasonRemoteStoragePending
	default:
		c.reason = reasonRemoteStorageUnavailable
	}
	if r.verdict.reason == c.reason {
		c.message = r.verdict.message
	}
	return c
}

func unavailable(b *v1alpha1.CacheBackend, reason, message string) *remote {
	return &remote{provider: b.Spec.RemoteStorage.Provider, verdict: condition{reason: reason, message: message, status: metav1.ConditionFalse}}
}

// pending says that a storage is on its way as far as one can tell.
func pending(b *v1alpha1.CacheBackend, message string) *remote {
	return &remote{provider: b.Spec.RemoteStorage.Provider, verdict: condition{
		reason: reasonRemoteStoragePending, message: message, status: metav1.ConditionUnknown,
	}}
}

// external says how an endpoint is that somebody else runs. It is not called.
func (s *Storages) external(b *v1alpha1.CacheBackend) *remote {
	binding, err := s.options.Providers.Binding(b, nil)
	switch {
	case errors.Is(err, storage.ErrEndpointMissing):
		return unavailable(b, reasonExternalEndpointMissing, err.Error())
	case err != nil:
		return unavailable(b, reasonExternalEndpointInvalid, err.Error())
	}
	return &remote{provider: b.Spec.RemoteStorage.Provider, binding: binding, verdict: condition{
		reason: reasonExternalEndpointAccepted, message: binding.Endpoint + " is well formed; the controller does not call it", status: metav1.ConditionTrue,
	}}
}

// managed says how a storage is that runs as a Deployment of one replica. As
// long as one serves, a rollout does no harm.
func managed(b *v1alpha1.CacheBackend, binding *adapter.Binding, d *appsv1.Deployment) *remote {
	r := &remote{provider: b.Spec.RemoteStorage.Provider, binding: binding}
	v := &r.verdict
	v.status = metav1.ConditionFalse
	failure := deploymentCondition(d, appsv1.DeploymentReplicaFailure)
	progress := deploymentCondition(d, appsv1.DeploymentProgressing)
	current := d.Status.ObservedGeneration >= d.Generation
	switch {
	case d.Spec.Replicas != nil && *d.Spec.Replicas == 0:
		v.reason, v.message = reasonScaledToZero, "Deployment "+d.Name+" was scaled to 0; scale it to 1 to have the storage back"
	case d.Status.AvailableReplicas > 0:
		v.status, v.reason, v.message = metav1.ConditionTrue, reasonBackendReady, "Deployment "+d.Name+" is available"
	case current && failure.Status == corev1.ConditionTrue:
		v.reason, v.message = reasonReplicasUnavailable, fmt.Sprintf("Deployment %s: %s: %s", d.Name, failure.Reason, failure.Message)
	case current && progress.Reason == "ProgressDeadlineExceeded":
		v.reason, v.message = reasonReplicasUnavailable, fmt.Sprintf("Deployment %s: %s", d.Name, progress.Message)
	case current && progress.Reason == "NewReplicaSetAvailable":
		v.reason, v.message = reasonReplicasUnavailable, "Deployment "+d.Name+" was available and has no available replica"
	default:
		v.status, v.reason = metav1.ConditionUnknown, reasonRolloutInProgress
		v.message = "Deployment " + d.Name + " has no available replica yet"
	}
	return r
}

func deploymentCondition(d *appsv1.Deployment, kind appsv1.DeploymentConditionType) appsv1.DeploymentCondition {
	for _, c := range d.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return appsv1.DeploymentCondition{}
}

// judgeRemote writes how the storage is into the status.
func judgeRemote(b *v1alpha1.CacheBackend, s *sighting) {
	if s.remote == nil {
		b.Status.RemoteStorage = nil
		meta.RemoveStatusCondition(&b.Status.Conditions, v1alpha1.ConditionRemoteStorageReady)
		return
	}
	b.Status.RemoteStorage = s.remote.status()
	put(b, s.now, s.remote.condition())
}
