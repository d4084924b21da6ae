// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

// NodeKeeperOptions of a NodeKeeper. Fields without a default are required.
type NodeKeeperOptions struct {
	// Client reads engine pods and writes servers.
	Client client.Client
	// Servers lists the pods of servers; default Client.
	Servers client.Reader
	// Live reads single pods as they are; default Client.
	Live client.Reader
	// Events takes the events; default nobody.
	Events events.EventRecorder
	// Metrics count what is done to servers; default none.
	Metrics *Metrics
	// Logger takes the logs; default none.
	Logger *slog.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// NodeKeeper keeps an LMCache server on each node with engines of a NodeLocal
// backend. It is safe for concurrent use.
type NodeKeeper struct {
	options NodeKeeperOptions

	mu       sync.Mutex
	refused  map[types.NamespacedName]map[string]refused // by backend and node
	timeouts map[types.NamespacedName]map[types.UID]metav1.Time
}

var _ NodeServers = (*NodeKeeper)(nil)

// refused is a server that could not be created.
type refused struct {
	nodelocal.Refusal
	times int
	until time.Time
}

// NewNodeKeeper returns a keeper of servers.
func NewNodeKeeper(o NodeKeeperOptions) *NodeKeeper {
	if o.Servers == nil {
		o.Servers = o.Client
	}
	if o.Live == nil {
		o.Live = o.Client
	}
	if o.Events == nil {
		o.Events = noEvents{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &NodeKeeper{
		options: o, refused: map[types.NamespacedName]map[string]refused{}, timeouts: map[types.NamespacedName]map[types.UID]metav1.Time{},
	}
}

// nodePass is one look at the servers of a backend.
type nodePass struct {
	*NodeKeeper
	backend   *v1alpha1.CacheBackend
	now       time.Time
	wish      nodelocal.Wish
	storage   *nodelocal.Storage
	engines   []nodelocal.Engine
	enginesOn map[string]string      // a live engine pod by node
	pods      map[string]*corev1.Pod // servers by name
	servers   []nodelocal.Server
}

// Keep implements NodeServers.
func (n *NodeKeeper) Keep(ctx context.Context, b *v1alpha1.CacheBackend, binding *adapter.Binding) (*NodeReport, error) {
	p := &nodePass{NodeKeeper: n, backend: b, now: n.options.Now(), enginesOn: map[string]string{}}
	p.wish = nodelocal.Wish{Backend: b.Name, Wanted: offloads(b) && nodelocal.Applies(b)}
	if err := p.readServers(ctx); err != nil {
		return nil, err
	}
	if !p.wish.Wanted && len(p.servers) == 0 {
		n.Forget(client.ObjectKeyFromObject(b))
		return nil, nil
	}
	if err := p.readEngines(ctx); err != nil {
		return nil, err
	}
	if p.wish.Wanted {
		if err := p.wishFor(binding); err != nil {
			return nil, err
		}
	}
	actions, wait := nodelocal.Plan(p.wish, p.servers, p.engines, p.now)
	p.keepRefusals(actions)
	for _, action := range actions {
		if err := p.carryOut(ctx, action); err != nil {
			return nil, fmt.Errorf("%s the LMCache server of node %s: %w", action.Step, action.Node, err)
		}
	}
	if !p.wish.Wanted {
		return nil, nil
	}
	return p.report(wait), nil
}

// report says whether the engines are served.
func (p *nodePass) report(wait time.Duration) *NodeReport {
	refusals, retry := p.refusals()
	if retry > 0 && (wait == 0 || retry < wait) {
		wait = retry
	}
	found := nodelocal.Judge(nodelocal.View{
		MaxEngines: p.backend.Spec.LMCache.NodeLocal.Server.MaxGPUWorkers, Servers: p.servers, Engines: p.engines, Refusals: refusals,
	})
	report := &NodeReport{
		Status: metav1.ConditionFalse, Reason: found.Reason, Message: found.Message,
		Desired: found.Desired, Ready: found.Ready, Coverage: found.Coverage, Next: wait,
	}
	switch {
	case found.Served:
		report.Status = metav1.ConditionTrue
	case found.Unknown:
		report.Status = metav1.ConditionUnknown
	}
	return report
}

// wishFor says which servers the backend asks for.
func (p *nodePass) wishFor(binding *adapter.Binding) (err error) {
	spec := p.backend.Spec.LMCache.NodeLocal
	if p.storage, err = adapter.NodeStorage(binding); err != nil {
		return fmt.Errorf("find the storage of LMCache servers: %w", err)
	}
	if p.wish.Hash, err = nodelocal.ConfigHash(p.backend, p.storage); err != nil {
		return fmt.Errorf("encode the configuration of LMCache servers: %w", err)
	}
	p.wish.Retention = nodelocal.DefaultIdleSeconds * time.Second
	if s := spec.IdleRetentionSeconds; s != nil {
		p.wish.Retention = time.Duration(*s) * time.Second
	}
	p.wish.ReplaceNow = p.backend.Annotations[v1alpha1.AnnotationNodeLocalReplace] == "now"
	return nil
}

// readServers lists the servers that the backend owns.
func (p *nodePass) readServers(ctx context.Context) error {
	var list corev1.PodList
	if err := p.options.Servers.List(ctx, &list, client.InNamespace(p.backend.Namespace), client.MatchingLabels{
		v1alpha1.LabelCacheBackendUID: string(p.backend.UID), v1alpha1.LabelLMCacheNodeServer: "true",
	}); err != nil {
		return fmt.Errorf("list LMCache servers: %w", err)
	}
	p.pods = make(map[string]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		if pod := &list.Items[i]; metav1.IsControlledBy(pod, p.backend) {
			p.pods[pod.Name] = pod
			p.servers = append(p.servers, serverOf(pod))
		}
	}
	return nil
}

// readEngines lists the engine pods that are selected, or wired already.
func (p *nodePass) readEngines(ctx context.Context) error {
	var list corev1.PodList
	if err := p.options.Client.List(ctx, &list, client.InNamespace(p.backend.Namespace), client.HasLabels{v1alpha1.LabelCacheDomain}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list engine pods: %w", err)
	}
	domain := domainOf(p.backend)
	var wired []*corev1.Pod
	for i := range list.Items {
		pod := &list.Items[i]
		selected := domain != "" && pod.Labels[v1alpha1.LabelCacheDomain] == domain
		verified := injectedBy(pod, p.backend)
		if ended(pod) || !selected && !verified {
			continue
		}
		_, ready := readySince(pod)
		engine := nodelocal.Engine{
			Name: pod.Name, Node: pod.Spec.NodeName, Hash: pod.Annotations[v1alpha1.AnnotationInjectedServerHash],
			Live: selected && live(pod), Ready: ready, Verified: verified,
		}
		p.engines = append(p.engines, engine)
		if verified {
			wired = append(wired, pod)
		}
		if old := p.enginesOn[engine.Node]; engine.Live && verified && engine.Node != "" && (old == "" || pod.Name < old) {
			p.enginesOn[engine.Node] = pod.Name
		}
	}
	slices.SortFunc(p.engines, func(a, b nodelocal.Engine) int { return cmp.Compare(a.Name, b.Name) })
	p.tellTimeouts(wired)
	return nil
}

// ended says whether a pod will not run again.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// refusals are the nodes of the backend whose server cannot be created, and
// how long until one is tried again.
func (p *nodePass) refusals() (all map[string]nodelocal.Refusal, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all = map[string]nodelocal.Refusal{}
	for node, r := range p.NodeKeeper.refused[client.ObjectKeyFromObject(p.backend)] {
		all[node] = r.Refusal
		if left := r.until.Sub(p.now); wait == 0 || left < wait {
			wait = max(left, time.Second)
		}
	}
	return all, wait
}

// keepRefusals forgets those of nodes that need no server any more.
func (p *nodePass) keepRefusals(actions []nodelocal.Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.NodeKeeper.refused[client.ObjectKeyFromObject(p.backend)], func(node string, _ refused) bool {
		return !slices.ContainsFunc(actions, func(a nodelocal.Action) bool { return a.Step == nodelocal.Create && a.Node == node })
	})
}

// refuse notes that a server could not be created.
func (p *nodePass) refuse(node, reason, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := client.ObjectKeyFromObject(p.backend)
	if p.NodeKeeper.refused[key] == nil {
		p.NodeKeeper.refused[key] = map[string]refused{}
	}
	times := p.NodeKeeper.refused[key][node].times + 1
	p.NodeKeeper.refused[key][node] = refused{nodelocal.Refusal{Reason: reason, Message: message}, times, p.now.Add(nodelocal.Backoff(times))}
}

// allowed says whether creating a server is to be tried now.
func (p *nodePass) allowed(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.NodeKeeper.refused[client.ObjectKeyFromObject(p.backend)][node].until.After(p.now)
}

// created forgets a refusal.
func (p *nodePass) created(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.NodeKeeper.refused[client.ObjectKeyFromObject(p.backend)], node)
}

// Forget implements NodeServers.
func (n *NodeKeeper) Forget(backend types.NamespacedName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.refused, backend)
	delete(n.timeouts, backend)
}
