// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package controller_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/kubetest"
	"github.com/inferencecache/inference-cache/internal/storage"
)

// lines collects logs of several goroutines.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// forbidden returns the lines about missing rights.
func (l *lines) forbidden() (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, "forbidden") {
			found = append(found, line)
		}
	}
	return found
}

// asInstalled has a controller act with the rights of installed files only.
func asInstalled(t *testing.T, cluster *kubetest.Cluster, files ...string) (change func(*controller.Options), logs *lines) {
	t.Helper()
	cluster.Namespace(t, "inference-cache-system", nil)
	for _, file := range files {
		text, err := os.ReadFile("../../deploy/kustomize/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq("\n"+string(text), "\n---") {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document+"\n"), &o.Object); err != nil {
				t.Fatal(err)
			}
			if o.GroupVersionKind().Group != "rbac.authorization.k8s.io" {
				continue
			}
			if err := cluster.Client.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	logs = &lines{}
	return func(o *controller.Options) {
		o.Config = rest.CopyConfig(cluster.Config)
		o.Config.Impersonate = rest.ImpersonationConfig{
			UserName: "system:serviceaccount:inference-cache-system:inference-cache-controller-manager",
			Groups:   []string{"system:serviceaccounts", "system:authenticated"},
		}
		o.Logger = slog.New(slog.NewTextHandler(logs, nil))
	}, logs
}

// offloads gives a controller what --adapters=all does.
func offloads(t *testing.T) func(*controller.Options) {
	adapters := everyAdapter(t)
	return func(o *controller.Options) {
		o.Adapters, o.Storage = adapters, storage.All()
		o.ConfigHash = func(_ *v1alpha1.CacheBackend, binding *adapter.Binding) string {
			if binding == nil {
				return "host-only"
			}
			return binding.Endpoint
		}
	}
}

// offloadCase is a backend of a name and what becomes of it.
type offloadCase struct {
	edits []func(*v1alpha1.CacheBackend)
	// pod is one engine; nil for none.
	pod func(*corev1.Pod) *corev1.Pod
	// storage is what others do to the Deployment.
	storage func(*appsv1.Deployment)
	stats   *index.Stats
	want    []string
}

// unwired takes the stamps off a pod.
func unwired(p *corev1.Pod) *corev1.Pod {
	p.Annotations = nil
	return p
}

// create has the API server take a case.
func (tc offloadCase) create(t *testing.T, f *fleet, name string) {
	t.Helper()
	b := someBackend(tc.edits...)
	b.ObjectMeta = metav1.ObjectMeta{Namespace: "team-a", Name: name, Annotations: b.Annotations}
	b.Spec.EngineSelector.MatchLabels[v1alpha1.LabelCacheDomain] = name
	complete(b)
	f.create(b)
	if tc.pod == nil {
		return
	}
	made := tc.pod(injectedPod(name, "host-only"))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, Annotations: made.Annotations}}
	pod.Labels = map[string]string{v1alpha1.LabelCacheDomain: name}
	if pod.Annotations != nil {
		pod.Annotations[v1alpha1.AnnotationInjectedBy], pod.Annotations[v1alpha1.AnnotationInjectedByUID] = "team-a/"+name, string(b.UID)
	}
	pod.Spec.Containers = []corev1.Container{{Name: "vllm", Image: "vllm"}}
	pod.Spec.InitContainers = []corev1.Container{{Name: "lmcache-mp-server", Image: "lmcache", RestartPolicy: ptr(corev1.ContainerRestartPolicyAlways)}}
	f.create(pod)
	pod.Status = made.Status
	f.setStatus(pod)
}

// complete fills in what the definition of the resource requires.
func complete(b *v1alpha1.CacheBackend) {
	if b.Spec.LMCache == nil {
		return
	}
	server := &b.Spec.LMCache.PodLocal.Server
	server.Image, server.Port, server.MaxWorkers = "lmcache@sha256:"+strings.Repeat("a", 64), 5555, 1
	server.L1Capacity.Set(1 << 30)
}

// unanswered has the API server answer no call about a path.
func unanswered(path string) func(*controller.Options) {
	return func(o *controller.Options) {
		o.Config = rest.CopyConfig(o.Config)
		o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return failing{next, path} })
	}
}

type failing struct {
	next http.RoundTripper
	path string
}

func (f failing) RoundTrip(request *http.Request) (*http.Response, error) {
	if strings.HasSuffix(request.URL.Path, f.path) {
		return nil, errors.New("no answer")
	}
	return f.next.RoundTrip(request)
}

func TestEnvtestOffloadVerdicts(t *testing.T) {
	f := &fleet{t: t, cluster: kubetest.Start(t, "../../deploy/crds")}
	f.cluster.Namespace(t, "team-a", nil)
	rights, logs := asInstalled(t, f.cluster, "base/controller-rbac.yaml", "components/adapters/added.yaml")
	server := startServer(t, "1")
	foreign := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "storage-foreign"}}
	foreign.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	foreign.Spec.Template.Labels = foreign.Spec.Selector.MatchLabels
	foreign.Spec.Template.Spec.Containers = []corev1.Container{{Name: "x", Image: "x"}}
	f.create(foreign)
	startController(t, f.cluster, server, false, rights, offloads(t), unanswered("/networkpolicies/storage-unasked-storage"))
	all := func(edits ...func(*v1alpha1.CacheBackend)) []func(*v1alpha1.CacheBackend) {
		return append([]func(*v1alpha1.CacheBackend){offload, withoutEvents}, edits...)
	}
	serves := func(p *corev1.Pod) *corev1.Pod { return served(p, true) }
	checked := func(message string, exit int32) func(*corev1.Pod) *corev1.Pod {
		return func(p *corev1.Pod) *corev1.Pod { return kernels(serves(p), message, exit) }
	}
	strictly := func(p *corev1.Pod) *corev1.Pod { return notReady(checked("FAIL: no symbol", 1)(p)) }
	closed := all(managedRedis, failClosed)
	asked := func(hits int64) *index.Stats { return &index.Stats{T2QueryTokens: 100, T2HitTokens: hits, HitRate: .5} }
	cases := map[string]offloadCase{
		"no-engine":         {edits: all(), want: []string{"ConnectorReady=False/NoEnginePods", "Ready=False/NoEnginePods", "Progressing=False/NoEnginePods"}},
		"not-wired":         {edits: all(), pod: unwired, want: []string{"ConnectorReady=Unknown/ConnectorInjectionUnverified", "Ready=Unknown/ConnectorInjectionUnverified"}},
		"server-starting":   {edits: all(), pod: func(p *corev1.Pod) *corev1.Pod { return served(p, false) }, want: []string{"ConnectorReady=False/MPServersNotReady", "Ready=False/MPServersNotReady"}},
		"served":            {edits: all(), pod: serves, want: []string{"ConnectorReady=True/ConnectorReady", "Ready=True/ConnectorReady", "Progressing=False/Synced", "RemoteStorageReady=", "T2Degraded=False/T2Serving"}},
		"hicache":           {edits: []func(*v1alpha1.CacheBackend){hiCache, withoutEvents}, pod: func(p *corev1.Pod) *corev1.Pod { return p }, want: []string{"ConnectorReady=True/ConnectorReady", "Ready=True/HostOnlyActive"}},
		"hicache-starting":  {edits: []func(*v1alpha1.CacheBackend){hiCache, withoutEvents}, pod: notReady, want: []string{"ConnectorReady=False/RolloutInProgress", "Ready=False/RolloutInProgress", "Progressing=True/RolloutInProgress"}},
		"storage-new":       {edits: closed, pod: serves, want: []string{"RemoteStorageReady=Unknown/RemoteStoragePending", "Ready=Unknown/RolloutInProgress", "Progressing=True/RolloutInProgress"}},
		"storage-new-open":  {edits: all(managedRedis), pod: serves, want: []string{"RemoteStorageReady=Unknown/RemoteStoragePending", "Ready=True/ConnectorReady"}},
		"storage-available": {edits: closed, pod: serves, storage: available, want: []string{"RemoteStorageReady=True/RemoteStorageReady", "Ready=True/BackendReady", "Degraded=False/NotDegraded"}},
		"storage-lost":      {edits: closed, pod: serves, storage: progress("NewReplicaSetAvailable"), want: []string{"RemoteStorageReady=False/RemoteStorageUnavailable", "Ready=False/ReplicasUnavailable", "Degraded=True/ReplicasUnavailable", "Progressing=False/Degraded"}},
		"storage-paused":    {edits: closed, pod: serves, storage: scaled(0), want: []string{"RemoteStorageReady=False/RemoteStorageUnavailable", "Ready=False/ScaledToZero"}},
		"storage-foreign":   {edits: closed, pod: serves, want: []string{"RemoteStorageReady=False/RemoteStorageUnavailable", "Ready=False/RemoteStorageUnavailable"}},
		"storage-external":  {edits: all(externalRedis("redis:6379"), failClosed), pod: serves, want: []string{"RemoteStorageReady=True/RemoteStorageReady", "Ready=True/ExternalEndpointAccepted"}},
		"storage-invalid":   {edits: all(externalRedis("redis"), failClosed), pod: serves, want: []string{"RemoteStorageReady=False/RemoteStorageUnavailable", "Ready=False/ExternalEndpointInvalid"}},
		"storage-unasked":   {edits: closed, pod: serves, want: []string{"RemoteStorageReady=Unknown/RemoteStoragePending", "Ready=Unknown/RemoteStoragePending", "Progressing=False/RemoteStoragePending"}},
		"kernels-load":      {edits: all(), pod: checked("OK", 0), want: []string{"EngineKernelsHealthy=True/KernelsHealthy", "Ready=True/ConnectorReady"}},
		"kernels-fail":      {edits: all(), pod: checked("FAIL: no symbol", 0), want: []string{"EngineKernelsHealthy=False/KernelLoadFailed", "Ready=True/ConnectorReady"}},
		"kernels-must-load": {edits: all(), pod: strictly, want: []string{"EngineKernelsHealthy=False/KernelLoadFailed", "Ready=False/EngineKernelDegraded", "Progressing=False/EngineKernelDegraded"}},
		"kernels-unchecked": {edits: all(), pod: checked("ERROR: killed", 0), want: []string{"EngineKernelsHealthy=Unknown/KernelCheckError"}},
		"kernels-unread":    {edits: all(), pod: checked("", 0), want: []string{"EngineKernelsHealthy=Unknown/KernelCheckPending"}},
		"engine-crashes":    {edits: all(), pod: func(p *corev1.Pod) *corev1.Pod { return crashing(p, waitsToRestart, 4) }, want: []string{"EngineCompatibility=False/InjectedEngineCrashLooping"}},
		"tier-2-useless":    {edits: all(), pod: serves, stats: asked(0), want: []string{"T2Degraded=True/T2ZeroHitRate"}},
		"tier-2-of-use":     {edits: all(), pod: serves, stats: asked(20), want: []string{"T2Degraded=False/T2Serving"}},
	}
	var rows []index.ReplicaRow
	for name, tc := range cases {
		tc.create(t, f, name)
		if tc.stats != nil {
			rows = append(rows, index.ReplicaRow{Tenant: "team-a", Replica: name, Memberships: 1, Stats: *tc.stats, HasStats: true})
		}
	}
	server.holdings.hold(rows...)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.storage != nil {
				f.storage(name, tc.storage)
			}
			for _, want := range tc.want {
				f.says(t, name, want)
			}
		})
	}
	for _, reason := range []string{"ConnectorReady", "MPServersNotReady", "RemoteStorageReady", "RemoteStorageUnavailable", "FailClosedEnabled", "BackendDegraded", "InjectedEngineCrashLooping"} {
		eventually(t, "event "+reason, func() bool { return f.told(reason) })
	}
	if found := logs.forbidden(); found != nil {
		t.Errorf("rights are missing: %v", found)
	}
}

// says waits for a condition of a backend to begin as given, "" for none.
func (f *fleet) says(t *testing.T, name, want string) {
	t.Helper()
	kind, value, _ := strings.Cut(want, "=")
	var got string
	defer func() {
		if t.Failed() {
			t.Logf("%s is %q", kind, got)
		}
	}()
	eventually(t, want, func() bool {
		got = conditionOf(get[v1alpha1.CacheBackend](t, f.cluster.Client, key("team-a", name)).Status.Conditions, kind)
		return value == "" && got == "" || value != "" && strings.HasPrefix(got, value+": ")
	})
}

func (f *fleet) told(reason string) bool {
	f.t.Helper()
	var events eventsv1.EventList
	if err := f.cluster.Client.List(f.t.Context(), &events, client.InNamespace("team-a")); err != nil {
		f.t.Fatal(err)
	}
	for _, e := range events.Items {
		if e.Reason == reason && e.Regarding.Kind == "CacheBackend" {
			return true
		}
	}
	return false
}

// storage does to the Deployment of a backend what others do.
func (f *fleet) storage(name string, edit func(*appsv1.Deployment)) {
	f.t.Helper()
	d := &appsv1.Deployment{}
	eventually(f.t, "the storage's Deployment", func() bool { return f.cluster.Client.Get(f.t.Context(), key("team-a", name), d) == nil })
	before := d.DeepCopy()
	edit(d)
	status := d.Status
	if err := f.cluster.Client.Patch(f.t.Context(), d, client.MergeFrom(before)); err != nil {
		f.t.Fatal(err)
	}
	before = d.DeepCopy()
	d.Status = status
	d.Status.ObservedGeneration = d.Generation
	if err := f.cluster.Client.Status().Patch(f.t.Context(), d, client.MergeFrom(before)); err != nil {
		f.t.Fatal(err)
	}
}

// What a backend has run is as declared again at once, passes Pod Security,
// and goes with the declaration.
func TestEnvtestOffloadStorageFollowsItsBackend(t *testing.T) {
	f := &fleet{t: t, cluster: kubetest.Start(t, "../../deploy/crds")}
	f.cluster.Namespace(t, "team-a", map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	rights, logs := asInstalled(t, f.cluster, "base/controller-rbac.yaml", "components/adapters/added.yaml")
	startController(t, f.cluster, startServer(t, "1"), false, rights, offloads(t))
	offloadCase{edits: []func(*v1alpha1.CacheBackend){offload, managedRedis}}.create(t, f, "cb")
	objects := []client.Object{&networkingv1.NetworkPolicy{}, &corev1.Service{}, &appsv1.Deployment{}}
	names := []string{"cb-storage", "cb", "cb"}
	there := func() (n int) {
		for i, o := range objects {
			err := f.cluster.Client.Get(t.Context(), key("team-a", names[i]), o)
			if client.IgnoreNotFound(err) != nil {
				t.Fatal(err)
			}
			if err == nil && o.GetDeletionTimestamp() == nil {
				n++
			}
		}
		return n
	}
	eventually(t, "the storage runs", func() bool { return there() == 3 })
	deployment := objects[2].(*appsv1.Deployment)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "as-deployed"}, Spec: deployment.Spec.Template.Spec}
	f.create(pod)
	eventually(t, "the endpoint is published", func() bool {
		remote := get[v1alpha1.CacheBackend](t, f.cluster.Client, key("team-a", "cb")).Status.RemoteStorage
		return remote != nil && remote.Endpoint == "cb.team-a.svc.cluster.local:6379"
	})
	f.storage("cb", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image, d.Labels = "other", nil })
	eventually(t, "another image is undone", func() bool {
		d := get[appsv1.Deployment](t, f.cluster.Client, key("team-a", "cb"))
		return d.Spec.Template.Spec.Containers[0].Image == storage.DefaultRedisImage && len(d.Labels) == 3
	})
	if err := f.cluster.Client.Delete(t.Context(), objects[1]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a deleted Service is back", func() bool { return there() == 3 })
	version := func() string {
		there()
		return fmt.Sprint(objects[0].GetResourceVersion(), objects[1].GetResourceVersion(), objects[2].GetResourceVersion())
	}
	before := version()
	f.annotate("cb")
	eventually(t, "the pass after an annotation", func() bool { return f.told("RemoteStoragePending") })
	if after := version(); after != before {
		t.Errorf("objects at rest were written: %s, then %s", before, after)
	}
	b := get[v1alpha1.CacheBackend](t, f.cluster.Client, key("team-a", "cb"))
	b.Spec.RemoteStorage = nil
	if err := f.cluster.Client.Update(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the storage is gone", func() bool { return there() == 0 })
	f.says(t, "cb", "RemoteStorageReady=")
	if found := logs.forbidden(); found != nil {
		t.Errorf("rights are missing: %v", found)
	}
}

// annotate has a backend looked at.
func (f *fleet) annotate(name string) {
	f.t.Helper()
	b := get[v1alpha1.CacheBackend](f.t, f.cluster.Client, key("team-a", name))
	before := b.DeepCopy()
	b.Annotations = map[string]string{"looked-at": "again"}
	if err := f.cluster.Client.Patch(f.t.Context(), b, client.MergeFrom(before)); err != nil {
		f.t.Fatal(err)
	}
}

// Without adapters nothing is run, watched or written, with the rights of an
// installation that has none.
func TestEnvtestOffloadIsUnsupportedWithoutAdapters(t *testing.T) {
	f := &fleet{t: t, cluster: kubetest.Start(t, "../../deploy/crds")}
	f.cluster.Namespace(t, "team-a", nil)
	rights, logs := asInstalled(t, f.cluster, "base/controller-rbac.yaml")
	startController(t, f.cluster, startServer(t, "1"), false, rights)
	offloadCase{edits: []func(*v1alpha1.CacheBackend){offload, managedRedis}, pod: func(p *corev1.Pod) *corev1.Pod { return served(p, true) }}.create(t, f, "cb")
	f.says(t, "cb", "Ready=False/Unsupported")
	status := get[v1alpha1.CacheBackend](t, f.cluster.Client, key("team-a", "cb")).Status
	if len(status.Conditions) != 1 || status.Connector != nil || status.RemoteStorage != nil || status.FirstAvailableAt != nil {
		t.Errorf("status %+v", status)
	}
	var deployments appsv1.DeploymentList
	if err := f.cluster.Client.List(t.Context(), &deployments, client.InNamespace("team-a")); err != nil || len(deployments.Items) > 0 {
		t.Errorf("%d Deployments: %v", len(deployments.Items), err)
	}
	if found := logs.forbidden(); found != nil {
		t.Errorf("rights are missing: %v", found)
	}
}
