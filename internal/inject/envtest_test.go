// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package inject_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/inject"
	"github.com/inferencecache/inference-cache/internal/kubetest"
	"github.com/inferencecache/inference-cache/internal/webhook"
)

// start runs an API server that asks a handler about pods, in a namespace that
// admits only restricted pods and has one backend for the domain d.
func start(t *testing.T) (*kubetest.Cluster, *v1alpha1.CacheBackend) { return startWith(t, options()) }

func startWith(t *testing.T, o inject.Options) (*kubetest.Cluster, *v1alpha1.CacheBackend) {
	t.Helper()
	cluster := kubetest.Start(t, "../../deploy/crds")
	handler := inject.NewHandler(inject.HandlerOptions{Options: o, Live: cluster.Client})
	injecting, err := handler.Inject()
	must(t, err)
	stripping, err := handler.Strip()
	must(t, err)
	handlers, err := webhook.Handlers(cluster.Scheme, webhook.Options{Reader: cluster.Client, Registry: o.Registry})
	must(t, err)
	handlers[webhook.PodPath], handlers[webhook.StampsPath] = injecting, stripping
	url, authority := kubetest.Serve(t, handlers)
	registered := webhook.Registration(webhook.RegistrationOptions{Namespace: "ic", URL: url, CABundle: authority})
	for _, object := range []client.Object{registered.Mutating, registered.StampPolicy, registered.StampBinding} {
		must(t, cluster.Client.Create(t.Context(), object))
	}
	cluster.Namespace(t, "team", map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	cluster.Namespace(t, "ic", nil)
	cluster.Namespace(t, "off", map[string]string{v1alpha1.LabelInjection: "disabled"})
	backend := newBackend(vllm)
	backend.UID, backend.Generation = "", 0
	must(t, cluster.Client.Create(t.Context(), backend))
	kubetest.Eventually(t, "pods are injected", func() error {
		pod := restricted(newPod(vllm))
		if err := cluster.Client.Create(t.Context(), pod, client.DryRunAll); err != nil {
			return err
		}
		if !injected(pod) {
			return errNotYet
		}
		return nil
	})
	return cluster, backend
}

var errNotYet = errors.New("the pod was not injected")

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// restricted makes the engine fit for a namespace with restricted pods.
func restricted(p *corev1.Pod) *corev1.Pod {
	p.Spec.ServiceAccountName = "default" // filled in by clusters before webhooks
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].SecurityContext = &corev1.SecurityContext{
			RunAsNonRoot: ptr(true), AllowPrivilegeEscalation: ptr(false),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
	}
	return p
}

func injected(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), func(c corev1.Container) bool { return c.Name == inject.SidecarName })
}

func TestEnvtestInjection(t *testing.T) {
	cluster, backend := start(t)
	ctx := t.Context()
	create := func(t *testing.T, pod *corev1.Pod) *corev1.Pod {
		t.Helper()
		must(t, cluster.Client.Create(ctx, restricted(pod)))
		return pod
	}

	t.Run("a restricted namespace takes every wired shape", func(t *testing.T) {
		for name, shape := range shapes {
			if name == "host-network" {
				continue // restricted pods have their own network
			}
			pod := newPod(vllm, shape)
			pod.OwnerReferences = nil
			for i := range pod.Spec.InitContainers {
				pod.Spec.InitContainers[i].SecurityContext = restricted(newPod(vllm)).Spec.Containers[0].SecurityContext
			}
			pod = create(t, pod)
			if injected(pod) == (name == "existing-sidecar") {
				t.Errorf("%s: injected %t, reason %q", name, injected(pod), pod.Annotations[v1alpha1.AnnotationInjectSkipped])
			}
			if name == "guaranteed" && pod.Status.QOSClass != corev1.PodQOSGuaranteed {
				t.Errorf("a guaranteed pod became %s", pod.Status.QOSClass)
			}
		}
	})
	t.Run("the stamps name the live backend", func(t *testing.T) {
		pod := create(t, newPod(vllm))
		if pod.Annotations[v1alpha1.AnnotationInjectedBy] != "team/cache" || pod.Annotations[v1alpha1.AnnotationInjectedByUID] != string(backend.UID) ||
			pod.Annotations[v1alpha1.AnnotationInjectedGeneration] != "1" || len(pod.Annotations[v1alpha1.AnnotationInjectedConfigHash]) != 16 {
			t.Errorf("stamps are %v", pod.Annotations)
		}
	})
	t.Run("a pod copied from a wired one is wired once", func(t *testing.T) {
		pod := create(t, newPod(vllm))
		again := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "again-", Namespace: "team", Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec}
		must(t, cluster.Client.Create(ctx, again))
		if len(again.Spec.InitContainers) != 1 || len(again.Spec.Volumes) != len(pod.Spec.Volumes) || !slices.Equal(again.Spec.Containers[0].Args, pod.Spec.Containers[0].Args) {
			t.Errorf("%d sidecars, %d volumes, arguments %q", len(again.Spec.InitContainers), len(again.Spec.Volumes), again.Spec.Containers[0].Args)
		}
	})
	t.Run("forged stamps are taken off without a domain", func(t *testing.T) {
		pod := newPod(vllm, forged)
		delete(pod.Labels, v1alpha1.LabelCacheDomain)
		if pod = create(t, pod); pod.Annotations[v1alpha1.AnnotationInjectedBy] != "" || pod.Annotations["mine"] != "kept" {
			t.Errorf("annotations are %v", pod.Annotations)
		}
	})
	t.Run("forged stamps are taken off without a backend", func(t *testing.T) {
		pod := newPod(vllm, forged)
		pod.Labels[v1alpha1.LabelCacheDomain] = "nobody"
		if pod = create(t, pod); pod.Annotations[v1alpha1.AnnotationInjectedByUID] != "" || injected(pod) {
			t.Errorf("annotations are %v", pod.Annotations)
		}
	})
	t.Run("an opt-out is kept", func(t *testing.T) {
		pod := create(t, newPod(vllm, optOut("true")))
		if injected(pod) || pod.Annotations[v1alpha1.AnnotationInjectSkipped] != inject.ReasonOptOut {
			t.Errorf("injected %t, annotations %v", injected(pod), pod.Annotations)
		}
	})
	t.Run("namespaces that are left alone", func(t *testing.T) {
		for _, namespace := range []string{"ic", "kube-system", "off"} {
			pod := newPod(vllm)
			pod.Namespace = namespace
			if pod = create(t, pod); injected(pod) || len(pod.Annotations) != 0 {
				t.Errorf("%s: injected %t, annotations %v", namespace, injected(pod), pod.Annotations)
			}
		}
	})
	t.Run("two backends deny", func(t *testing.T) {
		second := newBackend(vllm, named("second"))
		second.Generation = 0
		must(t, cluster.Client.Create(ctx, second))
		if err := kubetest.Refused(cluster.Client.Create(ctx, restricted(newPod(vllm))), "cache, second"); err != nil {
			t.Error(err)
		}
		must(t, cluster.Client.Delete(ctx, second))
	})
	t.Run("an open breaker lets in trials only", func(t *testing.T) {
		wired := create(t, newPod(vllm))
		open := func(since time.Duration) {
			at := metav1.NewTime(time.Now().Add(-since))
			must(t, cluster.Client.Get(ctx, client.ObjectKeyFromObject(backend), backend))
			backend.Status.Injection = &v1alpha1.InjectionStatus{Breaker: &v1alpha1.InjectionBreaker{
				Open: since > 0, Reason: "ErrImageNeverPull", Since: &at, Image: options().Image,
				ConfigHash: wired.Annotations[v1alpha1.AnnotationInjectedConfigHash],
			}}
			must(t, cluster.Client.Status().Update(ctx, backend))
		}
		reason := func() string { return create(t, newPod(vllm)).Annotations[v1alpha1.AnnotationInjectSkipped] }
		open(time.Minute)
		if got := reason(); got != inject.ReasonBreakerOpen {
			t.Errorf("reason %q after a minute", got)
		}
		open(11 * time.Minute)
		if first, second := reason(), reason(); first != "" || second != inject.ReasonBreakerOpen {
			t.Errorf("reasons %q and %q after eleven minutes, want one trial", first, second)
		}
		open(0)
		if got := reason(); got != "" {
			t.Errorf("reason %q once it is closed", got)
		}
	})
	t.Run("a wired pod takes the changes that any pod takes", func(t *testing.T) { changesPass(t, cluster, create(t, newPod(vllm, shapes["guaranteed"]))) })
	t.Run("stamps do not change later", func(t *testing.T) { stampsStay(t, cluster, create(t, newPod(vllm))) })
	t.Run("a backend meets a LimitRange", func(t *testing.T) { limitsAreMet(t, cluster, backend) })
}

func stampsStay(t *testing.T, cluster *kubetest.Cluster, pod *corev1.Pod) {
	change := func(status bool, change func(map[string]string)) error {
		changed := pod.DeepCopy()
		change(changed.Annotations)
		if status {
			return cluster.Client.Status().Patch(t.Context(), changed, client.MergeFrom(pod), &client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: []string{metav1.DryRunAll}}})
		}
		return cluster.Client.Patch(t.Context(), changed, client.MergeFrom(pod), client.DryRunAll)
	}
	const refusal = "never change"
	set := func(a map[string]string) { a[v1alpha1.AnnotationInjectedByUID] = "other" }
	kubetest.Eventually(t, "the policy is in force", func() error { return kubetest.Refused(change(false, set), refusal) })
	for name, tc := range map[string]struct {
		status bool
		change func(map[string]string)
		want   string
	}{
		"through the status": {true, set, refusal},
		"removed":            {false, func(a map[string]string) { delete(a, v1alpha1.AnnotationInjectedBy) }, refusal},
		"added":              {false, func(a map[string]string) { a[v1alpha1.AnnotationInjectSkipped] = "x" }, refusal},
		"another annotation": {false, func(a map[string]string) { a["mine"] = "new" }, ""},
	} {
		err := change(tc.status, tc.change)
		if tc.want == "" && err != nil || tc.want != "" && kubetest.Refused(err, tc.want) != nil {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func changesPass(t *testing.T, cluster *kubetest.Cluster, pod *corev1.Pod) {
	const security = `{"runAsNonRoot":true,"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]},"seccompProfile":{"type":"RuntimeDefault"}}`
	for name, tc := range map[string]struct{ subresource, patch string }{
		"labels":                 {"", `{"metadata":{"labels":{"app":"x"}}}`},
		"the domain":             {"", `{"metadata":{"labels":{"inferencecache.io/cache-domain":null}}}`},
		"annotations":            {"", `{"metadata":{"annotations":{"mine":"new","inferencecache.io/skip-inject":"true"}}}`},
		"the engine's image":     {"", `{"spec":{"containers":[{"name":"vllm","image":"engine:2"}]}}`},
		"the publisher's image":  {"", `{"spec":{"initContainers":[{"name":"kvevent-subscriber","image":"ic.test/publisher:2"}]}}`},
		"a deadline":             {"", `{"spec":{"activeDeadlineSeconds":60}}`},
		"a container to debug":   {"ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"debug","image":"tools:1","targetContainerName":"vllm","securityContext":` + security + `}]}}`},
		"the engine's resources": {"resize", `{"spec":{"containers":[{"name":"vllm","resources":{"requests":{"cpu":"9"},"limits":{"cpu":"9"}}}]}}`},
		"conditions":             {"status", `{"status":{"conditions":[{"type":"x.test/ready","status":"True"}]}}`},
	} {
		changed, patch := pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(tc.patch))
		var err error
		if tc.subresource == "" {
			err = cluster.Client.Patch(t.Context(), changed, patch)
		} else {
			err = cluster.Client.SubResource(tc.subresource).Patch(t.Context(), changed, patch)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	got := &corev1.Pod{}
	must(t, cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), got))
	if len(got.Spec.EphemeralContainers) != 1 || got.Annotations[v1alpha1.AnnotationInjectedByUID] != pod.Annotations[v1alpha1.AnnotationInjectedByUID] {
		t.Errorf("%d containers to debug, annotations %v", len(got.Spec.EphemeralContainers), got.Annotations)
	}
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	must(t, cluster.Client.SubResource("binding").Create(t.Context(), got, binding))
}

// limitsAreMet has a namespace want more of each container than publishers ask
// for by default.
func limitsAreMet(t *testing.T, cluster *kubetest.Cluster, backend *v1alpha1.CacheBackend) {
	quantities := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("128Mi")}
	}
	create := func() error {
		pod := restricted(newPod(vllm))
		pod.Spec.Containers[0].Resources.Requests = quantities("1")
		return cluster.Client.Create(t.Context(), pod, client.DryRunAll)
	}
	must(t, cluster.Client.Create(t.Context(), &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "limits"},
		Spec:       corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Min: quantities("50m")}}},
	}))
	kubetest.Eventually(t, "the LimitRange is in force", func() error { return kubetest.Refused(create(), "minimum cpu usage") })
	must(t, cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(backend), backend))
	backend.Spec.Observation.Resources = &corev1.ResourceRequirements{Requests: quantities("50m")}
	must(t, cluster.Client.Update(t.Context(), backend))
	must(t, create())
}
