// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package inject_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/inject"
	"github.com/inferencecache/inference-cache/internal/kubetest"
	"github.com/inferencecache/inference-cache/internal/storage"
	"github.com/inferencecache/inference-cache/internal/webhook"
)

const (
	samplesDir = "../../deploy/samples"
	// chartsDir has what the charts and guides of engines make.
	chartsDir = "testdata/charts"
	skipMark  = "# verify-samples: skip"
	// annotationFinding says of a workload what injection finds in its pods.
	annotationFinding = "test.inferencecache.io/finding"
)

// samples are the objects of each file.
func samples(t *testing.T) map[string][]*unstructured.Unstructured {
	t.Helper()
	all := map[string][]*unstructured.Unstructured{}
	read := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(text), "\n"+skipMark+"\n") {
			return err
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			object := &unstructured.Unstructured{}
			if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
				return err
			}
			all[path] = append(all[path], object)
		}
		return nil
	}
	must(t, filepath.WalkDir(samplesDir, read))
	must(t, filepath.WalkDir(chartsDir, read))
	return all
}

// podOf is the pod that a workload would create, nil for what is none.
func podOf(t *testing.T, object *unstructured.Unstructured) *corev1.Pod {
	t.Helper()
	template, found, err := unstructured.NestedMap(object.Object, "spec", "template")
	must(t, err)
	if !found {
		return nil
	}
	pod := &corev1.Pod{}
	must(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(template, pod, true))
	pod.GenerateName, pod.Namespace = object.GetName()+"-", object.GetNamespace()
	pod.Spec.ServiceAccountName = "default" // filled in by clusters before webhooks
	return pod
}

// TestEnvtestSamples applies every sample as a user would, with all webhooks
// on, and creates the pods of its workloads.
func TestEnvtestSamples(t *testing.T) {
	cluster := kubetest.Start(t, "../../deploy/crds", "--allow-privileged")
	handlers, err := webhook.Handlers(cluster.Scheme, webhook.Options{Reader: cluster.Client, Registry: adapter.All()})
	must(t, err)
	pods := options()
	resolver := &storage.Resolver{Reader: cluster.Client, Providers: storage.All()}
	pods.Registry = adapter.All()
	pods.Bindings = func(backend *v1alpha1.CacheBackend) (*adapter.Binding, error) {
		return resolver.Resolve(t.Context(), backend)
	}
	handler := inject.NewHandler(inject.HandlerOptions{Options: pods, Live: cluster.Client})
	handlers[webhook.PodPath], err = handler.Inject()
	must(t, err)
	handlers[webhook.StampsPath], err = handler.Strip()
	must(t, err)
	url, authority := kubetest.Serve(t, handlers)
	registered := webhook.Registration(webhook.RegistrationOptions{Namespace: "ic", URL: url, CABundle: authority})
	for _, object := range []client.Object{registered.Mutating, registered.Validating, registered.StampPolicy, registered.StampBinding} {
		must(t, cluster.Client.Create(t.Context(), object))
	}
	cluster.Namespace(t, "asked", nil)
	kubetest.Eventually(t, "webhooks registered", func() error {
		tenant := &v1alpha1.CacheTenant{ObjectMeta: metav1.ObjectMeta{Name: "ct", Namespace: "asked"}, Spec: v1alpha1.CacheTenantSpec{TenantID: "inferencecache.io/probe"}}
		return kubetest.Refused(cluster.Client.Create(t.Context(), tenant, client.DryRunAll), "is reserved")
	})
	kinds := map[string]bool{}
	for file, objects := range samples(t) {
		t.Run(file, func(t *testing.T) {
			cluster.Warnings()
			// Files stand alone: what one leaves would be in the way of the next.
			defer removeAll(t, cluster, objects)
			for _, object := range objects {
				kinds[object.GetKind()] = true
				apply(t, cluster, object)
			}
			for _, object := range objects {
				if pod := podOf(t, object); pod != nil {
					checkPod(t, cluster, object, pod)
				}
			}
			if warnings := cluster.Warnings(); len(warnings) > 0 {
				t.Errorf("the API server warns: %v", warnings)
			}
		})
	}
	for _, kind := range []string{"CacheBackend", "CachePolicy", "CacheTenant", "CacheIndex", "PromptTemplate", "PDTopology"} {
		if !kinds[kind] {
			t.Errorf("no sample of a %s", kind)
		}
	}
}

func apply(t *testing.T, cluster *kubetest.Cluster, object *unstructured.Unstructured) {
	t.Helper()
	if namespace := object.GetNamespace(); namespace != "" {
		err := cluster.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	if err := cluster.Client.Create(t.Context(), object.DeepCopy()); err != nil {
		t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
}

func removeAll(t *testing.T, cluster *kubetest.Cluster, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() == "Namespace" {
			continue // nothing ends them here
		}
		kubetest.Eventually(t, "object removed", func() error {
			err := cluster.Client.Delete(t.Context(), object, client.PropagationPolicy(metav1.DeletePropagationBackground))
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, errNotYet)
		})
	}
}

// checkPod creates a pod of a workload and wants it wired without a finding, or
// with the one that the workload names.
func checkPod(t *testing.T, cluster *kubetest.Cluster, workload *unstructured.Unstructured, pod *corev1.Pod) {
	t.Helper()
	if err := cluster.Client.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Errorf("a pod of %s: %v", workload.GetName(), err)
		return
	}
	finding := pod.Annotations[v1alpha1.AnnotationInjectSkipped]
	switch {
	case injected(pod):
		finding = pod.Annotations[v1alpha1.AnnotationInjectWarnings]
	case finding == "":
		finding = inject.ReasonNoBackend
	}
	if want := workload.GetAnnotations()[annotationFinding]; finding != want {
		t.Errorf("a pod of %s has the finding %q, want %q: %v", workload.GetName(), finding, want, pod.Annotations)
	}
}
