// SPDX-License-Identifier: Apache-2.0

package inject_test

import (
	"encoding/json"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/inject"
	"github.com/inferencecache/inference-cache/internal/kubetest"
)

func TestPodSecurityKeepsNodeFoldersOut(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.CacheBackend)
		level  string
		err    error
		want   string
	}{
		"NodeLocal, restricted":     {nodeLocal, "restricted", nil, inject.ReasonPodSecurity},
		"NodeLocal, baseline":       {nodeLocal, "baseline", nil, inject.ReasonPodSecurity},
		"NodeLocal, privileged":     {nodeLocal, "privileged", nil, ""},
		"NodeLocal, nothing":        {nodeLocal, "", nil, ""},
		"NodeLocal, no answer":      {nodeLocal, "", errors.New("no answer"), inject.ReasonInternalError},
		"PodLocal, restricted":      {podLocal, "restricted", nil, ""},
		"PodLocal, nobody is asked": {podLocal, "", errors.New("no answer"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := options()
			allAdapters(&o)
			o.PodSecurity = func(namespace string) (string, error) {
				if namespace != "team" {
					t.Errorf("asked for namespace %q", namespace)
				}
				return tc.level, tc.err
			}
			pod, outcome := inject.Pod(newPod(vllm), newBackend(vllm, tc.change), o)
			if outcome.Reason != tc.want || (tc.want == "") != (outcome.Result == inject.Injected) {
				t.Errorf("outcome %+v", outcome)
			}
			if tc.want != "" && len(pod.Spec.Volumes) > 0 {
				t.Errorf("a pod left alone has %+v", pod.Spec.Volumes)
			}
		})
	}
}

// The level is that of the label on the pod's namespace.
func TestHandlerReadsPodSecurityOfTheNamespace(t *testing.T) {
	for level, want := range map[string]string{"restricted": inject.ReasonPodSecurity, "privileged": ""} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"pod-security.kubernetes.io/enforce": level}}}
		o := options()
		allAdapters(&o)
		scheme := kubetest.NewScheme(t)
		reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(namespace, newBackend(vllm, nodeLocal)).Build()
		handler, err := newHarness(inject.HandlerOptions{Options: o, Live: reader}).Inject()
		if err != nil {
			t.Fatal(err)
		}
		pod, err := json.Marshal(newPod(vllm))
		if err != nil {
			t.Fatal(err)
		}
		_, got := answer(t, handler, pod)
		if reason := got.Annotations[v1alpha1.AnnotationInjectSkipped]; reason != want {
			t.Errorf("%s: reason %q, want %q", level, reason, want)
		}
	}
}
