// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

// enforceLabel on a namespace is the Pod Security level that pods must meet.
const enforceLabel = "pod-security.kubernetes.io/enforce"

// admitted says whether the API server would take a pod with a folder of its
// node. One that it would refuse is better off without: it runs.
func admitted(pod *corev1.Pod, backend *v1alpha1.CacheBackend, o Options) (Outcome, error) {
	if !nodelocal.Applies(backend) {
		return Outcome{}, nil
	}
	level, err := o.PodSecurity(pod.Namespace)
	if err != nil {
		return Outcome{}, fmt.Errorf("find what Pod Security the namespace enforces: %w", err)
	}
	if level != "baseline" && level != "restricted" {
		return Outcome{}, nil
	}
	return skip(ReasonPodSecurity, fmt.Sprintf(
		"namespace %s enforces Pod Security %s, which refuses the hostPath volume that topology NodeLocal needs", pod.Namespace, level)), nil
}

// podSecurity reads the level that a namespace enforces.
func podSecurity(ctx context.Context, reader client.Reader, namespace string) (string, error) {
	object := metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := reader.Get(ctx, client.ObjectKey{Name: namespace}, &object); err != nil {
		return "", err
	}
	return object.Labels[enforceLabel], nil
}
