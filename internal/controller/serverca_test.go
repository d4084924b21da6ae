// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"crypto/x509"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/testcert"
)

const copyName = "server-ca"

// copying is a ServerCA over a cluster whose writes can fail.
type copying struct {
	trust auth.Authorities
	client.WithWatch
	ca       *controller.ServerCA
	registry *prometheus.Registry
	events   *events.FakeRecorder
	fault    error // of creations
	calls    int   // that wrote ConfigMaps
}

func newCopying(t *testing.T, objects ...client.Object) *copying {
	t.Helper()
	c := &copying{registry: prometheus.NewRegistry(), events: events.NewFakeRecorder(10)}
	c.WithWatch = interceptor.NewClient(newCluster(t, objects...), interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if _, ok := o.(*corev1.ConfigMap); ok && c.fault != nil {
				return c.fault
			}
			c.calls++
			return w.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, w client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			c.calls++
			return w.Update(ctx, o, options...)
		},
	})
	c.ca = controller.NewServerCA(controller.ServerCAOptions{
		Client: c, Live: c, Namespace: "ic", Secret: "tls", ConfigMap: copyName, Trust: &c.trust, Events: c.events, Metrics: controller.NewMetrics(c.registry),
	})
	return c
}

func (c *copying) look(t *testing.T, namespace string) error {
	t.Helper()
	_, err := c.ca.Reconcile(t.Context(), reconcile.Request{NamespacedName: key(namespace, copyName)})
	return err
}

// data is what the copy of a namespace holds, nil without one.
func (c *copying) data(t *testing.T, namespace string) map[string]string {
	t.Helper()
	copied := &corev1.ConfigMap{}
	err := c.Get(t.Context(), key(namespace, copyName), copied)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return copied.Data
}

func (c *copying) namespaces(t *testing.T, want string) {
	t.Helper()
	const name = "inferencecache_controller_server_ca_namespaces"
	text := "# HELP " + name + " Namespaces with a CacheBackend, by the state of their copy of the servers' authority.\n# TYPE " + name + " gauge\n"
	for _, state := range []string{"current", "failed", "foreign"} {
		value := "0"
		if state == want {
			value = "1"
		}
		text += name + `{state="` + state + `"} ` + value + "\n"
	}
	if err := testutil.GatherAndCompare(c.registry, strings.NewReader(text), name); err != nil {
		t.Error(err)
	}
}

func backendIn(namespace string) *v1alpha1.CacheBackend {
	return &v1alpha1.CacheBackend{ObjectMeta: object(namespace, "cb")}
}

func authorityText(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(testcert.NewAuthority(t).File)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestServerCAIsCopiedWithoutWhatElseTheSecretHolds(t *testing.T) {
	old, recent := authorityText(t), authorityText(t)
	secret := &corev1.Secret{ObjectMeta: object("ic", "tls"), Data: map[string][]byte{"ca.crt": old, "tls.key": []byte("private")}}
	c := newCopying(t, backendIn("a"), secret)
	if err := c.look(t, "a"); err != nil || c.data(t, "a") != nil || !c.trust.Pool().Equal(x509.NewCertPool()) {
		t.Errorf("before the authority is known: %v, %v", c.data(t, "a"), err)
	}
	for _, text := range [][]byte{old, slices.Concat([]byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), recent, old)} {
		secret.Data["ca.crt"] = text
		if err := c.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.ca.Load(t.Context()), c.look(t, "a")); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"ca.crt": string(text[strings.Index(string(text), "-----BEGIN CERTIFICATE"):])}
		if got := c.data(t, "a"); !maps.Equal(got, want) {
			t.Errorf("the copy is %v", got)
		}
		trusted := x509.NewCertPool()
		trusted.AppendCertsFromPEM(text)
		if !c.trust.Pool().Equal(trusted) {
			t.Error("the controller itself trusts others")
		}
	}
	calls := c.calls
	if err := errors.Join(c.ca.Load(t.Context()), c.look(t, "a")); err != nil || c.calls != calls {
		t.Errorf("a look without need wrote, or failed: %v", err)
	}
	secret.Data["ca.crt"] = []byte("nonsense")
	if err := c.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if c.ca.Load(t.Context()) == nil || c.look(t, "a") != nil || !strings.Contains(c.data(t, "a")["ca.crt"], "BEGIN CERTIFICATE") {
		t.Error("nonsense replaced the authority")
	}
}

func TestServerCALeavesOthersAlone(t *testing.T) {
	ours := map[string]string{"app.kubernetes.io/managed-by": "inference-cache-controller"}
	for name, tc := range map[string]struct {
		backend bool
		labels  map[string]string // of the copy that is there
		fault   error
		kept    bool // it is as it was
		state   string
		event   bool
		fails   bool
	}{
		"somebody else's":                   {backend: true, labels: map[string]string{"app.kubernetes.io/managed-by": "Helm"}, kept: true, state: "foreign", event: true},
		"without a label":                   {backend: true, labels: map[string]string{}, kept: true, state: "foreign", event: true},
		"ours":                              {backend: true, labels: ours, state: "current"},
		"somebody else's, without backends": {labels: map[string]string{}, kept: true},
		"ours, without backends":            {labels: ours},
		"none, without backends":            {},
		"none, and none can be made":        {backend: true, fault: errors.New("away"), state: "failed", fails: true},
		"the namespace is going away": {backend: true, fault: &apierrors.StatusError{ErrStatus: metav1.Status{
			Reason: metav1.StatusReasonForbidden, Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			if tc.backend {
				objects = append(objects, backendIn("a"))
			}
			if tc.labels != nil {
				objects = append(objects, &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: copyName, Labels: tc.labels}, Data: map[string]string{"ca.crt": "theirs"},
				})
			}
			c := newCopying(t, objects...)
			c.fault = tc.fault
			if err := c.ca.Publish(t.Context(), authorityText(t)); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := c.look(t, "a"); (err != nil) != tc.fails {
					t.Errorf("error %v", err)
				}
			}
			got := c.data(t, "a")
			if kept := got["ca.crt"] == "theirs"; kept != tc.kept {
				t.Errorf("the copy is %v", got)
			}
			if !tc.backend && !tc.kept && got != nil {
				t.Error("a copy outlives the last backend")
			}
			c.namespaces(t, tc.state)
			close(c.events.Events)
			var told []string
			for e := range c.events.Events {
				told = append(told, e)
			}
			if tc.event != (len(told) == 1) || tc.event && !strings.HasPrefix(told[0], "Warning ServerCAConflict ") {
				t.Errorf("events %q", told)
			}
		})
	}
}

// The name belongs to one object; another one of the kind is not looked at.
func TestServerCAKnowsItsName(t *testing.T) {
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "a", Name: "other", Labels: map[string]string{"app.kubernetes.io/managed-by": "inference-cache-controller"},
	}}
	c := newCopying(t, other)
	if _, err := c.ca.Reconcile(t.Context(), reconcile.Request{NamespacedName: key("a", "other")}); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(other), other); err != nil {
		t.Error(err)
	}
}
