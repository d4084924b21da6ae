// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// workingImage stands in a command for what only people know.
const workingImage = "IMAGE-THAT-WORKS"

// unblocking says how a blocked pod comes by another publisher.
func (f *podFacts) unblocking(p *publisher) string {
	image := f.image
	if image == "" || image == p.image {
		image = workingImage
	}
	if f.repairs && image != workingImage {
		return "the controller changes its image to " + image
	}
	return fmt.Sprintf("to unblock: kubectl -n %s set image pod/%s %s=%s", p.pod.Namespace, p.pod.Name, sidecarContainer, image)
}

// repair gives publishers that hold their pods up the image that new pods get,
// unless that is known not to work either. Its time is that of the breaker's
// verdict.
func (r *BackendReconciler) repair(ctx context.Context, b *v1alpha1.CacheBackend, f *podFacts, now time.Time) error {
	if !r.options.RepairSidecarImage || f.image == "" || b.Status.Injection == nil {
		return nil
	}
	if breaker := b.Status.Injection.Breaker; breaker != nil && breaker.Open {
		return nil
	}
	var failed error
	for i := range f.publishers {
		p := &f.publishers[i]
		if p.image == f.image || !p.overdue(now) {
			continue
		}
		if err := r.patchImage(ctx, p, f.image); err != nil {
			failed = errors.Join(failed, fmt.Errorf("repair the publisher of pod %s: %w", p.pod.Name, err))
			continue
		}
		r.options.Logger.Info("gave a publisher that did not start another image", "namespace", p.pod.Namespace, "pod", p.pod.Name, "reason", p.reason)
		e := podEvent{corev1.EventTypeNormal, eventRepaired, p.reason + ": the publisher's image is now " + f.image, f.image, referenceTo(b)}
		if err := tellPod(ctx, r.options.Client, p.pod, e, now); err != nil {
			failed = errors.Join(failed, fmt.Errorf("write the event of pod %s: %w", p.pod.Name, err))
		}
	}
	return failed
}

// patchImage changes the pod only if it is still the same one.
func (r *BackendReconciler) patchImage(ctx context.Context, p *publisher, image string) error {
	containers := "containers"
	if p.native {
		containers = "initContainers"
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.pod.UID},
		"spec":     map[string]any{containers: []map[string]string{{"name": sidecarContainer, "image": image}}},
	})
	if err != nil {
		return err
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.pod.Namespace, Name: p.pod.Name}}
	return client.IgnoreNotFound(r.options.Client.Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, patch)))
}
