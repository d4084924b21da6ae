// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// verdict is what the rules about one object alone say.
type verdict struct {
	// always holds against every write, the others only against the write that
	// introduces them.
	always, others field.ErrorList
	warnings       []string
}

// validator checks objects of one kind.
type validator[T client.Object] struct {
	kind string
	// judge looks at one object alone.
	judge func(T) verdict
	// compare looks at the others of its namespace; old is nil on creation.
	// nil compares nothing.
	compare func(ctx context.Context, object T, old *T) (field.ErrorList, error)
}

var _ admission.Validator[*v1alpha1.CachePolicy] = validator[*v1alpha1.CachePolicy]{}

// ValidateCreate checks a new object.
func (v validator[T]) ValidateCreate(ctx context.Context, object T) (admission.Warnings, error) {
	found := v.judge(object)
	return found.warnings, v.answer(ctx, object, nil, append(found.always, found.others...))
}

// ValidateUpdate checks a change. Objects on their way out pass.
func (v validator[T]) ValidateUpdate(ctx context.Context, old, object T) (admission.Warnings, error) {
	if object.GetDeletionTimestamp() != nil {
		return nil, nil
	}
	found := v.judge(object)
	return found.warnings, v.answer(ctx, object, &old, append(found.always, introduced(found.others, v.judge(old).others)...))
}

// ValidateDelete lets every object go.
func (v validator[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) { return nil, nil }

func (v validator[T]) answer(ctx context.Context, object T, old *T, violations field.ErrorList) error {
	if v.compare != nil {
		more, err := v.compare(ctx, object, old)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("%s %s is not admitted unchecked: %w", v.kind, object.GetName(), err))
		}
		violations = append(violations, more...)
	}
	if len(violations) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind(v.kind).GroupKind(), object.GetName(), violations)
}

// introduced are the violations that the old object did not have.
func introduced(now, before field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(slices.Clone(now), func(e *field.Error) bool {
		return slices.ContainsFunc(before, func(b *field.Error) bool {
			return e.Type == b.Type && e.Field == b.Field && e.Detail == b.Detail &&
				fmt.Sprint(e.BadValue) == fmt.Sprint(b.BadValue)
		})
	})
}

// others are the objects of a list but the one being admitted, which has no
// uid before it is created.
func others[E any, T interface {
	*E
	client.Object
}](items []E, self T) (out []T) {
	for i := range items {
		if o := T(&items[i]); o.GetName() != self.GetName() || self.GetName() == "" {
			out = append(out, o)
		}
	}
	return out
}
