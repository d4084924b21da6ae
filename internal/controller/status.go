// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxMessageBytes bounds the message of a condition.
	maxMessageBytes = 256
	// maxBackendMessageBytes bounds those of a CacheBackend, which quote
	// servers.
	maxBackendMessageBytes = 512
)

// updateStatus changes the status of an object and writes it if change says
// that it differs. Several loops write different parts of one status: a write
// that meets another's is repeated on what that one left. An object that is
// gone needs no status.
func updateStatus(ctx context.Context, c client.Client, key types.NamespacedName, object client.Object, change func() bool) error {
	return client.IgnoreNotFound(retry.OnError(retry.DefaultBackoff, apierrors.IsConflict, func() error {
		if err := c.Get(ctx, key, object); err != nil {
			return err
		}
		before := object.DeepCopyObject().(client.Object)
		if !change() {
			return nil
		}
		return c.Status().Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	}))
}

// condition is what a loop has to say; the time is added when it changes.
type condition struct {
	kind, reason, message string
	status                metav1.ConditionStatus
}

// setCondition writes a condition and reports whether anything differs.
func setCondition(all *[]metav1.Condition, generation int64, now metav1.Time, c condition) bool {
	return setConditionUpTo(maxMessageBytes, all, generation, now, c)
}

func setConditionUpTo(bytes int, all *[]metav1.Condition, generation int64, now metav1.Time, c condition) bool {
	message := clip(c.message, bytes)
	for i := range *all {
		old := &(*all)[i]
		if old.Type != c.kind {
			continue
		}
		if old.Status == c.status && old.Reason == c.reason && old.Message == message && old.ObservedGeneration == generation {
			return false
		}
		if old.Status != c.status {
			old.LastTransitionTime = now
		}
		old.Status, old.Reason, old.Message, old.ObservedGeneration = c.status, c.reason, message, generation
		return true
	}
	*all = append(*all, metav1.Condition{
		Type: c.kind, Status: c.status, Reason: c.reason, Message: message, ObservedGeneration: generation, LastTransitionTime: now,
	})
	return true
}

// clip cuts a message to what a condition may hold, at a whole character.
func clip(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:bytes-3], "") + "..."
}

// assign sets a field and reports whether it differed.
func assign[T comparable](field *T, value T) bool {
	if *field == value {
		return false
	}
	*field = value
	return true
}

// assignPointer does the same for an optional field.
func assignPointer[T comparable](field **T, value T) bool {
	if *field != nil && **field == value {
		return false
	}
	*field = &value
	return true
}

func truth(b bool) metav1.ConditionStatus {
	if b {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}
