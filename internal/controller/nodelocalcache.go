// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// serverCache holds the pods of LMCache servers, which the manager's own cache
// does not: they carry no cache domain.
type serverCache struct{ cache.Cache }

// GetCache has the manager start it with its own.
func (c serverCache) GetCache() cache.Cache { return c.Cache }

// addServerCache has a manager run a cache of servers.
func addServerCache(mgr ctrl.Manager) (cache.Cache, error) {
	servers, err := cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(),
		ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {
			Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelLMCacheNodeServer: "true"}), Transform: stripServer,
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("set up the cache of LMCache servers: %w", err)
	}
	return servers, mgr.Add(serverCache{servers})
}

// nodeServers keeps the servers of NodeLocal backends, and says what tells of
// their changes; nil for not.
func (o Options) nodeServers(mgr ctrl.Manager, counted client.Client, metrics *Metrics) (NodeServers, []source.Source, error) {
	if !o.NodeServers {
		return nil, nil, nil
	}
	servers, err := addServerCache(mgr)
	if err != nil {
		return nil, nil, err
	}
	return NewNodeKeeper(NodeKeeperOptions{
		Client: counted, Servers: servers, Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder(reporter), Metrics: metrics,
		Logger: o.Logger, Now: o.Now,
	}), []source.Source{serverChanges(servers)}, nil
}

// stripServer keeps what the controller reads of a server's pod.
func stripServer(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	maps.DeleteFunc(pod.Annotations, func(name, _ string) bool { return !strings.HasPrefix(name, v1alpha1.Group) })
	pod.ManagedFields = nil
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
	pod.Status = corev1.PodStatus{
		Phase: pod.Status.Phase, Reason: pod.Status.Reason, Message: pod.Status.Message, StartTime: pod.Status.StartTime,
		Conditions: pod.Status.Conditions, ContainerStatuses: pod.Status.ContainerStatuses,
	}
	return pod, nil
}

// serverChanges has the backend of a server looked at when one changes.
func serverChanges(servers cache.Cache) source.Source {
	return source.Kind(servers, &corev1.Pod{},
		handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, pod *corev1.Pod) []reconcile.Request { return ownerOf(pod) }),
		predicate.TypedFuncs[*corev1.Pod]{UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Pod]) bool {
			return e.ObjectOld.UID != e.ObjectNew.UID || serverOf(e.ObjectOld) != serverOf(e.ObjectNew)
		}})
}

// ownerOf is the backend that a server belongs to.
func ownerOf(pod *corev1.Pod) []reconcile.Request {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "CacheBackend" || !strings.HasPrefix(owner.APIVersion, v1alpha1.Group+"/") {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: owner.Name}}}
}
