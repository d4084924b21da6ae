// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package controller_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// What an API server lets through, the controller may still find fault with.
func TestEnvtestVerdicts(t *testing.T) {
	f := newFleet(t)
	f.cluster.Namespace(t, "team-b", nil)
	startController(t, f.cluster, startServer(t, "1"), false)
	ready := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "p", Labels: map[string]string{v1alpha1.LabelCacheDomain: "d", "role": "prefill"}}}
	ready.Spec.Containers = []corev1.Container{{Name: "vllm", Image: "vllm"}}
	f.create(ready)

	stable, mutable := v1alpha1.PromptTemplateSlot{Name: "s", Type: "Stable"}, v1alpha1.PromptTemplateSlot{Name: "m", Type: "Mutable"}
	template := func(name, body string, slots ...v1alpha1.PromptTemplateSlot) client.Object {
		return &v1alpha1.PromptTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Spec: v1alpha1.PromptTemplateSpec{Body: body, Slots: slots},
		}
	}
	topology := func(name string, prefill, decode v1alpha1.PDPool) client.Object {
		return &v1alpha1.PDTopology{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Spec: v1alpha1.PDTopologySpec{
			PrefillPools: []v1alpha1.PDPool{prefill}, DecodePools: []v1alpha1.PDPool{decode},
		}}
	}
	tenant := func(namespace, name string, quota *int64) client.Object {
		o := &v1alpha1.CacheTenant{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		o.Spec.TenantID, o.Spec.Quota.MaxIndexEntries = "shared", quota
		return o
	}
	policy := func(name string) client.Object {
		return &v1alpha1.CachePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}}
	}
	unbounded := &v1alpha1.CacheTenant{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "free"}, Spec: v1alpha1.CacheTenantSpec{TenantID: "free"}}
	backend := func(name string) *v1alpha1.CacheBackend {
		b := &v1alpha1.CacheBackend{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: name}}
		b.Spec.Runtime, b.Spec.Type = v1alpha1.RuntimeVLLM, v1alpha1.BackendMemory
		b.Spec.EngineSelector = &v1alpha1.EngineSelector{MatchLabels: map[string]string{v1alpha1.LabelCacheDomain: name}}
		return b
	}
	waived, unheard := backend("waived"), backend("unheard")
	withoutEvents(waived)
	unheard.Spec.Observation = &v1alpha1.BackendObservation{FirstEventTimeout: &metav1.Duration{Duration: time.Second}}
	unknown := pool("p", "prefill")
	unknown.AcceleratorType = "h100"
	few := pool("p", "prefill")
	few.Replicas = ptr(int32(3))
	cases := map[string]struct {
		object client.Object
		want   []string
	}{
		"a template":                     {template("good", "{{s}} {{m}}", stable, mutable), []string{"Accepted=True/Accepted", "StablePrefix=True/StablePrefix", "Programmed=True/Programmed"}},
		"a template that changes early":  {template("early", "{{m}} {{s}}", stable, mutable), []string{"Accepted=True/Accepted", "StablePrefix=False/MutableBeforeStable", "Programmed=True/Programmed"}},
		"a placeholder that is none":     {template("none", "{{s t}}", stable), []string{"Accepted=False/BadPlaceholder", "Programmed=False/NotEffective", "StablePrefix="}},
		"a placeholder nobody declares":  {template("undeclared", "{{x}}", stable), []string{"Accepted=False/UndeclaredSlot", "Programmed=False/NotEffective"}},
		"a body that is too large":       {template("large", strings.Repeat("x", 256<<10+1)), []string{"Accepted=False/BodyTooLarge", "Programmed=False/NotEffective"}},
		"a pool of nothing":              {topology("empty", v1alpha1.PDPool{Name: "p"}, pool("d", "decode")), []string{"Accepted=False/EmptySelector", "Programmed=False/NotEffective"}},
		"an accelerator nobody declares": {topology("unknown", unknown, pool("d", "decode")), []string{"Accepted=False/UnknownAcceleratorType"}},
		"pools with the same pods":       {topology("same", pool("p", "prefill"), pool("d", "prefill")), []string{"Accepted=False/OverlappingPools"}},
		"one name for two pools":         {topology("twice", pool("p", "prefill"), pool("p", "decode")), []string{"Accepted=False/DuplicatePool"}},
		"a pool without ready pods":      {topology("waiting", few, pool("d", "decode")), []string{"Accepted=True/Accepted", "Resolved=False/PoolEmpty"}},
		"the first policy":               {policy("a"), []string{"Accepted=True/Accepted", "Programmed=True/Programmed"}},
		"another policy":                 {policy("b"), []string{"Accepted=False/Shadowed", "Programmed=False/NotEffective"}},
		"the first tenant":               {tenant("team-a", "t", ptr(int64(5))), []string{"Ready=True/Observed", "QuotaExceeded=False/WithinBudget", "Programmed=True/Programmed"}},
		"another tenant of that id":      {tenant("team-b", "t", ptr(int64(1))), []string{"Ready=False/DuplicateTenantID", "QuotaExceeded=False/NotEffective", "Programmed=False/NotEffective"}},
		"a tenant without a quota":       {unbounded, []string{"Ready=True/Observed", "QuotaExceeded=False/NoQuota", "Programmed=True/NoQuota"}},
		"a backend that needs no events": {waived, []string{"Ready=True/EventsOnlyActive", "Progressing=False/Synced"}},
		"a backend nobody hears of":      {unheard, []string{"Ready=False/NoKVEventsObserved", "Degraded=True/NoKVEventsObserved", "Progressing=False/NoKVEventsObserved"}},
	}
	for _, tc := range cases {
		f.create(tc.object)
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, want := range tc.want {
				kind, value, _ := strings.Cut(want, "=")
				var got string
				eventually(t, want, func() bool {
					if err := f.cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(tc.object), tc.object); err != nil {
						t.Fatal(err)
					}
					got = conditionOf(conditionsOf(tc.object), kind)
					return value == "" && got == "" || value != "" && strings.HasPrefix(got, value+": ")
				})
			}
		})
	}
}

func conditionsOf(o client.Object) []metav1.Condition {
	switch o := o.(type) {
	case *v1alpha1.CacheBackend:
		return o.Status.Conditions
	case *v1alpha1.PromptTemplate:
		return o.Status.Conditions
	case *v1alpha1.PDTopology:
		return o.Status.Conditions
	case *v1alpha1.CacheTenant:
		return o.Status.Conditions
	case *v1alpha1.CachePolicy:
		return o.Status.Conditions
	}
	return nil
}
