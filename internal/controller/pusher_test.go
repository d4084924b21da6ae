// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/propagate"
)

// pushing is a pusher over a cluster and some servers.
type pushing struct {
	*controller.Pusher
	cluster client.Client
	servers *servers
}

func startPusher(t *testing.T, cluster client.Client, all ...controller.Server) *pushing {
	t.Helper()
	p := &pushing{cluster: cluster, servers: new(servers)}
	p.servers.set(all...)
	p.Pusher = controller.NewPusher(controller.PusherOptions{
		Client: cluster, Discovery: p.servers, Interval: time.Hour,
		Jitter: func(time.Duration) time.Duration { return 10 * time.Millisecond },
	})
	run(t, p.Start)
	return p
}

func (p *pushing) policyStatus(t *testing.T, namespace, name string) v1alpha1.CachePolicyStatus {
	t.Helper()
	var object v1alpha1.CachePolicy
	if err := p.cluster.Get(t.Context(), key(namespace, name), &object); err != nil {
		t.Fatal(err)
	}
	return object.Status
}

// awaitPolicy waits for the condition Programmed of a policy to begin so.
func (p *pushing) awaitPolicy(t *testing.T, namespace, name, want string) v1alpha1.CachePolicyStatus {
	t.Helper()
	eventually(t, "CachePolicy "+name+" Programmed="+want, func() bool {
		return strings.HasPrefix(conditionOf(p.policyStatus(t, namespace, name).Conditions, "Programmed"), want)
	})
	return p.policyStatus(t, namespace, name)
}

func somePolicy(namespace, name string, minimumPrefix int32) *v1alpha1.CachePolicy {
	return &v1alpha1.CachePolicy{ObjectMeta: object(namespace, name), Spec: v1alpha1.CachePolicySpec{MinimumPrefixTokens: &minimumPrefix}}
}

func TestPushReachesEveryServer(t *testing.T) {
	one, two := startServer(t, "1"), startServer(t, "2")
	tenant := &v1alpha1.CacheTenant{ObjectMeta: object("a", "t"), Spec: v1alpha1.CacheTenantSpec{
		TenantID: "a", Quota: v1alpha1.CacheTenantQuota{MaxIndexEntries: ptr(int64(5))},
	}}
	p := startPusher(t, newCluster(t, somePolicy("a", "p", 7), tenant), one.named(t, "one"), two.named(t, "two"))
	status := p.awaitPolicy(t, "a", "p", "True/Programmed: applied by 2 of 2 servers")
	if got := conditionOf(status.Conditions, "Accepted"); got != "True/Accepted: " {
		t.Errorf("Accepted is %q", got)
	}
	if *status.ProgrammedServers != 2 || *status.DesiredServers != 2 || len(status.PolicyRevision) != 64 || status.ObservedGeneration != 1 {
		t.Errorf("status %+v", status)
	}
	for _, server := range []*testServer{one, two} {
		if got := server.effective("a").MinimumPrefixTokens; got != 7 {
			t.Errorf("a server applies %d tokens, want 7", got)
		}
	}
	eventually(t, "the tenant is programmed", func() bool {
		var got v1alpha1.CacheTenant
		return p.cluster.Get(t.Context(), key("a", "t"), &got) == nil &&
			strings.HasPrefix(conditionOf(got.Status.Conditions, "Programmed"), "True/Programmed")
	})
}

func TestServersKeepTheirPoliciesWhereNoneCanBeDeclared(t *testing.T) {
	server := startServer(t, "1")
	p := startPusher(t, newCluster(t, somePolicy("a", "p", 7)), server.named(t, "one"))
	p.awaitPolicy(t, "a", "p", "True")
	before := server.received()
	var looks atomic.Int32
	bare := interceptor.NewClient(newCluster(t), interceptor.Funcs{
		List: func(ctx context.Context, w client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, ok := list.(*v1alpha1.CachePolicyList); ok {
				looks.Add(1)
				return &meta.NoKindMatchError{}
			}
			return w.List(ctx, list, options...)
		},
	})
	another := startPusher(t, bare, server.named(t, "one"))
	for looked := range int32(3) { // the third look comes after the second round
		eventually(t, "a look", func() bool { return looks.Load() > looked })
		another.Changed()
	}
	if got := server.effective("a").MinimumPrefixTokens; got != 7 || server.received() != before {
		t.Errorf("%d pushes, and the server applies %d tokens, want no push and 7", server.received()-before, got)
	}
}

func TestChangeIsPushed(t *testing.T) {
	server := startServer(t, "1")
	p := startPusher(t, newCluster(t, somePolicy("a", "p", 7)), server.named(t, "one"))
	p.awaitPolicy(t, "a", "p", "True")
	change(t, p.cluster, "a", "p", 9)
	p.Changed()
	eventually(t, "the server applies the change", func() bool { return server.effective("a").MinimumPrefixTokens == 9 })
	eventually(t, "the status is about the change", func() bool {
		status := p.policyStatus(t, "a", "p")
		return status.ObservedGeneration == 2 && strings.HasPrefix(conditionOf(status.Conditions, "Programmed"), "True")
	})
}

// change writes a policy as the API server would: with a new generation.
func change(t *testing.T, cluster client.Client, namespace, name string, minimumPrefix int32) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error { // statuses are written meanwhile
		var object v1alpha1.CachePolicy
		if err := cluster.Get(t.Context(), key(namespace, name), &object); err != nil {
			return err
		}
		object.Spec.MinimumPrefixTokens = &minimumPrefix
		object.Generation++
		return cluster.Update(t.Context(), &object)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestUnreachableServerIsNamedAndCatchesUp(t *testing.T) {
	one, two := startServer(t, "1"), startServer(t, "2")
	two.serve(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not now", http.StatusServiceUnavailable) })
	p := startPusher(t, newCluster(t, somePolicy("a", "p", 7)), one.named(t, "one"), two.named(t, "two"))
	p.awaitPolicy(t, "a", "p", "False/PushFailed: two: the server answered 503: not now")
	eventually(t, "one of two servers is programmed", func() bool {
		status := p.policyStatus(t, "a", "p")
		return *status.ProgrammedServers == 1 && *status.DesiredServers == 2
	})
	if one.effective("a").MinimumPrefixTokens != 7 {
		t.Error("the reachable server waits for the other")
	}
	two.serve(nil)
	p.awaitPolicy(t, "a", "p", "True/Programmed: applied by 2 of 2 servers")
}

func TestHungServerDelaysNobody(t *testing.T) {
	one, two := startServer(t, "1"), startServer(t, "2")
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	two.serve(func(http.ResponseWriter, *http.Request) { <-release })
	p := startPusher(t, newCluster(t, somePolicy("a", "p", 7)), one.named(t, "one"), two.named(t, "two"))
	eventually(t, "the hung server is called", func() bool { return two.received() > 0 })
	for tokens := int32(8); tokens < 11; tokens++ {
		change(t, p.cluster, "a", "p", tokens)
		p.Changed()
		eventually(t, "the other server applies the change", func() bool { return one.effective("a").MinimumPrefixTokens == tokens })
	}
}

func TestProgrammedReasons(t *testing.T) {
	refuse := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, status) }
	}
	long := []client.Object{somePolicy("a", "p", 7)}
	for i := range 20 {
		long = append(long, &v1alpha1.CacheTenant{ObjectMeta: object("a", fmt.Sprint("t", i)), Spec: v1alpha1.CacheTenantSpec{
			TenantID: strings.Repeat("x", 60<<10) + fmt.Sprint(i), Quota: v1alpha1.CacheTenantQuota{MaxIndexEntries: ptr(int64(1))},
		}})
	}
	for name, tc := range map[string]struct {
		objects []client.Object
		serve   http.HandlerFunc
		none    bool
		want    string
	}{
		"no server was found":              {none: true, want: "Unknown/NoServers"},
		"a server refuses the body":        {serve: refuse(http.StatusBadRequest, "unsupported policy snapshot version 7"), want: "False/Rejected: one: unsupported policy snapshot version 7"},
		"a server fails":                   {serve: refuse(http.StatusInternalServerError, "oops"), want: "False/PushFailed: one: the server answered 500: oops"},
		"a server knows no revisions":      {serve: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, want: "Unknown/NotEchoed: accepted, but not confirmed by a revision: one"},
		"a server has no such endpoint":    {serve: refuse(http.StatusNotFound, "404 page not found"), want: "False/PushFailed: one: the server answered 404: 404 page not found"},
		"a server echoes another revision": {serve: echo("other"), want: "False/PushFailed: one: another revision is in force"},
		"the body is too long for a server": {
			objects: long, serve: refuse(http.StatusNotFound, "unused"), want: "False/TooLarge: one: the body is longer",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.objects == nil {
				tc.objects = []client.Object{somePolicy("a", "p", 7)}
			}
			server := startServer(t, "1")
			server.serve(tc.serve)
			all := []controller.Server{server.named(t, "one")}
			if tc.none {
				all = nil
			}
			p := startPusher(t, newCluster(t, tc.objects...), all...)
			p.awaitPolicy(t, "a", "p", tc.want)
		})
	}
}

// Routing goes its own way to the servers, and so does its end.
func TestRoutingIsProgrammedOnceItIsGone(t *testing.T) {
	policy := somePolicy("a", "p", 7)
	policy.Spec.Routing = &v1alpha1.CachePolicyRouting{AffinityHash: "Rendezvous"}
	server := startServer(t, "1")
	p := startPusher(t, newCluster(t, policy, somePolicy("b", "p", 7)), server.named(t, "one"))
	p.awaitPolicy(t, "a", "p", "True/Programmed")
	p.awaitPolicy(t, "b", "p", "True/Programmed")
	whole := server.handler
	server.serve(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/policy/extensions" {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		whole.ServeHTTP(w, r)
	})
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error { // statuses are written meanwhile
		plain := get[v1alpha1.CachePolicy](t, p.cluster, key("a", "p"))
		plain.Generation, plain.Spec.Routing = 2, nil
		return p.cluster.Update(t.Context(), plain)
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Changed()
	p.awaitPolicy(t, "a", "p", "False/Rejected: one: no")
	if got := conditionOf(p.policyStatus(t, "b", "p").Conditions, "Programmed"); !strings.HasPrefix(got, "True/Programmed") {
		t.Errorf("Programmed of a policy that never had routing is %q", got)
	}
	server.serve(nil)
	p.Observed("one", "another")
	p.awaitPolicy(t, "a", "p", "True/Programmed")
}

// Nothing short goes to the server that would tell what it can take.
func TestLongBodiesReachAServerThatIsNew(t *testing.T) {
	objects := []client.Object{somePolicy("a", "p", 7)}
	objects[0].(*v1alpha1.CachePolicy).Spec.Routing = &v1alpha1.CachePolicyRouting{AffinityHash: "Rendezvous"}
	for i := range 20 {
		objects = append(objects,
			&v1alpha1.CacheTenant{ObjectMeta: object("a", fmt.Sprint("t", i)), Spec: v1alpha1.CacheTenantSpec{
				TenantID: strings.Repeat("x", 60<<10) + fmt.Sprint(i), Quota: v1alpha1.CacheTenantQuota{MaxIndexEntries: ptr(int64(1))},
			}},
			&v1alpha1.PromptTemplate{ObjectMeta: object("a", fmt.Sprint("t", i)), Spec: v1alpha1.PromptTemplateSpec{Body: strings.Repeat("x", 60<<10)}})
	}
	server := startServer(t, "1")
	p := startPusher(t, newCluster(t, objects...), server.named(t, "one"))
	p.awaitPolicy(t, "a", "p", "True/Programmed")
	if got := server.effective("a").MinimumPrefixTokens; got != 7 {
		t.Errorf("the server applies %d tokens, want 7", got)
	}
}

func echo(revision string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Inference-Cache-Policy-Revision", revision)
		w.WriteHeader(http.StatusNoContent)
	}
}

func TestShadowedResourcesSayWhoWins(t *testing.T) {
	server := startServer(t, "1")
	tenant := func(namespace string, entries int64) *v1alpha1.CacheTenant {
		return &v1alpha1.CacheTenant{ObjectMeta: object(namespace, "t"), Spec: v1alpha1.CacheTenantSpec{
			TenantID: "shared", Quota: v1alpha1.CacheTenantQuota{MaxIndexEntries: &entries},
		}}
	}
	unbounded := &v1alpha1.CacheTenant{ObjectMeta: object("c", "t"), Spec: v1alpha1.CacheTenantSpec{TenantID: "free"}}
	p := startPusher(t, newCluster(t, somePolicy("a", "x", 7), somePolicy("a", "y", 9), tenant("a", 1), tenant("b", 2), unbounded),
		server.named(t, "one"))
	status := p.awaitPolicy(t, "a", "y", "False/NotEffective: CachePolicy x of this namespace is in force")
	if got := conditionOf(status.Conditions, "Accepted"); !strings.HasPrefix(got, "False/Shadowed") {
		t.Errorf("Accepted is %q", got)
	}
	p.awaitPolicy(t, "a", "x", "True/Programmed")
	for namespace, want := range map[string]string{
		"a": "True/Programmed", "b": "False/NotEffective: the quota of CacheTenant a/t is in force", "c": "True/NoQuota",
	} {
		eventually(t, "the tenant in "+namespace+" is "+want, func() bool {
			var got v1alpha1.CacheTenant
			return p.cluster.Get(t.Context(), key(namespace, "t"), &got) == nil &&
				strings.HasPrefix(conditionOf(got.Status.Conditions, "Programmed"), want)
		})
	}
}

// Objects may be older than the definition that would refuse them.
func TestWhatNoDefinitionKeptOutIsNotAccepted(t *testing.T) {
	floor := somePolicy("a", "p", 7)
	floor.Spec.RoutingFloorScore = ptr("-1")
	twice := v1alpha1.PromptTemplateSlot{Name: "s", Type: "Stable"}
	template := &v1alpha1.PromptTemplate{ObjectMeta: object("a", "t"), Spec: v1alpha1.PromptTemplateSpec{Body: "{{s}}", Slots: []v1alpha1.PromptTemplateSlot{twice, twice}}}
	p := startPusher(t, newCluster(t, floor, template), startServer(t, "1").named(t, "one"))
	status := p.awaitPolicy(t, "a", "p", "True/Programmed") // with the default floor
	if got := conditionOf(status.Conditions, "Accepted"); !strings.HasPrefix(got, "False/InvalidRoutingFloor: spec.routingFloorScore") {
		t.Errorf("Accepted of the policy is %q", got)
	}
	eventually(t, "the template is judged", func() bool {
		return strings.HasPrefix(conditionOf(get[v1alpha1.PromptTemplate](t, p.cluster, key("a", "t")).Status.Conditions, "Accepted"), "False/BadSlot")
	})
}

func TestRestartedServerGetsItsPolicyAtOnce(t *testing.T) {
	server := startServer(t, "1")
	p := startPusher(t, newCluster(t, somePolicy("a", "p", 7)), server.named(t, "one"))
	p.awaitPolicy(t, "a", "p", "True")
	revision := p.policyStatus(t, "a", "p").PolicyRevision
	p.Observed("one", revision)
	server.restart("2")
	p.Observed("one", "")
	eventually(t, "the restarted server has the policy", func() bool { return server.effective("a").MinimumPrefixTokens == 7 })
	if got := server.received(); got > 3 {
		t.Errorf("%d pushes, want one more after the restart alone", got)
	}
}

func TestServersMayComeAndGo(t *testing.T) {
	one, two := startServer(t, "1"), startServer(t, "2")
	p := startPusher(t, newCluster(t, somePolicy("a", "p", 7)), one.named(t, "one"))
	p.awaitPolicy(t, "a", "p", "True/Programmed: applied by 1 of 1 servers")
	p.servers.set(two.named(t, "two"))
	p.Changed()
	eventually(t, "the new server has the policy", func() bool { return two.effective("a").MinimumPrefixTokens == 7 })
	p.awaitPolicy(t, "a", "p", "True/Programmed: applied by 1 of 1 servers")
}

func TestTemplateStatus(t *testing.T) {
	server := startServer(t, "1")
	good := &v1alpha1.PromptTemplate{ObjectMeta: object("a", "good"), Spec: v1alpha1.PromptTemplateSpec{
		Body: "{{user}} {{tools}}", Slots: []v1alpha1.PromptTemplateSlot{{Name: "user", Type: "Mutable"}, {Name: "tools", Type: "Stable"}},
	}}
	bad := &v1alpha1.PromptTemplate{ObjectMeta: object("a", "bad"), Spec: v1alpha1.PromptTemplateSpec{Body: "{{user}}"}}
	p := startPusher(t, newCluster(t, good, bad), server.named(t, "one"))
	status := func(name string) v1alpha1.PromptTemplateStatus {
		var got v1alpha1.PromptTemplate
		if err := p.cluster.Get(t.Context(), key("a", name), &got); err != nil {
			t.Fatal(err)
		}
		return got.Status
	}
	eventually(t, "the template is programmed", func() bool {
		return strings.HasPrefix(conditionOf(status("good").Conditions, "Programmed"), "True/Programmed")
	})
	if got := status("good"); len(got.TemplateRevision) != 16 || !strings.HasPrefix(conditionOf(got.Conditions, "StablePrefix"), "False/"+propagate.ReasonMutableBeforeStable) {
		t.Errorf("status %+v", got)
	}
	if got := conditionOf(status("bad").Conditions, "Accepted"); !strings.HasPrefix(got, "False/UndeclaredSlot") {
		t.Errorf("Accepted is %q", got)
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error { // statuses are written meanwhile
		spoilt := get[v1alpha1.PromptTemplate](t, p.cluster, key("a", "good"))
		spoilt.Generation, spoilt.Spec.Body = 2, "{{user"
		return p.cluster.Update(t.Context(), spoilt)
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Changed()
	eventually(t, "the spoilt template is refused", func() bool {
		return strings.HasPrefix(conditionOf(status("good").Conditions, "Accepted"), "False/BadPlaceholder")
	})
	if got := status("good"); conditionOf(got.Conditions, "StablePrefix") != "" || got.TemplateRevision != "" {
		t.Errorf("status of a spoilt template %+v", got)
	}
}

// What is declared since, and what is refused since, is not what servers have.
func TestTopologyStatusIsAboutWhatIsPushed(t *testing.T) {
	topology := func(name string, generation int64, accepted metav1.ConditionStatus) *v1alpha1.PDTopology {
		o := &v1alpha1.PDTopology{ObjectMeta: object("a", name)}
		o.Generation = generation
		o.Status.Conditions = []metav1.Condition{{Type: "Accepted", Status: accepted, Reason: "Test", ObservedGeneration: generation}}
		return o
	}
	cluster, discovery := newCluster(t,
		topology("changed", 2, metav1.ConditionTrue), topology("refused", 1, metav1.ConditionFalse), topology("settled", 1, metav1.ConditionTrue),
	), new(servers)
	discovery.set(startServer(t, "1").named(t, "one"))
	pusher := controller.NewPusher(controller.PusherOptions{Client: cluster, Discovery: discovery, Interval: time.Hour, Topologies: func() (all []propagate.Topology) {
		for _, name := range []string{"changed", "refused", "settled"} { // in the order in which statuses are written
			all = append(all, propagate.Topology{Name: key("a", name), Generation: 1})
		}
		return all
	}})
	run(t, pusher.Start)
	programmed := func(name string) string {
		return conditionOf(get[v1alpha1.PDTopology](t, cluster, key("a", name)).Status.Conditions, "Programmed")
	}
	eventually(t, "what is settled is programmed", func() bool { return strings.HasPrefix(programmed("settled"), "True/Programmed") })
	for _, name := range []string{"changed", "refused"} {
		if got := programmed(name); got != "" {
			t.Errorf("Programmed of the topology that was %s is %q", name, got)
		}
	}
}

func TestStatusIsWrittenOnChangeOnly(t *testing.T) {
	server := startServer(t, "1")
	p := startPusher(t, newCluster(t, somePolicy("a", "p", 7)), server.named(t, "one"))
	p.awaitPolicy(t, "a", "p", "True")
	version := func() string {
		var object v1alpha1.CachePolicy
		if err := p.cluster.Get(context.Background(), key("a", "p"), &object); err != nil {
			t.Fatal(err)
		}
		return object.ResourceVersion
	}
	before := version()
	if err := p.cluster.Create(t.Context(), somePolicy("b", "p", 1)); err != nil {
		t.Fatal(err)
	}
	p.Changed()
	p.awaitPolicy(t, "b", "p", "True")
	if after := version(); after != before {
		t.Errorf("the status of an unchanged policy went from version %s to %s", before, after)
	}
}
