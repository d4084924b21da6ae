// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
)

// backendRules judges CacheBackends.
type backendRules struct {
	registry *adapter.Registry
	reader   client.Reader
}

func (r backendRules) judge(b *v1alpha1.CacheBackend) verdict {
	v := verdict{always: checkSelector(b), others: checkAnnotations(b)}
	spec := field.NewPath("spec")
	if _, ok := r.registry.For(b); !ok && !r.registry.Serves(b) {
		v.others = append(v.others, field.Invalid(spec.Child("type"), b.Spec.Type, r.registry.Unsupported(b)))
	}
	v.others = append(v.others, r.checkIntegration(b)...)
	v.others = append(v.others, checkTiers(b)...)
	if b.Spec.Observation != nil {
		v.others = append(v.others, checkObservation(spec.Child("observation"), b.Spec.Observation)...)
	}
	v.warnings = r.warn(b)
	return v
}

// warn names settings without effect.
func (r backendRules) warn(b *v1alpha1.CacheBackend) (warnings []string) {
	if i := b.Spec.Integration; i != nil && i.EngineOverrides != nil && adapter.WatchesOnly(b) {
		warnings = append(warnings, "spec.integration.engineOverrides has no effect on a backend that only watches its engines")
	}
	o := b.Spec.Observation
	selected := b.Spec.EngineSelector != nil && len(b.Spec.EngineSelector.MatchLabels) > 0
	switch {
	case b.Spec.Type == v1alpha1.BackendExternal && (o == nil || len(o.ExternalReplicas) == 0):
		warnings = append(warnings, "spec.observation.externalReplicas is empty: a backend of type External watches no other engines")
	case !selected && (o == nil || len(o.ExternalReplicas) == 0):
		warnings = append(warnings, "spec.engineSelector is empty: the backend has no engines")
	case selected && b.Spec.Type != v1alpha1.BackendExternal && (o == nil || o.ModelID == ""):
		warnings = append(warnings, "spec.observation.modelID is empty: no publisher is injected into the engine pods")
	}
	return warnings
}

func checkSelector(b *v1alpha1.CacheBackend) (errs field.ErrorList) {
	domain, path := domainOf(b), field.NewPath("spec", "engineSelector", "matchLabels")
	if b.Spec.EngineSelector == nil || len(b.Spec.EngineSelector.MatchLabels) == 0 {
		return nil
	}
	labels := b.Spec.EngineSelector.MatchLabels
	if _, ok := labels[v1alpha1.LabelCacheDomain]; !ok || len(labels) != 1 {
		return field.ErrorList{field.Invalid(path, labels, "exactly the label "+v1alpha1.LabelCacheDomain+" is expected")}
	}
	value := path.Key(v1alpha1.LabelCacheDomain)
	if domain == "" {
		errs = append(errs, field.Required(value, "a cache domain has a name"))
	}
	for _, fault := range validation.IsValidLabelValue(domain) {
		errs = append(errs, field.Invalid(value, domain, fault))
	}
	return errs
}

// domainOf is the cache domain that a backend selects, "" for none.
func domainOf(b *v1alpha1.CacheBackend) string {
	if b.Spec.EngineSelector == nil {
		return ""
	}
	return b.Spec.EngineSelector.MatchLabels[v1alpha1.LabelCacheDomain]
}

func checkAnnotations(b *v1alpha1.CacheBackend) (errs field.ErrorList) {
	for _, name := range []string{v1alpha1.AnnotationRequireKVEvents, v1alpha1.AnnotationSkipFunctionalProbe} {
		value, ok := b.Annotations[name]
		if ok && value != "true" && value != "false" {
			errs = append(errs, field.NotSupported(field.NewPath("metadata", "annotations").Key(name), value, []string{"true", "false"}))
		}
	}
	modes := []v1alpha1.KernelCheckMode{v1alpha1.KernelCheckAuto, v1alpha1.KernelCheckReportOnly, v1alpha1.KernelCheckStrict, v1alpha1.KernelCheckOff}
	if mode, ok := b.Annotations[v1alpha1.AnnotationKernelCheck]; ok && !slices.Contains(modes, v1alpha1.KernelCheckMode(mode)) {
		errs = append(errs, field.NotSupported(field.NewPath("metadata", "annotations").Key(v1alpha1.AnnotationKernelCheck), v1alpha1.KernelCheckMode(mode), modes))
	}
	return errs
}

func (r backendRules) checkIntegration(b *v1alpha1.CacheBackend) (errs field.ErrorList) {
	integration, path := b.Spec.Integration, field.NewPath("spec", "integration")
	if integration == nil {
		return nil
	}
	if role := integration.Role; role != "" && role != v1alpha1.RoleReadWrite {
		errs = append(errs, field.NotSupported(path.Child("role"), role, []v1alpha1.IntegrationRole{v1alpha1.RoleReadWrite}))
	}
	if b.Spec.Type == v1alpha1.BackendSGLangHiCache && integration.FailOpen != nil && !*integration.FailOpen {
		errs = append(errs, field.Invalid(path.Child("failOpen"), false, "type SGLangHiCache always fails open"))
	}
	if integration.EngineOverrides != nil {
		args, env := r.registry.Reserved(b)
		errs = append(errs, checkOverrides(path.Child("engineOverrides"), integration.EngineOverrides, args, env)...)
	}
	return errs
}

// compare holds the cache domain and the external replicas against those of
// the namespace's other backends.
func (r backendRules) compare(ctx context.Context, b *v1alpha1.CacheBackend, old **v1alpha1.CacheBackend) (errs field.ErrorList, err error) {
	domain, external := domainOf(b), externalOf(b)
	var listed []v1alpha1.ExternalReplica
	if old != nil {
		listed = externalOf(*old)
	}
	if domain == "" && len(external) == 0 {
		return nil, nil
	}
	var list v1alpha1.CacheBackendList
	if err := r.reader.List(ctx, &list, client.InNamespace(b.Namespace)); err != nil {
		return nil, fmt.Errorf("list CacheBackends of the namespace: %w", err)
	}
	for _, other := range others(list.Items, b) {
		if domain != "" && domainOf(other) == domain {
			errs = append(errs, field.Duplicate(field.NewPath("spec", "engineSelector", "matchLabels").Key(v1alpha1.LabelCacheDomain),
				fmt.Sprintf("%s (of CacheBackend %s)", domain, other.Name)))
		}
		errs = append(errs, sharedReplicas(external, listed, other)...)
	}
	return errs, nil
}

func externalOf(b *v1alpha1.CacheBackend) []v1alpha1.ExternalReplica {
	if b.Spec.Observation == nil {
		return nil
	}
	return b.Spec.Observation.ExternalReplicas
}

// sharedReplicas refuses replicas that another backend has, but for those
// that were listed before.
func sharedReplicas(external, listed []v1alpha1.ExternalReplica, other *v1alpha1.CacheBackend) (errs field.ErrorList) {
	for i, replica := range external {
		if slices.Contains(externalOf(other), replica) && !slices.Contains(listed, replica) {
			errs = append(errs, field.Duplicate(field.NewPath("spec", "observation", "externalReplicas").Index(i).Child("replicaID"),
				fmt.Sprintf("%s (of CacheBackend %s)", replica.ReplicaID, other.Name)))
		}
	}
	return errs
}

func checkObservation(path *field.Path, o *v1alpha1.BackendObservation) (errs field.ErrorList) {
	if o.KVEvents != nil {
		errs = append(errs, checkPorts(path.Child("kvEvents"), o.KVEvents)...)
	}
	if m := o.EngineMetrics; m != nil && m.Path != "" && (!strings.HasPrefix(m.Path, "/") || strings.ContainsFunc(m.Path, notPrinted)) {
		errs = append(errs, field.Invalid(path.Child("engineMetrics", "path"), m.Path, "a path that starts with / and has no white space is expected"))
	}
	if o.Resources != nil {
		errs = append(errs, checkResources(path.Child("resources"), o.Resources)...)
	}
	return errs
}

// notPrinted finds white space and control characters.
func notPrinted(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

// checkPorts holds the sockets of all ranks apart.
func checkPorts(path *field.Path, e *v1alpha1.KVEventsSpec) (errs field.ErrorList) {
	port, replay := adapter.EventPorts(e)
	ranks := int32(1)
	if e.DataParallelRanks != nil {
		ranks = *e.DataParallelRanks
	}
	for name, first := range map[string]int32{"port": port, "replayPort": replay} {
		if first > 0 && first+ranks-1 > 65535 {
			errs = append(errs, field.Invalid(path.Child(name), first, fmt.Sprintf("the ports of %d ranks end above 65535", ranks)))
		}
	}
	if distance := max(port-replay, replay-port); replay != 0 && distance < ranks {
		errs = append(errs, field.Invalid(path.Child("replayPort"), replay,
			fmt.Sprintf("must be at least %d from port %d, one for each rank", ranks, port)))
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	return errs
}
