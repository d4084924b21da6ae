// SPDX-License-Identifier: Apache-2.0

package propagate_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/propagate"
)

func promptTemplate(body string, slots ...v1alpha1.PromptTemplateSlot) v1alpha1.PromptTemplate {
	return v1alpha1.PromptTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "t"},
		Spec:       v1alpha1.PromptTemplateSpec{Body: body, Slots: slots},
	}
}

func TestTemplateVerdict(t *testing.T) {
	stable := v1alpha1.PromptTemplateSlot{Name: "tools", Type: v1alpha1.SlotStable}
	mutable := v1alpha1.PromptTemplateSlot{Name: "user", Type: v1alpha1.SlotMutable}
	for name, tc := range map[string]struct {
		template v1alpha1.PromptTemplate
		reason   string
		mutable  string
	}{
		"well formed":                    {promptTemplate("{{tools}} {{user}}", stable, mutable), "Accepted", ""},
		"dots and spaces are plain":      {promptTemplate("{{ .tools }}", stable), "Accepted", ""},
		"a mutable slot first":           {promptTemplate("{{user}} {{tools}}", stable, mutable), "Accepted", "user"},
		"a slot without a type":          {promptTemplate("{{x}}", v1alpha1.PromptTemplateSlot{Name: "x"}), "Accepted", ""},
		"a placeholder that never ends":  {promptTemplate("{{tools", stable), "BadPlaceholder", ""},
		"a placeholder without a slot":   {promptTemplate("{{other}}", stable), "UndeclaredSlot", ""},
		"a slot whose name is none":      {promptTemplate("x", v1alpha1.PromptTemplateSlot{Name: "a b"}), "BadSlot", ""},
		"a body longer than the maximum": {promptTemplate(strings.Repeat("x", policy.MaxTemplateBytes+1)), "BodyTooLarge", ""},
	} {
		t.Run(name, func(t *testing.T) {
			extensions, err := propagate.BuildExtensions(nil, []v1alpha1.PromptTemplate{tc.template}, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := extensions.Templates[0]
			if got.Reason != tc.reason || got.Accepted != (tc.reason == "Accepted") || got.MutableBeforeStable != tc.mutable {
				t.Errorf("verdict %+v, want %s, mutable %q", got, tc.reason, tc.mutable)
			}
			if got.Accepted != (got.Revision != "") || got.Accepted == (got.Message != "") {
				t.Errorf("verdict %+v: a revision and no message exactly when accepted", got)
			}
			decoded, err := policy.DecodeExtensions(extensions.Body)
			if err != nil {
				t.Fatalf("a server refuses the body: %v", err)
			}
			if got.Accepted != (len(decoded.Templates) == 1) {
				t.Errorf("the body has %d templates", len(decoded.Templates))
			}
		})
	}
}

func TestExtensionsReachTheServersForm(t *testing.T) {
	policies := []v1alpha1.CachePolicy{
		cachePolicy("a", "p", func(s *v1alpha1.CachePolicySpec) {
			s.Routing = &v1alpha1.CachePolicyRouting{
				AffinityHash: "Rendezvous", AffinitySeedBlocks: ptr(int32(4)), AffinityMaxPressure: ptr("0.5"), EqualHolders: "Load",
			}
		}),
		cachePolicy("a", "q", func(s *v1alpha1.CachePolicySpec) { s.Routing = &v1alpha1.CachePolicyRouting{EqualHolders: "Load"} }),
		cachePolicy("b", "p", nil),
	}
	topologies := []propagate.Topology{
		{Name: types.NamespacedName{Namespace: "b", Name: "y"}, Model: "m", Prefill: []string{"p2", "p1", "p1"}, Transport: "NIXL"},
		{Name: types.NamespacedName{Namespace: "a", Name: "x"}},
	}
	extensions, err := propagate.BuildExtensions(policies, nil, topologies)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := policy.DecodeExtensions(extensions.Body)
	if err != nil {
		t.Fatal(err)
	}
	wantPolicies := []policy.NamespaceExtensions{{Namespace: "a", Extensions: policy.Extensions{
		Hash: policy.HashRendezvous, SeedBlocks: 4, MaxPressure: .5, EqualHolders: policy.EqualHoldersLoad,
	}}}
	if diff := cmp.Diff(wantPolicies, decoded.Policies); diff != "" {
		t.Error(diff)
	}
	wantTopologies := []policy.PDTopology{
		{Namespace: "a", Name: "x"},
		{Namespace: "b", Name: "y", Model: "m", Prefill: []string{"p1", "p2"}, Transport: policy.TransportNIXL},
	}
	if diff := cmp.Diff(wantTopologies, decoded.Topologies); diff != "" {
		t.Error(diff)
	}
	if decoded.Revision != extensions.Revision || len(extensions.Revision) != 64 {
		t.Errorf("revision %q in the body, %q beside it", decoded.Revision, extensions.Revision)
	}
	topologies[0], topologies[1] = topologies[1], topologies[0]
	again, err := propagate.BuildExtensions(policies, nil, topologies)
	if err != nil || again.Revision != extensions.Revision {
		t.Errorf("another order gives another revision (%v)", err)
	}
}

func TestTopologyFaults(t *testing.T) {
	pool := func(name, accelerator string, labels map[string]string) v1alpha1.PDPool {
		return v1alpha1.PDPool{Name: name, MatchLabels: labels, AcceleratorType: accelerator}
	}
	prefill, decode := map[string]string{"role": "prefill"}, map[string]string{"role": "decode"}
	for name, tc := range map[string]struct {
		prefill, decode []v1alpha1.PDPool
		want            []string
	}{
		"two pools":                    {[]v1alpha1.PDPool{pool("p", "", prefill)}, []v1alpha1.PDPool{pool("d", "", decode)}, nil},
		"one name in both roles":       {[]v1alpha1.PDPool{pool("p", "", prefill)}, []v1alpha1.PDPool{pool("p", "", decode)}, []string{propagate.ReasonDuplicatePool}},
		"no labels":                    {[]v1alpha1.PDPool{pool("p", "", nil)}, []v1alpha1.PDPool{pool("d", "", decode)}, []string{propagate.ReasonEmptySelector}},
		"an accelerator not declared":  {[]v1alpha1.PDPool{pool("p", "z", prefill)}, nil, []string{propagate.ReasonUnknownAcceleratorType}},
		"pods of one are in the other": {[]v1alpha1.PDPool{pool("p", "", prefill)}, []v1alpha1.PDPool{pool("d", "x", prefill)}, []string{propagate.ReasonOverlappingPools}},
		"same labels, other nodes":     {[]v1alpha1.PDPool{pool("p", "y", prefill)}, []v1alpha1.PDPool{pool("d", "x", prefill)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			topology := &v1alpha1.PDTopology{Spec: v1alpha1.PDTopologySpec{
				PrefillPools: tc.prefill, DecodePools: tc.decode, AcceleratorTypes: []v1alpha1.PDAcceleratorType{{Name: "x"}, {Name: "y"}},
			}}
			var got []string
			for _, fault := range propagate.JudgeTopology(topology) {
				got = append(got, fault.Reason)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
