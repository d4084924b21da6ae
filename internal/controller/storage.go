// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/storage"
)

// fieldOwner is whose fields those of managed storages are.
const fieldOwner = "inference-cache-controller"

// Kinds of the objects of a managed storage, in the order of their creation:
// nobody else reaches it at any time.
var (
	policyKind     = networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy")
	serviceKind    = corev1.SchemeGroupVersion.WithKind("Service")
	deploymentKind = appsv1.SchemeGroupVersion.WithKind("Deployment")
)

// storageKinds are watched as metadata only.
func storageKinds() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{policyKind, serviceKind, deploymentKind}
}

// StorageOptions of Storages. All are required but Metrics.
type StorageOptions struct {
	// Client writes objects, and reads their metadata from a cache that holds
	// those with storage.SelectorLabels.
	Client client.Client
	// Live reads objects from the API server.
	Live client.Reader
	// Providers know the storages.
	Providers *storage.Registry
	// Metrics count writes; default none.
	Metrics *Metrics
}

// Storages runs the managed storages of backends and says how storages are. It
// is safe for concurrent use.
type Storages struct {
	options StorageOptions

	mu   sync.Mutex
	seen map[types.NamespacedName]sight // guarded by mu
}

// sight is what was last found of a managed storage. As long as its objects
// are at the same versions, it holds.
type sight struct {
	generation int64
	uid        types.UID
	versions   [3]string // of the objects, in the order of storageKinds
	state      *remote
}

// NewStorages returns what runs storages.
func NewStorages(o StorageOptions) *Storages {
	return &Storages{options: o, seen: make(map[types.NamespacedName]sight)}
}

// offloads says whether the engines of a backend may have a storage.
func offloads(b *v1alpha1.CacheBackend) bool {
	return !adapter.WatchesOnly(b) && adapter.Type(b) == v1alpha1.BackendLMCache
}

// keep brings the storage of a backend about and says how it is; nil for a
// backend without one. What it no longer needs is deleted. With an error, which
// is worth a retry, comes what is known nevertheless.
func (s *Storages) keep(ctx context.Context, b *v1alpha1.CacheBackend) (*remote, error) {
	if b.Spec.RemoteStorage == nil || !offloads(b) {
		return nil, s.remove(ctx, b, storageKinds()...)
	}
	if b.Spec.RemoteStorage.Ownership != v1alpha1.OwnershipManaged {
		return s.external(b), s.remove(ctx, b, storageKinds()...)
	}
	name := client.ObjectKeyFromObject(b)
	s.mu.Lock()
	last, ok := s.seen[name]
	s.mu.Unlock()
	known, err := s.metadata(ctx, b)
	if err == nil && ok && last.generation == b.Generation && last.uid == b.UID && last.versions == versionsOf(known) {
		return last.state, nil
	}
	next := sight{generation: b.Generation, uid: b.UID}
	settled := false
	if err == nil {
		next.state, next.versions, settled, err = s.bring(ctx, b)
	} else {
		next.state = pending(b, err.Error())
	}
	if next.state.binding == nil && err != nil && ok && last.uid == b.UID {
		next.state.binding = last.state.binding // engines stay bound
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case settled:
		s.seen[name] = next
	case err == nil:
		delete(s.seen, name)
	}
	return next.state, err
}

// forget drops what was remembered of a backend.
func (s *Storages) forget(name types.NamespacedName) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, name)
}

func objectName(b *v1alpha1.CacheBackend, kind schema.GroupVersionKind) types.NamespacedName {
	name := client.ObjectKeyFromObject(b)
	if kind == policyKind {
		name.Name = storage.PolicyName(b)
	}
	return name
}

// metadata is what the cache knows of the objects of a backend's storage, nil
// for those it does not know.
func (s *Storages) metadata(ctx context.Context, b *v1alpha1.CacheBackend) (known [3]*metav1.PartialObjectMetadata, err error) {
	for i, kind := range storageKinds() {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(kind)
		err := s.options.Client.Get(ctx, objectName(b, kind), object)
		switch {
		case err == nil:
			known[i] = object
		case !apierrors.IsNotFound(err):
			return known, fmt.Errorf("read the storage's %s: %w", kind.Kind, err)
		}
	}
	return known, nil
}

func versionsOf(known [3]*metav1.PartialObjectMetadata) (versions [3]string) {
	for i, object := range known {
		if object != nil {
			versions[i] = object.ResourceVersion
		}
	}
	return versions
}

// remove deletes those objects of the kinds that the backend owns.
func (s *Storages) remove(ctx context.Context, b *v1alpha1.CacheBackend, kinds ...schema.GroupVersionKind) error {
	s.forget(client.ObjectKeyFromObject(b))
	for _, kind := range kinds {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(kind)
		err := s.options.Client.Get(ctx, objectName(b, kind), object)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read the storage's %s: %w", kind.Kind, err)
		}
		if err != nil || object.DeletionTimestamp != nil || !metav1.IsControlledBy(object, b) {
			continue
		}
		background := metav1.DeletePropagationBackground
		err = s.options.Client.Delete(ctx, object, client.Preconditions{UID: &object.UID}, client.PropagationPolicy(background))
		s.options.Metrics.storageWritten(kind.Kind, "delete", client.IgnoreNotFound(err))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the storage's %s: %w", kind.Kind, err)
		}
	}
	return nil
}

// foreignError is returned for an object of a storage's name that is another's.
type foreignError struct{ kind, name string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("%s %s is there and not this CacheBackend's; it is left alone: rename either", e.kind, e.name)
}

// bring writes the objects of a managed storage and looks at them. The error
// passes by itself; what does not is in the state, which then is not settled
// and has to be looked at anew each time.
func (s *Storages) bring(ctx context.Context, b *v1alpha1.CacheBackend) (state *remote, versions [3]string, settled bool, err error) {
	objects, err := s.options.Providers.Objects(b)
	if err != nil {
		return unavailable(b, reasonRemoteStorageUnavailable, err.Error()), versions, false, nil
	}
	policy, service, deployment := &networkingv1.NetworkPolicy{}, &corev1.Service{}, &appsv1.Deployment{}
	if objects.Policy == nil {
		err = s.remove(ctx, b, policyKind)
	} else {
		err = s.apply(ctx, b, objects.Policy, policy)
	}
	if err == nil {
		err = s.apply(ctx, b, objects.Service, service)
	}
	if err == nil {
		err = s.apply(ctx, b, objects.Deployment, deployment)
	}
	binding, unbound := s.options.Providers.Binding(b, service)
	switch {
	case err == nil && unbound == nil && binding != nil:
		versions = [3]string{policy.ResourceVersion, service.ResourceVersion, deployment.ResourceVersion}
		return managed(b, binding, deployment), versions, true, nil
	case err == nil:
		state = pending(b, "the Service of the storage is going away")
	case passes(err):
		state = pending(b, err.Error())
	default:
		state, err = unavailable(b, reasonRemoteStorageUnavailable, err.Error()), nil
	}
	state.binding = binding
	return state, versions, false, err
}

// apply writes one object unless it is another's, and reads it into live.
func (s *Storages) apply(ctx context.Context, b *v1alpha1.CacheBackend, want, live client.Object) error {
	kind := want.GetObjectKind().GroupVersionKind().Kind
	err := s.options.Live.Get(ctx, client.ObjectKeyFromObject(want), live)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("read the storage's %s: %w", kind, err)
	case err == nil && !metav1.IsControlledBy(live, b):
		return &foreignError{kind, want.GetName()}
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
	if err != nil {
		return fmt.Errorf("encode the storage's %s: %w", kind, err)
	}
	delete(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(content, "spec", "template", "metadata", "creationTimestamp")
	if deployment, ok := live.(*appsv1.Deployment); ok && err == nil && pausedByHand(deployment) {
		metadata, spec := content["metadata"].(map[string]any), content["spec"].(map[string]any)
		metadata["resourceVersion"], spec["replicas"] = deployment.ResourceVersion, int64(0)
	}
	applied := &unstructured.Unstructured{Object: content}
	err = s.options.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner(fieldOwner), client.ForceOwnership)
	s.options.Metrics.storageWritten(kind, "apply", err)
	if err != nil {
		return fmt.Errorf("apply the storage's %s: %w", kind, err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(applied.Object, live); err != nil {
		return fmt.Errorf("decode the storage's %s: %w", kind, err)
	}
	return nil
}

// pausedByHand says whether somebody has scaled a storage to zero, which stays
// until they scale it up again. Any other number than 1 is set back.
func pausedByHand(d *appsv1.Deployment) bool {
	return d.Spec.Replicas != nil && *d.Spec.Replicas == 0
}

// passes says whether an error of a write goes away without anybody's doing.
func passes(err error) bool {
	var foreign *foreignError
	switch {
	case errors.As(err, &foreign), apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		return false
	}
	return true
}
