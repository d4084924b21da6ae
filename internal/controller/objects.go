// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/propagate"
)

// objectsInterval is the time between counts of the resources.
const objectsInterval = 10 * time.Second

// States of resources.
const (
	objectOK       = "ok"
	objectDegraded = "degraded"
	objectShadowed = "shadowed"
)

// Census counts the resources by what their conditions say.
type Census struct {
	reader  client.Reader
	metrics *Metrics
	logger  *slog.Logger
}

var _ manager.LeaderElectionRunnable = (*Census)(nil)

// NewCensus returns a census of what a reader lists.
func NewCensus(reader client.Reader, metrics *Metrics, logger *slog.Logger) *Census {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Census{reader, metrics, logger}
}

// NeedLeaderElection is true: only the leader's metrics move.
func (c *Census) NeedLeaderElection() bool { return true }

// Start counts until the context ends.
func (c *Census) Start(ctx context.Context) error {
	for {
		if err := c.count(ctx); err != nil && ctx.Err() == nil {
			c.logger.Error("cannot count the resources", "error", err)
		}
		if !pause(ctx, objectsInterval) {
			return nil
		}
	}
}

// count lists every kind; one that is not installed has no resources.
func (c *Census) count(ctx context.Context) error {
	for kind, list := range map[string]client.ObjectList{
		"CacheBackend": &v1alpha1.CacheBackendList{}, "CacheIndex": &v1alpha1.CacheIndexList{}, "CachePolicy": &v1alpha1.CachePolicyList{},
		"CacheTenant": &v1alpha1.CacheTenantList{}, "PDTopology": &v1alpha1.PDTopologyList{}, "PromptTemplate": &v1alpha1.PromptTemplateList{},
	} {
		if err := c.reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("list resources of kind %s: %w", kind, err)
		}
		states := map[string]int{}
		if err := meta.EachListItem(list, func(o runtime.Object) error { states[stateOfObject(o)]++; return nil }); err != nil {
			return err
		}
		for _, state := range objectStates() {
			c.metrics.objects.WithLabelValues(kind, state).Set(float64(states[state]))
		}
	}
	return nil
}

func objectStates() []string { return []string{objectOK, objectDegraded, objectShadowed} }

func stateOfObject(object runtime.Object) string {
	switch o := object.(type) {
	case *v1alpha1.CacheBackend:
		return stateOf(o.Status.Conditions)
	case *v1alpha1.CachePolicy:
		return stateOf(o.Status.Conditions)
	case *v1alpha1.CacheTenant:
		return stateOf(o.Status.Conditions)
	case *v1alpha1.PDTopology:
		return stateOf(o.Status.Conditions)
	case *v1alpha1.PromptTemplate:
		return stateOf(o.Status.Conditions)
	case *v1alpha1.CacheIndex:
		for _, server := range o.Status.Servers {
			if !server.Reachable {
				return objectDegraded
			}
		}
	}
	return objectOK
}

// stateOf is shadowed where another resource is in force in this one's place,
// and degraded where something does not work as declared. What waits, or only
// advises, is neither.
func stateOf(conditions []metav1.Condition) string {
	state := objectOK
	for _, c := range conditions {
		switch {
		case c.Reason == propagate.ReasonShadowed || c.Reason == reasonDuplicateTenantID:
			return objectShadowed
		case c.Type == v1alpha1.ConditionDegraded && c.Status == metav1.ConditionTrue:
			state = objectDegraded
		case c.Status != metav1.ConditionFalse || c.Reason == reasonAwaitingFirstKVEvent:
		case c.Type == v1alpha1.ConditionReady, c.Type == v1alpha1.ConditionAccepted, c.Type == v1alpha1.ConditionProgrammed, c.Type == v1alpha1.ConditionResolved:
			state = objectDegraded
		}
	}
	return state
}
