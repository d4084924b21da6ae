// SPDX-License-Identifier: Apache-2.0

package propagate

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/template"
)

// Reasons why a PromptTemplate is not accepted, and of StablePrefix.
const (
	ReasonBadPlaceholder      = "BadPlaceholder"
	ReasonUndeclaredSlot      = "UndeclaredSlot"
	ReasonBodyTooLarge        = "BodyTooLarge"
	ReasonBadSlot             = "BadSlot"
	ReasonStablePrefix        = "StablePrefix"
	ReasonMutableBeforeStable = "MutableBeforeStable"
)

// TemplateVerdict says what became of one PromptTemplate.
type TemplateVerdict struct {
	Name       types.NamespacedName
	Generation int64
	// Accepted, its reason and message are the condition of that name.
	Accepted bool
	Reason   string
	Message  string
	// Revision is what a rendering names; empty unless accepted.
	Revision string
	// MutableBeforeStable names a Mutable slot in front of a Stable one.
	MutableBeforeStable string
}

// Topology is a PDTopology with its pools resolved to replica ids.
type Topology struct {
	Name            types.NamespacedName
	Generation      int64
	Model           string
	Prefill, Decode []string
	Transport       string
}

// Extensions is one body for /policy/extensions and what it came from.
type Extensions struct {
	Body []byte
	// Revision names the content: 64 hex digits.
	Revision  string
	Templates []TemplateVerdict
	// Routed are the namespaces whose policy has routing.
	Routed map[string]bool
}

type (
	wireExtensions struct {
		Version    int                `json:"version"`
		Revision   string             `json:"revision,omitempty"`
		Policies   []wireRouting      `json:"policies"`
		Templates  []wireTemplate     `json:"templates"`
		Topologies []wireTopologyPool `json:"pdTopologies"`
	}
	wireRouting struct {
		Namespace    string   `json:"namespace"`
		AffinityHash string   `json:"affinityHash,omitempty"`
		SeedBlocks   *int32   `json:"affinitySeedBlocks,omitempty"`
		MaxPressure  *float32 `json:"affinityMaxPressure,omitempty"`
		EqualHolders string   `json:"equalHolders,omitempty"`
	}
	wireTemplate struct {
		Namespace string     `json:"namespace"`
		Name      string     `json:"name"`
		Body      string     `json:"body"`
		Slots     []wireSlot `json:"slots,omitempty"`
	}
	wireSlot struct {
		Name     string `json:"name"`
		Type     string `json:"type"`
		Required bool   `json:"required,omitempty"`
	}
	wireTopologyPool struct {
		Namespace string   `json:"namespace"`
		Name      string   `json:"name"`
		Model     string   `json:"model"`
		Prefill   []string `json:"prefill"`
		Decode    []string `json:"decode"`
		Transport string   `json:"transport"`
	}
)

// BuildExtensions builds the extensions of all resources. Templates that do
// not compile are left out, and so is the routing of shadowed policies.
func BuildExtensions(policies []v1alpha1.CachePolicy, templates []v1alpha1.PromptTemplate, topologies []Topology) (*Extensions, error) {
	e := &Extensions{Routed: make(map[string]bool)}
	wire := wireExtensions{
		Version: policy.ExtensionsVersion, Policies: routings(policies), Templates: []wireTemplate{}, Topologies: []wireTopologyPool{},
	}
	for _, p := range wire.Policies {
		e.Routed[p.Namespace] = true
	}
	for _, t := range sorted(templates) {
		source := templateSource(t)
		verdict := judge(t, source)
		e.Templates = append(e.Templates, verdict)
		if verdict.Accepted {
			wire.Templates = append(wire.Templates, renderTemplate(source))
		}
	}
	for _, t := range topologies {
		wire.Topologies = append(wire.Topologies, wireTopologyPool{
			t.Name.Namespace, t.Name.Name, t.Model, sortedIDs(t.Prefill), sortedIDs(t.Decode), t.Transport,
		})
	}
	slices.SortFunc(wire.Topologies, func(a, b wireTopologyPool) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	content, err := json.Marshal(wire)
	if err != nil {
		return nil, fmt.Errorf("encode policy extensions: %w", err)
	}
	wire.Revision = policy.Revision(content)
	if e.Body, err = json.Marshal(wire); err != nil {
		return nil, fmt.Errorf("encode policy extensions: %w", err)
	}
	e.Revision = wire.Revision
	return e, nil
}

func sortedIDs(ids []string) []string {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	if ids == nil {
		ids = []string{}
	}
	return ids
}

func routings(policies []v1alpha1.CachePolicy) []wireRouting {
	all := []wireRouting{}
	last := ""
	for i, p := range sorted(policies) {
		shadowed := i > 0 && p.Namespace == last
		last = p.Namespace
		routing := p.Spec.Routing
		if shadowed || routing == nil || *routing == (v1alpha1.CachePolicyRouting{}) {
			continue
		}
		all = append(all, wireRouting{
			p.Namespace, routing.AffinityHash, routing.AffinitySeedBlocks, maxPressure(routing.AffinityMaxPressure), routing.EqualHolders,
		})
	}
	return all
}

// maxPressure reads a share from 0 to 1; what is none is left out.
func maxPressure(text *string) *float32 {
	if text == nil {
		return nil
	}
	parsed, err := strconv.ParseFloat(*text, 32)
	if err != nil || !(parsed >= 0 && parsed <= 1) {
		return nil
	}
	value := float32(parsed)
	return &value
}

// templateSource takes a slot without a type for Mutable, which promises
// nothing.
func templateSource(t *v1alpha1.PromptTemplate) policy.Template {
	source := policy.Template{Namespace: t.Namespace, Name: t.Name, Body: t.Spec.Body}
	for _, slot := range t.Spec.Slots {
		kind := policy.SlotMutable
		if slot.Type != "" {
			kind = policy.SlotType(slot.Type)
		}
		source.Slots = append(source.Slots, policy.Slot{Name: slot.Name, Type: kind, Required: valueOr(slot.Required, false)})
	}
	return source
}

func renderTemplate(source policy.Template) wireTemplate {
	w := wireTemplate{Namespace: source.Namespace, Name: source.Name, Body: source.Body}
	for _, slot := range source.Slots {
		w.Slots = append(w.Slots, wireSlot{slot.Name, string(slot.Type), slot.Required})
	}
	return w
}

// JudgeTemplate says what BuildExtensions would make of a template.
func JudgeTemplate(t *v1alpha1.PromptTemplate) TemplateVerdict { return judge(t, templateSource(t)) }

func judge(t *v1alpha1.PromptTemplate, source policy.Template) TemplateVerdict {
	verdict := TemplateVerdict{Name: nameOf(t), Generation: t.Generation}
	compiled, err := template.Compile(source)
	if err != nil {
		verdict.Reason, verdict.Message = templateFault(err), err.Error()
		return verdict
	}
	verdict.Accepted, verdict.Reason, verdict.Revision = true, ReasonAccepted, compiled.Revision()
	verdict.MutableBeforeStable = mutableBeforeStable(compiled, source)
	return verdict
}

func templateFault(err error) string {
	switch {
	case errors.Is(err, template.ErrUndeclaredSlot):
		return ReasonUndeclaredSlot
	case errors.Is(err, template.ErrBodyTooLarge):
		return ReasonBodyTooLarge
	case errors.Is(err, template.ErrBadSlot):
		return ReasonBadSlot
	}
	return ReasonBadPlaceholder
}

// mutableBeforeStable names the first Mutable placeholder with a Stable one
// behind it.
func mutableBeforeStable(compiled *template.Template, source policy.Template) string {
	kinds := make(map[string]policy.SlotType, len(source.Slots))
	for _, slot := range source.Slots {
		kinds[slot.Name] = slot.Type
	}
	mutable := ""
	for _, name := range compiled.Placeholders() {
		switch {
		case kinds[name] == policy.SlotStable && mutable != "":
			return mutable
		case kinds[name] == policy.SlotMutable && mutable == "":
			mutable = name
		}
	}
	return ""
}
