// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"log/slog"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// definitionRetry is how often a kind that is not installed is looked for.
const definitionRetry = 2 * time.Second

// watcher tells of every change to what is pushed. Status alone is none.
type watcher struct {
	cache   cache.Cache
	changed func()
	// servers is set when endpoints are watched too.
	servers bool
	logger  *slog.Logger
}

// NeedLeaderElection is true: only the pusher listens.
func (w *watcher) NeedLeaderElection() bool { return true }

// Start watches until the context ends. A kind that is not installed yet is
// waited for.
func (w *watcher) Start(ctx context.Context) error {
	kinds := []client.Object{&v1alpha1.CachePolicy{}, &v1alpha1.CacheTenant{}, &v1alpha1.PromptTemplate{}}
	if w.servers {
		kinds = append(kinds, &discoveryv1.EndpointSlice{})
	}
	for len(kinds) > 0 {
		var missing []client.Object
		for _, kind := range kinds {
			if err := w.watch(ctx, kind); err != nil {
				if !meta.IsNoMatchError(err) && ctx.Err() == nil {
					w.logger.Error("cannot watch", "kind", kindOf(kind), "error", err)
				}
				missing = append(missing, kind)
			}
		}
		kinds = missing
		if len(kinds) > 0 && !pause(ctx, definitionRetry) {
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

func (w *watcher) watch(ctx context.Context, kind client.Object) error {
	informer, err := w.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { w.changed() },
		DeleteFunc: func(any) { w.changed() },
		UpdateFunc: func(old, new any) {
			before, okBefore := old.(client.Object)
			after, okAfter := new.(client.Object)
			if !okBefore || !okAfter || differs(before, after) {
				w.changed()
			}
		},
	})
	return err
}

// differs reports whether more than the status changed.
func differs(before, after client.Object) bool {
	if _, ok := after.(*discoveryv1.EndpointSlice); ok {
		return before.GetResourceVersion() != after.GetResourceVersion()
	}
	return before.GetGeneration() != after.GetGeneration() || before.GetUID() != after.GetUID()
}

func kindOf(object client.Object) string {
	switch object.(type) {
	case *v1alpha1.CachePolicy:
		return "CachePolicy"
	case *v1alpha1.CacheTenant:
		return "CacheTenant"
	case *v1alpha1.PromptTemplate:
		return "PromptTemplate"
	}
	return "EndpointSlice"
}
