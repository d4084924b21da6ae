// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/propagate"
)

// tally takes the answers of the moment, nil before the first round.
func (p *Pusher) tally() *tally {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil {
		return nil
	}
	t := &tally{current: p.current}
	for name, w := range p.workers {
		t.answers = append(t.answers, answer{name, w.outcome()})
	}
	slices.SortFunc(t.answers, func(a, b answer) int { return strings.Compare(a.server, b.server) })
	return t
}

// writeStatus says on every resource what became of it.
func (p *Pusher) writeStatus(ctx context.Context) {
	t := p.tally()
	if t == nil {
		return
	}
	now := metav1.NewTime(p.options.Now())
	failed := func(err error) {
		if err != nil && ctx.Err() == nil {
			p.options.Logger.Error("cannot write a status", "error", err)
		}
	}
	for _, v := range t.current.policies.Policies {
		failed(p.writePolicyStatus(ctx, t, v, now))
	}
	for _, v := range t.current.policies.Tenants {
		failed(p.writeTenantStatus(ctx, t, v, now))
	}
	for _, v := range t.current.extensions.Templates {
		failed(p.writeTemplateStatus(ctx, t, v, now))
	}
	for _, topology := range t.current.topologies {
		failed(p.writeTopologyStatus(ctx, t, topology, now))
	}
}

func (p *Pusher) writePolicyStatus(ctx context.Context, t *tally, v propagate.PolicyVerdict, now metav1.Time) error {
	var object v1alpha1.CachePolicy
	return updateStatus(ctx, p.options.Client, v.Name, &object, func() bool {
		if object.Generation != v.Generation {
			return false // a newer round follows
		}
		status := &object.Status
		changed := assign(&status.ObservedGeneration, v.Generation)
		changed = setCondition(&status.Conditions, v.Generation, now,
			condition{v1alpha1.ConditionAccepted, v.Reason, v.Message, truth(v.Accepted)}) || changed
		programming := t.policy(v)
		if programming.pending {
			return changed
		}
		changed = assignPointer(&status.ProgrammedServers, programming.programmed) || changed
		changed = assignPointer(&status.DesiredServers, programming.desired) || changed
		if setCondition(&status.Conditions, v.Generation, now, programming.condition) {
			changed = true
			if programming.status == metav1.ConditionTrue {
				status.PolicyRevision = t.current.policies.Revision
			}
		}
		return changed
	})
}

func (p *Pusher) writeTenantStatus(ctx context.Context, t *tally, v propagate.TenantVerdict, now metav1.Time) error {
	var object v1alpha1.CacheTenant
	return updateStatus(ctx, p.options.Client, v.Name, &object, func() bool {
		programming := t.tenant(v)
		if object.Generation != v.Generation || programming.pending {
			return false
		}
		changed := assign(&object.Status.ObservedGeneration, v.Generation)
		return setCondition(&object.Status.Conditions, v.Generation, now, programming.condition) || changed
	})
}

func (p *Pusher) writeTemplateStatus(ctx context.Context, t *tally, v propagate.TemplateVerdict, now metav1.Time) error {
	var object v1alpha1.PromptTemplate
	return updateStatus(ctx, p.options.Client, v.Name, &object, func() bool {
		if object.Generation != v.Generation {
			return false
		}
		status := &object.Status
		changed := assign(&status.ObservedGeneration, v.Generation)
		changed = assign(&status.TemplateRevision, v.Revision) || changed
		conditions := []condition{
			{v1alpha1.ConditionAccepted, v.Reason, v.Message, truth(v.Accepted)},
		}
		if v.Accepted {
			conditions = append(conditions, stablePrefix(v))
		} else {
			changed = meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionStablePrefix) || changed
		}
		if programming := t.template(v); !programming.pending {
			conditions = append(conditions, programming.condition)
		}
		for _, c := range conditions {
			changed = setCondition(&status.Conditions, v.Generation, now, c) || changed
		}
		return changed
	})
}

func stablePrefix(v propagate.TemplateVerdict) condition {
	if v.MutableBeforeStable == "" {
		return condition{v1alpha1.ConditionStablePrefix, propagate.ReasonStablePrefix, "", metav1.ConditionTrue}
	}
	return condition{
		v1alpha1.ConditionStablePrefix, propagate.ReasonMutableBeforeStable,
		"the Mutable slot " + v.MutableBeforeStable + " stands before a Stable one: text behind it is seldom reused", metav1.ConditionFalse,
	}
}

func (p *Pusher) writeTopologyStatus(ctx context.Context, t *tally, topology propagate.Topology, now metav1.Time) error {
	programming := t.topology()
	if programming.pending {
		return nil
	}
	var object v1alpha1.PDTopology
	return updateStatus(ctx, p.options.Client, topology.Name, &object, func() bool {
		if object.Generation != topology.Generation || meta.IsStatusConditionFalse(object.Status.Conditions, v1alpha1.ConditionAccepted) {
			return false // a newer round follows
		}
		return setCondition(&object.Status.Conditions, object.Generation, now, programming.condition)
	})
}
