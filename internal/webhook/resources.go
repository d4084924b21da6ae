// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checkResources applies the rules that a pod with these resources would meet,
// so that a bad value fails here and not at each engine pod.
func checkResources(path *field.Path, r *corev1.ResourceRequirements) (errs field.ErrorList) {
	if len(r.Claims) > 0 {
		errs = append(errs, field.Forbidden(path.Child("claims"), "resource claims are not supported"))
	}
	for _, name := range sortedNames(r.Requests) {
		errs = append(errs, checkQuantity(path.Child("requests").Key(string(name)), name, r.Requests[name])...)
	}
	for _, name := range sortedNames(r.Limits) {
		errs = append(errs, checkQuantity(path.Child("limits").Key(string(name)), name, r.Limits[name])...)
	}
	for _, name := range sortedNames(r.Requests, r.Limits) {
		request, requested := r.Requests[name]
		limit, limited := r.Limits[name]
		at := path.Child("requests").Key(string(name))
		switch overcommit := overcommittable(name); {
		case !overcommit && (!requested || !limited || request.Cmp(limit) != 0):
			errs = append(errs, field.Invalid(at, request.String(), "request and limit must both be set and equal: "+string(name)+" cannot be overcommitted"))
		case requested && limited && request.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(at, request.String(), "must not be above the limit "+limit.String()))
		}
	}
	return errs
}

func sortedNames(lists ...corev1.ResourceList) (names []corev1.ResourceName) {
	for _, list := range lists {
		for name := range list {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func overcommittable(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	return false
}

func checkQuantity(path *field.Path, name corev1.ResourceName, q resource.Quantity) (errs field.ErrorList) {
	if q.Sign() < 0 {
		errs = append(errs, field.Invalid(path, q.String(), "must not be negative"))
	}
	page, huge := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
	switch {
	case overcommittable(name):
	case huge:
		size, err := resource.ParseQuantity(page)
		if err != nil || size.Sign() <= 0 {
			return append(errs, field.Invalid(path, string(name), "hugepages-<size> is expected"))
		}
		if q.Value()%size.Value() != 0 {
			errs = append(errs, field.Invalid(path, q.String(), "must be a multiple of the page size "+page))
		}
	case !vendorName(name):
		errs = append(errs, field.Invalid(path, string(name),
			"cpu, memory, ephemeral-storage, hugepages-<size> or a name with a vendor's prefix is expected"))
	case q.MilliValue()%1000 != 0:
		errs = append(errs, field.Invalid(path, q.String(), "must be an integer"))
	}
	return errs
}

// vendorName says whether a name is that of an extended resource. Quotas put
// "requests." in front of it, so it must be a name with that too, and have none
// of its own.
func vendorName(name corev1.ResourceName) bool {
	text := string(name)
	return strings.Contains(text, "/") && !strings.Contains(text, "kubernetes.io/") && !strings.HasPrefix(text, "requests.") &&
		len(validation.IsQualifiedName("requests."+text)) == 0
}
