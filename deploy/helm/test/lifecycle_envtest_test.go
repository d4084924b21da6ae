// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package chart

import (
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/kubetest"
	"github.com/inferencecache/inference-cache/internal/webhook"
	"github.com/inferencecache/inference-cache/internal/webhookcert"
)

func unstructuredOf(fields map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: fields}
}

// release drives Helm against a cluster.
type release struct {
	cluster *kubetest.Cluster
	config  *action.Configuration
	keeper  *webhookcert.Keeper
	// serverSide is how Helm 4 applies; else the three-way merge of Helm 3.
	serverSide bool
}

const releaseName = "inference-cache"

func newRelease(t *testing.T, cluster *kubetest.Cluster, serverSide bool) *release {
	t.Helper()
	getter := genericclioptions.NewConfigFlags(false).WithWrapConfigFn(func(*rest.Config) *rest.Config { return rest.CopyConfig(cluster.Config) })
	getter.APIServer = &cluster.Config.Host
	config := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	if err := config.Init(getter, namespace, "memory"); err != nil {
		t.Fatal(err)
	}
	// Who writes a field is known by the name of the program.
	writes := rest.CopyConfig(cluster.Config)
	writes.UserAgent = "inferencecache/test"
	controller, err := client.New(writes, client.Options{Scheme: cluster.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &release{cluster, config, webhookcert.NewKeeper(controller, webhookcert.Options{
		Namespace: namespace, Name: "webhook-server-cert", Hosts: webhookcert.ServiceNames(webhook.ServiceName, namespace),
		Publish: webhookcert.IntoWebhooks(controller, webhook.MutatingName, webhook.ValidatingName),
	}), serverSide}
}

func chartAndValues(t *testing.T, values string) (chart any, given map[string]any) {
	t.Helper()
	loaded, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	read, err := common.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	return loaded, read
}

func (r *release) install(t *testing.T, values string) {
	t.Helper()
	install := action.NewInstall(r.config)
	install.ReleaseName, install.Namespace, install.WaitStrategy, install.ServerSideApply = releaseName, namespace, kube.HookOnlyStrategy, r.serverSide
	install.Timeout = time.Minute
	chart, given := chartAndValues(t, values)
	if _, err := install.RunWithContext(t.Context(), chart, given); err != nil {
		t.Fatalf("helm install: %v", err)
	}
}

func (r *release) upgrade(t *testing.T, values string) {
	t.Helper()
	upgrade := action.NewUpgrade(r.config)
	upgrade.Namespace, upgrade.WaitStrategy, upgrade.ServerSideApply, upgrade.Timeout = namespace, kube.HookOnlyStrategy, strconv.FormatBool(r.serverSide), time.Minute
	upgrade.ResetValues = true // else no values are those of before
	chart, given := chartAndValues(t, values)
	if _, err := upgrade.RunWithContext(t.Context(), releaseName, chart, given); err != nil {
		t.Fatalf("helm upgrade with %q: %v", values, err)
	}
}

func (r *release) rollback(t *testing.T, revision int) {
	t.Helper()
	rollback := action.NewRollback(r.config)
	rollback.Version, rollback.WaitStrategy, rollback.ServerSideApply, rollback.Timeout = revision, kube.HookOnlyStrategy, strconv.FormatBool(r.serverSide), time.Minute
	if err := rollback.Run(releaseName); err != nil {
		t.Fatalf("helm rollback: %v", err)
	}
}

func (r *release) uninstall(t *testing.T) {
	t.Helper()
	uninstall := action.NewUninstall(r.config)
	uninstall.WaitStrategy, uninstall.Timeout = kube.HookOnlyStrategy, time.Minute
	if _, err := uninstall.Run(releaseName); err != nil {
		t.Fatalf("helm uninstall: %v", err)
	}
}

// bundles counts the entries of both configurations, and those without a bundle
// of authorities.
func (r *release) bundles(t *testing.T) (entries, bare []string) {
	t.Helper()
	mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
	err := errors.Join(
		r.cluster.Client.Get(t.Context(), client.ObjectKey{Name: webhook.MutatingName}, mutating),
		r.cluster.Client.Get(t.Context(), client.ObjectKey{Name: webhook.ValidatingName}, validating),
	)
	if err != nil {
		t.Fatal(err)
	}
	note := func(name string, c admissionv1.WebhookClientConfig) {
		entries = append(entries, name)
		if len(c.CABundle) == 0 {
			bare = append(bare, name)
		}
	}
	for _, w := range mutating.Webhooks {
		note(w.Name, w.ClientConfig)
	}
	for _, w := range validating.Webhooks {
		note(w.Name, w.ClientConfig)
	}
	return entries, bare
}

// losses follows the mutating configuration. The function it returns names the
// entries that were without a bundle at any moment up to its call.
func (r *release) losses(t *testing.T) func() []string {
	t.Helper()
	clients, err := kubernetes.NewForConfig(r.cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	configurations := clients.AdmissionregistrationV1().MutatingWebhookConfigurations()
	watcher, err := configurations.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + webhook.MutatingName})
	if err != nil {
		t.Fatal(err)
	}
	return func() (lost []string) {
		t.Helper()
		defer watcher.Stop()
		last, err := configurations.Get(t.Context(), webhook.MutatingName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for event := range watcher.ResultChan() {
			configuration, ok := event.Object.(*admissionv1.MutatingWebhookConfiguration)
			if !ok {
				t.Fatalf("the watch ends with %v", event.Object)
			}
			for _, w := range configuration.Webhooks {
				if len(w.ClientConfig.CABundle) == 0 {
					lost = append(lost, w.Name)
				}
			}
			if configuration.ResourceVersion == last.ResourceVersion {
				return lost
			}
		}
		t.Fatal("the watch ended early")
		return nil
	}
}

// TestEnvtestHelmLifecycle installs, upgrades, rolls back and uninstalls with
// Helm itself, by both ways in which Helm applies.
func TestEnvtestHelmLifecycle(t *testing.T) {
	for name, serverSide := range map[string]bool{"server-side apply": true, "three-way merge": false} {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.StartEmpty(t)
			cluster.Namespace(t, namespace, nil)
			cluster.Namespace(t, "team", nil)
			r := newRelease(t, cluster, serverSide)
			r.install(t, "")
			cluster.AwaitResources(t)
			if entries, bare := r.bundles(t); !slices.Equal(entries, bare) || len(entries) < 8 {
				t.Errorf("the chart brings a bundle: %v of %v have none", bare, entries)
			}
			if err := r.keeper.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Run("an upgrade leaves the bundles in place", func(t *testing.T) { r.checkUpgrade(t) })
			t.Run("entries come and go", func(t *testing.T) { r.checkEntries(t) })
			t.Run("a rollback leaves the bundles in place", func(t *testing.T) {
				stop := r.losses(t)
				r.rollback(t, 1)
				if lost := stop(); len(lost) > 0 {
					t.Errorf("without a bundle during the rollback: %v", lost)
				}
				if _, bare := r.bundles(t); len(bare) > 0 {
					t.Errorf("without a bundle: %v", bare)
				}
			})
			t.Run("uninstall leaves resources and lets pods through", func(t *testing.T) { r.checkUninstall(t) })
		})
	}
}

func (r *release) checkUpgrade(t *testing.T) {
	stop := r.losses(t)
	r.upgrade(t, "image: {tag: v2.0.0}\nserver: {replicas: 3}\nwebhook: {tenantIDScope: namespace}")
	if lost := stop(); len(lost) > 0 {
		t.Errorf("without a bundle during the upgrade: %v", lost)
	}
	if _, bare := r.bundles(t); len(bare) > 0 {
		t.Errorf("without a bundle: %v", bare)
	}
}

// checkEntries has an upgrade take entries away and another bring them back.
func (r *release) checkEntries(t *testing.T) {
	before, _ := r.bundles(t)
	r.upgrade(t, "injection: {enabled: false}")
	fewer, bare := r.bundles(t)
	if len(fewer) != len(before)-2 || len(bare) > 0 {
		t.Errorf("entries %v, without a bundle %v", fewer, bare)
	}
	r.upgrade(t, "")
	again, _ := r.bundles(t)
	if len(again) != len(before) {
		t.Errorf("entries %v, want those of before: %v", again, before)
	}
	if err := r.keeper.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, bare := r.bundles(t); len(bare) > 0 {
		t.Errorf("not repaired: %v", bare)
	}
}

func (r *release) checkUninstall(t *testing.T) {
	ctx, c := t.Context(), r.cluster.Client
	engine := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team", Labels: map[string]string{v1alpha1.LabelCacheDomain: "d"}},
			Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "vllm", Image: "engine"}}},
		}
	}
	// Nobody answers the webhooks here; pods are created all the same.
	if err := c.Create(ctx, engine("before")); err != nil {
		t.Errorf("with webhooks that are away: %v", err)
	}
	index := &v1alpha1.CacheIndex{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.CacheIndexName}}
	if err := c.Create(ctx, index); err != nil {
		t.Fatal(err)
	}
	r.uninstall(t)
	for _, object := range []client.Object{
		&admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: webhook.MutatingName}},
		&admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: webhook.ValidatingName}},
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: webhook.StampPolicyName}},
	} {
		if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); !apierrors.IsNotFound(err) {
			t.Errorf("%s is left: %v", object.GetName(), err)
		}
	}
	for _, object := range []client.Object{index, engine("before")} {
		if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			t.Errorf("%s went with the release: %v", object.GetName(), err)
		}
	}
	kubetest.Eventually(t, "pods and resources are admitted", func() error {
		tenant := &v1alpha1.CacheTenant{ObjectMeta: metav1.ObjectMeta{Name: "ct", Namespace: "team"}, Spec: v1alpha1.CacheTenantSpec{TenantID: "t"}}
		return errors.Join(c.Create(ctx, engine("after"), client.DryRunAll), c.Create(ctx, tenant, client.DryRunAll))
	})
	// What stays is no obstacle to the next install.
	again := newRelease(t, r.cluster, r.serverSide)
	again.install(t, "")
	again.uninstall(t)
}
