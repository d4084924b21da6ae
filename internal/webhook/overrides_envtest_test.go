// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/internal/kubetest"
)

// A variable that admission takes in overrides is one that the API server
// takes in pods. The API server is less strict about names of other objects,
// which then nobody could create.
func TestEnvtestPodsTakeTheVariablesOfOverrides(t *testing.T) {
	cluster := kubetest.Start(t, crds)
	cluster.Namespace(t, "team", nil)
	for name, tc := range variableSources {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod"}}
		pod.Spec.Containers = []corev1.Container{{Name: "vllm", Image: "vllm:1", Env: []corev1.EnvVar{{Name: "A", ValueFrom: &tc.source}}}}
		err := cluster.Client.Create(t.Context(), pod, client.DryRunAll)
		if (err == nil) != (tc.want == "") {
			t.Errorf("%s: the API server says %v, admission %q", name, err, tc.want)
		}
	}
}
