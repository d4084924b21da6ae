// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checkSource wants a value or exactly one source of it, such as pods may have:
// with another the API server would refuse every engine.
func checkSource(path *field.Path, variable corev1.EnvVar) field.ErrorList {
	from := variable.ValueFrom
	if from == nil {
		return nil
	}
	var errs field.ErrorList
	path = path.Child("valueFrom")
	if variable.Value != "" {
		errs = append(errs, field.Invalid(path, "", "cannot be used together with value"))
	}
	sources := 0
	for _, set := range []bool{
		from.FieldRef != nil, from.ResourceFieldRef != nil, from.ConfigMapKeyRef != nil, from.SecretKeyRef != nil, from.FileKeyRef != nil,
	} {
		if set {
			sources++
		}
	}
	if sources != 1 {
		return append(errs, field.Invalid(path, "", "exactly one source is expected"))
	}
	switch {
	case from.FieldRef != nil:
		errs = append(errs, checkFieldRef(path.Child("fieldRef"), from.FieldRef)...)
	case from.ResourceFieldRef != nil:
		errs = append(errs, checkResourceFieldRef(path.Child("resourceFieldRef"), from.ResourceFieldRef)...)
	case from.ConfigMapKeyRef != nil:
		errs = append(errs, checkKey(path.Child("configMapKeyRef"), from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key)...)
	case from.FileKeyRef != nil:
		errs = append(errs, field.Forbidden(path.Child("fileKeyRef"), "the file is in a volume that an engine pod may lack"))
	case from.SecretKeyRef != nil:
		errs = append(errs, checkKey(path.Child("secretKeyRef"), from.SecretKeyRef.Name, from.SecretKeyRef.Key)...)
	}
	return errs
}

// checkKey wants a reference to a key of a Secret or a ConfigMap.
func checkKey(path *field.Path, name, key string) (errs field.ErrorList) {
	for _, fault := range validation.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(path.Child("name"), name, fault))
	}
	for _, fault := range validation.IsConfigMapKey(key) {
		errs = append(errs, field.Invalid(path.Child("key"), key, fault))
	}
	return errs
}

// podFields are those of a pod that a variable can show, beside single labels
// and annotations.
var podFields = []string{
	"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
	"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
}

func checkFieldRef(path *field.Path, ref *corev1.ObjectFieldSelector) (errs field.ErrorList) {
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		errs = append(errs, field.Invalid(path.Child("apiVersion"), ref.APIVersion, "v1 is expected"))
	}
	at := path.Child("fieldPath")
	if slices.Contains(podFields, ref.FieldPath) {
		return errs
	}
	for _, prefix := range []string{"metadata.labels['", "metadata.annotations['"} {
		name, found := strings.CutPrefix(ref.FieldPath, prefix)
		name, closed := strings.CutSuffix(name, "']")
		if !found || !closed {
			continue
		}
		if prefix != "metadata.labels['" {
			name = strings.ToLower(name)
		}
		for _, fault := range validation.IsQualifiedName(name) {
			errs = append(errs, field.Invalid(at, ref.FieldPath, fault))
		}
		return errs
	}
	return append(errs, field.NotSupported(at, ref.FieldPath, append(slices.Clone(podFields), "metadata.labels['<key>']", "metadata.annotations['<key>']")))
}

// Units that a variable can show an amount in.
var (
	cpuUnits  = []string{"1", "1m"}
	byteUnits = []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
)

func checkResourceFieldRef(path *field.Path, ref *corev1.ResourceFieldSelector) field.ErrorList {
	side, name, _ := strings.Cut(ref.Resource, ".")
	units := byteUnits
	switch {
	case side != "requests" && side != "limits":
		units = nil
	case name == "cpu":
		units = cpuUnits
	case name != "memory" && name != "ephemeral-storage" && !strings.HasPrefix(name, corev1.ResourceHugePagesPrefix):
		units = nil
	}
	if units == nil {
		return field.ErrorList{field.Invalid(path.Child("resource"), ref.Resource, "requests or limits of cpu, memory, ephemeral-storage or hugepages-<size> are expected")}
	}
	if divisor := ref.Divisor.String(); divisor != "0" && !slices.Contains(units, divisor) {
		return field.ErrorList{field.NotSupported(path.Child("divisor"), divisor, units)}
	}
	return nil
}
