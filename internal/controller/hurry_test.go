// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
)

// startPoller starts one that would wait an hour for its second poll.
func startPoller(t *testing.T, cluster client.Client, discovery controller.Discovery) {
	t.Helper()
	run(t, controller.NewPoller(controller.PollerOptions{
		Client: cluster, Discovery: discovery, Interval: time.Hour, Hurry: time.Millisecond,
	}).Start)
}

func serversShown(t *testing.T, cluster client.Client) (reachable []string) {
	t.Helper()
	var index v1alpha1.CacheIndex
	if cluster.Get(t.Context(), indexKey, &index) != nil {
		return nil
	}
	for _, s := range index.Status.Servers {
		if s.Reachable {
			reachable = append(reachable, s.Name)
		}
	}
	return reachable
}

func TestServersThatComeAndGoAreShownBeforeTheInterval(t *testing.T) {
	cluster, discovery := newCluster(t), new(servers)
	one, two := startServer(t, "1"), startServer(t, "2")
	shown := func(want int) {
		t.Helper()
		eventually(t, "shown", func() bool { return len(serversShown(t, cluster)) == want })
	}
	discovery.set(one.named(t, "one"))
	startPoller(t, cluster, discovery)
	shown(1)

	var refused atomic.Int32
	two.serve(func(w http.ResponseWriter, _ *http.Request) {
		refused.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	discovery.set(one.named(t, "one"), two.named(t, "two"))
	eventually(t, "asked before it is ready", func() bool { return refused.Load() > 0 })
	two.serve(nil)
	shown(2)

	discovery.set(two.named(t, "two"))
	shown(1)
}

// waitingBackend has an engine and awaits its first event.
func waitingBackend() *v1alpha1.CacheBackend {
	b := backend("waiting", "one")
	b.Status.MatchedEnginePods = ptr(int32(1))
	b.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "AwaitingFirstKVEvent", LastTransitionTime: metav1.NewTime(noon),
	}}
	return b
}

func TestFirstEventIsSeenBeforeTheInterval(t *testing.T) {
	cluster, discovery, server := newCluster(t, waitingBackend(), enginePod("pod", "one")), new(servers), startServer(t, "1")
	discovery.set(server.named(t, "one"))
	startPoller(t, cluster, discovery)
	participation := func() *v1alpha1.IndexParticipation {
		return get[v1alpha1.CacheBackend](t, cluster, key("a", "waiting")).Status.IndexParticipation
	}
	eventually(t, "first poll", func() bool { return participation() != nil })
	server.holdings.hold(reports("a", "pod", 2, .5, noon))
	eventually(t, "first event", func() bool { return participation().LastEventAt != nil })
}

func TestTimesOfPolls(t *testing.T) {
	waiting := waitingBackend()
	for name, tc := range map[string]struct {
		objects []client.Object
		takes   time.Duration
		until   time.Duration
		want    []time.Duration
	}{
		"an interval after the last one began": {nil, 50 * time.Millisecond, 61 * time.Second, []time.Duration{0, 30 * time.Second, time.Minute}},
		"soon while a first event is awaited":  {[]client.Object{waiting}, 50 * time.Millisecond, 5 * time.Second, []time.Duration{0, 2 * time.Second, 4 * time.Second}},
		"less soon the longer they take":       {[]client.Object{waiting}, time.Second, 21 * time.Second, []time.Duration{0, 10 * time.Second, 20 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, polls := time.Now(), []time.Duration(nil)
				cluster := interceptor.NewClient(newCluster(t, tc.objects...), interceptor.Funcs{
					Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
						polls = append(polls, time.Since(start))
						time.Sleep(tc.takes)
						return c.Get(ctx, key, o, options...)
					},
				})
				run(t, controller.NewPoller(controller.PollerOptions{Client: cluster, Discovery: new(servers)}).Start)
				time.Sleep(tc.until)
				synctest.Wait()
				if !slices.Equal(polls, tc.want) {
					t.Errorf("polls after %v, want %v", polls, tc.want)
				}
			})
		})
	}
}
