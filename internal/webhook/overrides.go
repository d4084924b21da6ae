// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/commandline"
)

// checkOverrides keeps overrides away from what the wiring rests on.
func checkOverrides(path *field.Path, o *v1alpha1.EngineOverrides, reservedArgs, reservedEnv []string) (errs field.ErrorList) {
	flags := func(child string, args []string) {
		for i, arg := range args {
			flag, _, _ := strings.Cut(commandline.FlagName(arg), "=")
			flag, _, _ = strings.Cut(flag, ".") // a member of a flag that takes JSON
			switched := strings.Replace(flag, "--no-", "--", 1)
			if strings.HasPrefix(flag, "-") && (slices.Contains(reservedArgs, flag) || slices.Contains(reservedArgs, switched)) {
				errs = append(errs, field.Forbidden(path.Child(child).Index(i), flag+" belongs to the integration"))
			}
		}
	}
	names := func(path *field.Path, name string) {
		for _, fault := range validation.IsEnvVarName(name) {
			errs = append(errs, field.Invalid(path, name, fault))
		}
		if slices.Contains(reservedEnv, name) {
			errs = append(errs, field.Forbidden(path, name+" belongs to the integration"))
		}
	}
	flags("args", o.Args)
	flags("suppressArgs", o.SuppressArgs)
	for i, variable := range o.Env {
		at := path.Child("env").Index(i)
		names(at.Child("name"), variable.Name)
		errs = append(errs, checkSource(at, variable)...)
	}
	for i, name := range o.SuppressEnv {
		names(path.Child("suppressEnv").Index(i), name)
	}
	return errs
}
