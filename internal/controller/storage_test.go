// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/storage"
)

// storageObjects lists what there is of the storage of a/cb.
func storageObjects(b *bench) string {
	b.t.Helper()
	var all []string
	for _, o := range []struct {
		object client.Object
		name   string
	}{{&networkingv1.NetworkPolicy{}, "cb-storage"}, {&corev1.Service{}, "cb"}, {&appsv1.Deployment{}, "cb"}} {
		err := b.cluster.Get(b.t.Context(), key("a", o.name), o.object)
		if client.IgnoreNotFound(err) != nil {
			b.t.Fatal(err)
		}
		if err == nil {
			all = append(all, o.name)
		}
	}
	return strings.Join(all, " ")
}

// setDeployment changes the Deployment of a/cb as others do.
func (b *bench) setDeployment(edit func(*appsv1.Deployment)) {
	b.t.Helper()
	d := get[appsv1.Deployment](b.t, b.cluster, key("a", "cb"))
	edit(d)
	status := d.Status
	if err := b.cluster.Update(b.t.Context(), d); err != nil {
		b.t.Fatal(err)
	}
	d.Status = status
	if err := b.cluster.Status().Update(b.t.Context(), d); err != nil {
		b.t.Fatal(err)
	}
}

func available(d *appsv1.Deployment) {
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
}

func progress(reason string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Conditions: []appsv1.DeploymentCondition{{
			Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: reason,
		}}}
	}
}

func refusedPods(d *appsv1.Deployment) {
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Conditions: []appsv1.DeploymentCondition{{
		Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "exceeded quota",
	}}}
}

func scaled(replicas int32) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Replicas = &replicas }
}

const redisEndpoint = "cb.a.svc.cluster.local:6379"

func TestBackendManagedStorage(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*appsv1.Deployment)
		// remote is RemoteStorageReady, closed Ready of engines that do not
		// serve without their storage.
		remote, closed string
	}{
		"it has just been created":        {nil, "Unknown/RemoteStoragePending: RolloutInProgress: Deployment cb has no available replica yet", "Unknown/RolloutInProgress"},
		"it is available":                 {available, "True/RemoteStorageReady: BackendReady: Deployment cb is available", "True/BackendReady"},
		"it was available":                {progress("NewReplicaSetAvailable"), "False/RemoteStorageUnavailable: ReplicasUnavailable: Deployment cb was available", "False/ReplicasUnavailable"},
		"it does not get on":              {progress("ProgressDeadlineExceeded"), "False/RemoteStorageUnavailable: ReplicasUnavailable", "False/ReplicasUnavailable"},
		"its pods are refused":            {refusedPods, "False/RemoteStorageUnavailable: ReplicasUnavailable: Deployment cb: FailedCreate: exceeded quota", "False/ReplicasUnavailable"},
		"somebody has scaled it to 0":     {scaled(0), "False/RemoteStorageUnavailable: ScaledToZero", "False/ScaledToZero"},
		"somebody has scaled it to 3":     {scaled(3), "Unknown/RemoteStoragePending: RolloutInProgress", "Unknown/RolloutInProgress"},
		"what it says is of an older one": {func(d *appsv1.Deployment) { refusedPods(d); d.Generation++ }, "Unknown/RemoteStoragePending", "Unknown/RolloutInProgress"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOffloadBench(t, newBench(t, someBackend(offload, managedRedis, withoutEvents), served(injectedPod("p", redisEndpoint), true)))
			b.pass()
			if got := storageObjects(b); got != "cb-storage cb cb" {
				t.Fatalf("there are %q", got)
			}
			if tc.edit != nil {
				b.setDeployment(tc.edit)
			}
			b.pass()
			b.want("RemoteStorageReady="+tc.remote, "ConnectorReady=True/ConnectorReady", "Ready=True/ConnectorReady")
			remote := b.status().RemoteStorage
			if remote == nil || remote.Endpoint != redisEndpoint || remote.Provider != v1alpha1.ProviderRedis || remote.Ready != strings.HasPrefix(tc.remote, "True") {
				t.Errorf("status %+v", remote)
			}
			if b.status().Injection.StalePods != 0 {
				t.Error("pods bound to the storage are stale")
			}
			b.change(failClosed)
			b.pass()
			b.want("Ready=" + tc.closed)
			replicas := *get[appsv1.Deployment](t, b.cluster, key("a", "cb")).Spec.Replicas
			if want := int32(1); replicas != want && !strings.Contains(tc.closed, "ScaledToZero") {
				t.Errorf("%d replicas", replicas)
			}
		})
	}
}

func TestBackendManagedStorageDegrades(t *testing.T) {
	b := newOffloadBench(t, newBench(t, someBackend(offload, managedRedis, withoutEvents, failClosed), served(injectedPod("p", redisEndpoint), true)))
	b.pass()
	b.want("Progressing=True/RolloutInProgress", "Degraded=False/NotDegraded")
	b.wantEvents("Normal ConnectorReady, Warning RemoteStoragePending, Warning FailClosedEnabled")
	b.setDeployment(available)
	b.pass()
	b.want("Ready=True/BackendReady", "Progressing=False/Synced")
	b.wantEvents("Normal RemoteStorageReady")
	b.setDeployment(progress("NewReplicaSetAvailable"))
	b.pass()
	b.want("Ready=False/ReplicasUnavailable", "Progressing=False/Degraded", "Degraded=True/ReplicasUnavailable")
	b.wantEvents("Warning BackendDegraded, Warning RemoteStorageUnavailable")
	b.setDeployment(available)
	b.pass()
	b.wantEvents("Normal BackendRecovered, Normal RemoteStorageReady")
	b.change(func(c *v1alpha1.CacheBackend) { c.Spec.Integration.FailOpen = ptr(true) })
	b.pass()
	b.want("Ready=True/ConnectorReady")
	b.wantEvents("Normal FailOpenRestored")
}

func TestBackendExternalStorage(t *testing.T) {
	for name, tc := range map[string]struct{ endpoint, remote, closed string }{
		"accepted": {"redis:6379", "True/RemoteStorageReady: ExternalEndpointAccepted", "True/ExternalEndpointAccepted"},
		"missing":  {"", "False/RemoteStorageUnavailable: ExternalEndpointMissing", "False/ExternalEndpointMissing"},
		"invalid":  {"redis://redis:6379", "False/RemoteStorageUnavailable: ExternalEndpointInvalid", "False/ExternalEndpointInvalid"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOffloadBench(t, newBench(t, someBackend(offload, externalRedis(tc.endpoint), withoutEvents), served(injectedPod("p", "redis:6379"), true)))
			b.pass()
			b.want("RemoteStorageReady="+tc.remote, "Ready=True/ConnectorReady")
			b.change(failClosed)
			b.pass()
			b.want("Ready=" + tc.closed)
			if got := storageObjects(b); got != "" {
				t.Errorf("there are %q", got)
			}
		})
	}
}

// What a backend had run goes when it is declared otherwise.
func TestBackendStorageIsRemoved(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*v1alpha1.CacheBackend)
		left string
	}{
		"somebody else runs it now": {externalRedis("redis:6379"), ""},
		"there is none":             {func(c *v1alpha1.CacheBackend) { c.Spec.RemoteStorage = nil }, ""},
		"the engines are watched": {func(c *v1alpha1.CacheBackend) {
			c.Spec.Integration = &v1alpha1.BackendIntegration{Mode: v1alpha1.ModeEventsOnly}
		}, ""},
		"nobody serves the backend": {func(c *v1alpha1.CacheBackend) {
			c.Spec.Type, c.Spec.Runtime = v1alpha1.BackendMemory, v1alpha1.RuntimeSGLang
		}, ""},
		"servers on nodes ask it":    {onNodes, "cb cb"},
		"its memory is declared new": {func(c *v1alpha1.CacheBackend) { c.Spec.RemoteStorage.Redis = &v1alpha1.RedisSpec{Image: "redis:8"} }, "cb-storage cb cb"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOffloadBench(t, newBench(t, someBackend(offload, managedRedis)))
			b.pass()
			b.change(tc.edit)
			b.pass()
			if got := storageObjects(b); got != tc.left {
				t.Errorf("there are %q, want %q", got, tc.left)
			}
			if b.pass(); strings.Contains(name, "new") {
				if image := get[appsv1.Deployment](t, b.cluster, key("a", "cb")).Spec.Template.Spec.Containers[0].Image; image != "redis:8" {
					t.Errorf("image %s", image)
				}
			}
		})
	}
}

// Objects of others stay as they are, and are reported until they are gone.
func TestBackendStorageForeignObjects(t *testing.T) {
	for name, foreign := range map[string]client.Object{
		"Deployment cb":            &appsv1.Deployment{ObjectMeta: object("a", "cb")},
		"Service cb":               &corev1.Service{ObjectMeta: object("a", "cb")},
		"NetworkPolicy cb-storage": &networkingv1.NetworkPolicy{ObjectMeta: object("a", "cb-storage")},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOffloadBench(t, newBench(t, someBackend(offload, managedRedis), foreign))
			b.pass()
			b.want("RemoteStorageReady=False/RemoteStorageUnavailable: " + name + " is there and not this CacheBackend's")
			if err := b.cluster.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign); err != nil || len(foreign.GetOwnerReferences()) > 0 || len(foreign.GetLabels()) > 0 {
				t.Errorf("the object became %v: %v", foreign, err)
			}
			b.change(func(c *v1alpha1.CacheBackend) { c.Spec.RemoteStorage = nil })
			b.pass()
			if got := storageObjects(b); !strings.Contains(got, foreign.GetName()) {
				t.Error("the object is gone")
			}
			b.change(managedRedis)
			if err := b.cluster.Delete(t.Context(), foreign); err != nil {
				t.Fatal(err)
			}
			b.pass()
			b.want("RemoteStorageReady=Unknown/RemoteStoragePending")
		})
	}
}

func TestBackendStorageNameTooLong(t *testing.T) {
	long := someBackend(offload, managedRedis)
	long.Name = strings.Repeat("b", 64)
	b := newOffloadBench(t, newBench(t, long))
	if _, err := b.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(long)}); err != nil {
		t.Fatal(err)
	}
	got := get[v1alpha1.CacheBackend](t, b.cluster, client.ObjectKeyFromObject(long)).Status.Conditions
	if c := conditionOf(got, "RemoteStorageReady"); !strings.HasPrefix(c, "False/RemoteStorageUnavailable: metadata.name") {
		t.Errorf("RemoteStorageReady is %q", c)
	}
}

// failingStorages has reads and writes of storages fail as the test says, and
// counts them.
type failingStorages struct {
	apply, get, remove error
	calls              int
}

func (f *failingStorages) client(b *bench) client.Client {
	inner := b.cluster.(client.WithWatch)
	return interceptor.NewClient(inner, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			f.calls++
			if f.apply != nil {
				return f.apply
			}
			return c.Apply(ctx, o, options...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			f.calls++
			if f.remove != nil {
				return f.remove
			}
			return c.Delete(ctx, o, options...)
		},
	})
}

func (f *failingStorages) live(b *bench) client.Reader {
	return interceptor.NewClient(b.cluster.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, name client.ObjectKey, o client.Object, options ...client.GetOption) error {
			f.calls++
			if f.get != nil {
				return f.get
			}
			return c.Get(ctx, name, o, options...)
		},
	})
}

func (f *failingStorages) bench(t *testing.T) *bench {
	b := newOffloadBench(t, newBench(t, someBackend(offload, managedRedis), served(injectedPod("p", redisEndpoint), true)))
	return b.with(func(o *controller.BackendOptions) {
		o.Storages = controller.NewStorages(controller.StorageOptions{Client: f.client(b), Live: f.live(b), Providers: storage.All()})
	})
}

// A storage at rest costs no call beyond the caches.
func TestBackendStorageAtRest(t *testing.T) {
	f := &failingStorages{}
	b := f.bench(t)
	b.pass()
	f.calls = 0
	for range 3 {
		b.pass()
	}
	if f.calls != 0 {
		t.Errorf("%d calls at rest", f.calls)
	}
	b.setDeployment(available)
	b.pass()
	if b.want("RemoteStorageReady=True"); f.calls != 6 {
		t.Errorf("%d calls after a change, want a read and a write of each object", f.calls)
	}
}

func TestBackendStorageErrors(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "deployments"}, "cb", errors.New("no rights"))
	down := errors.New("connection refused")
	for name, tc := range map[string]struct {
		fail  failingStorages
		retry error
		want  string
	}{
		"writes are forbidden":  {failingStorages{apply: forbidden}, nil, "False/RemoteStorageUnavailable: apply the storage's NetworkPolicy"},
		"writes do not succeed": {failingStorages{apply: down}, down, "Unknown/RemoteStoragePending: apply the storage's NetworkPolicy"},
		"reads do not succeed":  {failingStorages{get: down}, down, "Unknown/RemoteStoragePending: read the storage's NetworkPolicy"},
	} {
		t.Run(name, func(t *testing.T) {
			f := tc.fail
			b := f.bench(t)
			if _, err := b.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key("a", "cb")}); !errors.Is(err, tc.retry) {
				t.Errorf("error %v, want %v", err, tc.retry)
			}
			b.want("RemoteStorageReady="+tc.want, "ConnectorReady=True")
			b.change(failClosed)
			if _, err := b.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key("a", "cb")}); !errors.Is(err, tc.retry) {
				t.Errorf("error %v, want %v", err, tc.retry)
			}
			b.want("Ready=" + tc.want)
		})
	}
	t.Run("deletions do not succeed", func(t *testing.T) {
		f := &failingStorages{remove: down}
		b := f.bench(t)
		b.pass()
		b.change(func(c *v1alpha1.CacheBackend) { c.Spec.RemoteStorage = nil })
		if _, err := b.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key("a", "cb")}); !errors.Is(err, down) {
			t.Errorf("error %v", err)
		}
		b.want("RemoteStorageReady=")
	})
	t.Run("reads fail of what is known", func(t *testing.T) {
		f := &failingStorages{}
		b := f.bench(t)
		b.pass()
		b.setDeployment(available)
		f.get = down
		if _, err := b.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key("a", "cb")}); !errors.Is(err, down) {
			t.Errorf("error %v", err)
		}
		b.want("RemoteStorageReady=Unknown/RemoteStoragePending")
		if got := b.status().RemoteStorage.Endpoint; got == "" && b.status().Injection.StalePods > 0 {
			t.Error("pods are stale because of a failing read")
		}
	})
}
