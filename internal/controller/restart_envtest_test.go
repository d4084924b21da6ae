// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package controller_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/kubetest"
)

// crowd creates backends whose engines fared differently, some of each.
func crowd(t *testing.T, f *fleet, server *testServer, each int) {
	t.Helper()
	ready := func(p *corev1.Pod) *corev1.Pod { return p }
	serves := func(p *corev1.Pod) *corev1.Pod { return served(p, true) }
	skipped := func(p *corev1.Pod) *corev1.Pod {
		p.Annotations = map[string]string{v1alpha1.AnnotationInjectSkipped: "model-id-unset"}
		return p
	}
	var rows []index.ReplicaRow
	for i := range each {
		for kind, tc := range map[string]offloadCase{
			"wired":   {pod: ready},
			"unseen":  {pod: unwired},
			"skipped": {pod: skipped},
			"idle":    {edits: []func(*v1alpha1.CacheBackend){withoutEvents}},
			"stored":  {edits: []func(*v1alpha1.CacheBackend){offload, managedRedis}, pod: serves},
		} {
			name := fmt.Sprintf("%s-%03d", kind, i)
			tc.create(t, f, name)
			if tc.pod != nil {
				rows = append(rows, reports("team-a", name, 3, .5, time.Now()))
			}
		}
	}
	server.holdings.hold(append(server.holdings.replicas, rows...)...)
}

// untilQuiet returns the calls up to a stretch of pushes without one.
func (c *calls) untilQuiet(t *testing.T, server *testServer) (all []string) {
	t.Helper()
	last := server.received()
	eventually(t, "a stretch without a call", func() bool {
		if more := c.take(); len(more) > 0 {
			all, last = append(all, more...), server.received()
		}
		return server.received()-last >= 20
	})
	return all
}

// standing tells all objects that the controller writes, with their versions.
func (f *fleet) standing() (all []string) {
	f.t.Helper()
	for _, list := range []client.ObjectList{
		&v1alpha1.CacheBackendList{}, &v1alpha1.CachePolicyList{}, &v1alpha1.CacheTenantList{}, &v1alpha1.CacheIndexList{},
		&v1alpha1.PromptTemplateList{}, &v1alpha1.PDTopologyList{}, &eventsv1.EventList{},
		&appsv1.DeploymentList{}, &corev1.ServiceList{}, &networkingv1.NetworkPolicyList{},
	} {
		if err := f.cluster.Client.List(f.t.Context(), list); err != nil {
			f.t.Fatal(err)
		}
		err := meta.EachListItem(list, func(o runtime.Object) error {
			object := o.(client.Object)
			all = append(all, fmt.Sprintf("%T %s %s", o, object.GetName(), object.GetResourceVersion()))
			return nil
		})
		if err != nil {
			f.t.Fatal(err)
		}
	}
	return all
}

// A controller that starts where another has left off finds everything said.
// It tells young pods once more what they have been told, and applies storages
// as they stand; neither changes anything.
func TestEnvtestSecondStartChangesNothing(t *testing.T) {
	f := &fleet{t: t, cluster: kubetest.Start(t, "../../deploy/crds")}
	server := startServer(t, "1")
	server.holdings.tenants = []index.TenantRow{{Tenant: "team-a", Keys: 3}}
	atRest(t, f.cluster, server)
	idle := get[v1alpha1.CacheBackend](t, f.cluster.Client, key("team-a", "idle"))
	if withoutEvents(idle); f.cluster.Client.Update(t.Context(), idle) != nil { // lest it waits for half an hour
		t.Fatal("no update")
	}
	const each = 4
	crowd(t, f, server, each)
	asked := &calls{}
	start := func() (calls []string) {
		stop := startController(t, f.cluster, server, false, offloads(t), func(o *controller.Options) {
			o.Config = rest.CopyConfig(o.Config)
			o.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return recording{next, asked} })
			o.PushInterval, o.Now = o.PollInterval, f.now
		})
		calls = asked.untilQuiet(t, server)
		stop()
		return append(calls, asked.take()...)
	}
	t.Logf("%d calls at the first start", len(start()))
	before := f.standing()
	for _, again := range []struct {
		age  time.Duration
		told int // pods that are told of
	}{{0, 3 * each}, {31 * time.Minute, 0}} {
		f.ahead.Store(int64(again.age))
		told := 0
		for _, call := range start() {
			switch {
			case strings.HasPrefix(call, "GET "), strings.HasPrefix(call, "PATCH ") && strings.Contains(call, "/stored-"):
			case strings.HasPrefix(call, "POST ") && strings.HasSuffix(call, "/events"):
				told++
			default:
				t.Errorf("%s by a start %s later", call, again.age)
			}
		}
		if told != again.told {
			t.Errorf("%d events are posted by a start %s later, want %d", told, again.age, again.told)
		}
		for _, object := range f.standing() {
			if !slices.Contains(before, object) {
				t.Errorf("a start %s later wrote %s", again.age, object)
			}
		}
	}
}
