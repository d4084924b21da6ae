// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/propagate"
)

// Reasons of the condition Resolved, and of Accepted where it is true.
const (
	reasonAccepted      = "Accepted"
	reasonAllPoolsReady = "AllPoolsReady"
	reasonPoolEmpty     = "PoolEmpty"
	reasonBelowReplicas = "BelowReplicas"
)

// Roles of pools in a status.
const (
	rolePrefill = "Prefill"
	roleDecode  = "Decode"
)

// TopologyOptions of a TopologyReconciler. Fields without a default are
// required.
type TopologyOptions struct {
	// Client reads topologies, pods, backends and nodes, and writes status.
	Client client.Client
	// Topologies takes what is resolved.
	Topologies *Topologies
	// Rows are the replicas in the index; default unknown.
	Rows *Rows
	// Logger takes the logs; default none.
	Logger *slog.Logger
	// Now is the clock of conditions; default time.Now.
	Now func() time.Time
}

// TopologyReconciler finds the engines of each PDTopology's pools. It is safe
// for concurrent use.
type TopologyReconciler struct {
	options TopologyOptions
}

var _ reconcile.Reconciler = (*TopologyReconciler)(nil)

// NewTopologyReconciler returns a reconciler of PDTopologies.
func NewTopologyReconciler(o TopologyOptions) *TopologyReconciler {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &TopologyReconciler{options: o}
}

// resolution is what a topology comes to.
type resolution struct {
	accepted condition
	// resolved and the rest are unset where the topology is not accepted.
	resolved condition
	pools    []v1alpha1.PDPoolStatus
	topology propagate.Topology
}

// Reconcile resolves one topology and writes its status at most once.
func (r *TopologyReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var t v1alpha1.PDTopology
	if err := r.options.Client.Get(ctx, request.NamespacedName, &t); err != nil {
		if err = client.IgnoreNotFound(err); err == nil {
			r.options.Topologies.remove(request.NamespacedName)
		}
		return reconcile.Result{}, err
	}
	res, err := r.resolve(ctx, &t)
	if err != nil {
		return reconcile.Result{}, err
	}
	accepted := res.accepted.status == metav1.ConditionTrue
	var object v1alpha1.PDTopology
	now := metav1.NewTime(r.options.Now())
	err = updateStatus(ctx, r.options.Client, request.NamespacedName, &object, func() bool {
		if object.Generation != t.Generation {
			return false // another pass follows
		}
		status, before := &object.Status, object.Status.DeepCopy()
		status.ObservedGeneration, status.Pools = object.Generation, res.pools
		setCondition(&status.Conditions, object.Generation, now, res.accepted)
		if accepted {
			setCondition(&status.Conditions, object.Generation, now, res.resolved)
		} else {
			meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionResolved)
			setCondition(&status.Conditions, object.Generation, now, condition{
				v1alpha1.ConditionProgrammed, reasonNotEffective, "the topology is not accepted", metav1.ConditionFalse,
			})
		}
		return !equality.Semantic.DeepEqual(before, status)
	})
	if err != nil {
		return reconcile.Result{}, err
	}
	if accepted {
		r.options.Topologies.set(res.topology)
	} else {
		r.options.Topologies.remove(request.NamespacedName)
	}
	return reconcile.Result{RequeueAfter: restInterval}, nil
}

// All resolves every topology there is. A kind that is not installed has none.
func (r *TopologyReconciler) All(ctx context.Context) (all []propagate.Topology, err error) {
	var list v1alpha1.PDTopologyList
	if err := r.options.Client.List(ctx, &list); err != nil {
		if meta.IsNoMatchError(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("list PDTopologies: %w", err)
	}
	for i := range list.Items {
		res, err := r.resolve(ctx, &list.Items[i])
		if err != nil {
			return nil, err
		}
		if res.accepted.status == metav1.ConditionTrue {
			all = append(all, res.topology)
		}
	}
	return all, nil
}

// member is a pod of a pool.
type member struct {
	pool string
	pod  *corev1.Pod
}

func (r *TopologyReconciler) resolve(ctx context.Context, t *v1alpha1.PDTopology) (*resolution, error) {
	if faults := propagate.JudgeTopology(t); len(faults) > 0 {
		var messages []string
		for _, fault := range faults {
			messages = append(messages, fault.Message)
		}
		return refuse(faults[0].Reason, strings.Join(messages, "; ")), nil
	}
	pods, err := r.enginePods(ctx, t.Namespace)
	if err != nil {
		return nil, err
	}
	kinds := make(map[string]labels.Selector)
	for _, kind := range t.Spec.AcceleratorTypes {
		kinds[kind.Name] = labels.SelectorFromSet(kind.MatchLabels)
	}
	prefill, err := r.members(ctx, t.Spec.PrefillPools, kinds, pods)
	if err != nil {
		return nil, err
	}
	decode, err := r.members(ctx, t.Spec.DecodePools, kinds, pods)
	if err != nil {
		return nil, err
	}
	for _, p := range prefill {
		if i := slices.IndexFunc(decode, func(d member) bool { return d.pod == p.pod }); i >= 0 {
			return refuse(propagate.ReasonOverlappingPools,
				fmt.Sprintf("pod %s is in prefill pool %q and in decode pool %q", p.pod.Name, p.pool, decode[i].pool)), nil
		}
	}
	res := &resolution{
		accepted: condition{v1alpha1.ConditionAccepted, reasonAccepted, "", metav1.ConditionTrue},
		topology: propagate.Topology{
			Name: client.ObjectKeyFromObject(t), Generation: t.Generation, Model: t.Spec.Model, Transport: t.Spec.Transport,
		},
	}
	ids, err := r.ids(ctx, t.Namespace)
	if err != nil {
		return nil, err
	}
	res.topology.Prefill, res.topology.Decode = readyIDs(prefill, ids), readyIDs(decode, ids)
	res.pools = append(poolStatus(rolePrefill, t.Spec.PrefillPools, prefill), poolStatus(roleDecode, t.Spec.DecodePools, decode)...)
	res.resolved = judgePools(t, res.pools)
	return res, nil
}

func refuse(reason, message string) *resolution {
	return &resolution{accepted: condition{v1alpha1.ConditionAccepted, reason, message, metav1.ConditionFalse}}
}

// enginePods lists the live engine pods of a namespace by name.
func (r *TopologyReconciler) enginePods(ctx context.Context, namespace string) (pods []*corev1.Pod, err error) {
	var list corev1.PodList
	if err := r.options.Client.List(ctx, &list, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelCacheDomain}); err != nil {
		return nil, fmt.Errorf("list engine pods: %w", err)
	}
	for i := range list.Items {
		if live(&list.Items[i]) {
			pods = append(pods, &list.Items[i])
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods, nil
}

// members finds the pods of pools of one role.
func (r *TopologyReconciler) members(ctx context.Context, pools []v1alpha1.PDPool, kinds map[string]labels.Selector, pods []*corev1.Pod) (all []member, err error) {
	for _, pool := range pools {
		selector := labels.SelectorFromSet(pool.MatchLabels)
		for _, pod := range pods {
			if !selector.Matches(labels.Set(pod.Labels)) {
				continue
			}
			if kind, wanted := kinds[pool.AcceleratorType]; wanted && pool.AcceleratorType != "" {
				fits, err := r.onNode(ctx, pod, kind)
				if err != nil {
					return nil, err
				}
				if !fits {
					continue
				}
			}
			all = append(all, member{pool.Name, pod})
		}
	}
	return all, nil
}

// onNode says whether a pod runs on a node with some labels. Before it is
// placed, and after its node is gone, it does not.
func (r *TopologyReconciler) onNode(ctx context.Context, pod *corev1.Pod, selector labels.Selector) (bool, error) {
	if pod.Spec.NodeName == "" {
		return false, nil
	}
	node := metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	if err := r.options.Client.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, &node); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return false, nil
		}
		return false, fmt.Errorf("read node %s: %w", pod.Spec.NodeName, err)
	}
	return selector.Matches(labels.Set(node.Labels)), nil
}

// ids returns what the replicas of a pod are called: one name for each rank it
// is known to have, else those in the index, else its own name.
func (r *TopologyReconciler) ids(ctx context.Context, namespace string) (func(*corev1.Pod) []string, error) {
	var list v1alpha1.CacheBackendList
	if err := r.options.Client.List(ctx, &list, client.InNamespace(namespace)); err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("list CacheBackends: %w", err)
	}
	var backends []*v1alpha1.CacheBackend
	for i := range list.Items {
		backends = append(backends, &list.Items[i])
	}
	slices.SortFunc(backends, func(a, b *v1alpha1.CacheBackend) int { return strings.Compare(a.Name, b.Name) })
	ranked := make(map[string][]string)
	for id := range r.options.Rows.of(namespace) {
		if pod, _, found := strings.Cut(id, "#"); found {
			ranked[pod] = append(ranked[pod], id)
		}
	}
	return func(pod *corev1.Pod) []string {
		if n := knownRanks(pod, ownerOfPod(backends, pod)); n > 1 {
			all := make([]string, n)
			for rank := range all {
				all[rank] = pod.Name + "#" + strconv.Itoa(rank)
			}
			return all
		}
		if all := ranked[pod.Name]; all != nil {
			return all
		}
		return []string{pod.Name}
	}, nil
}

func readyIDs(members []member, ids func(*corev1.Pod) []string) (all []string) {
	for _, m := range members {
		if _, ready := readySince(m.pod); ready {
			all = append(all, ids(m.pod)...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func poolStatus(role string, pools []v1alpha1.PDPool, members []member) (all []v1alpha1.PDPoolStatus) {
	for _, pool := range pools {
		status := v1alpha1.PDPoolStatus{Name: pool.Name, Role: role}
		for _, m := range members {
			if m.pool != pool.Name {
				continue
			}
			status.MatchedPods++
			if _, ready := readySince(m.pod); ready {
				status.ReadyPods++
			}
		}
		all = append(all, status)
	}
	return all
}

// judgePools says whether each pool has the pods it should have. A pool that
// wants none may be empty; a role without pools may not.
func judgePools(t *v1alpha1.PDTopology, pools []v1alpha1.PDPoolStatus) condition {
	var empty, below []string
	if len(t.Spec.PrefillPools) == 0 {
		empty = append(empty, "there is no prefill pool")
	}
	if len(t.Spec.DecodePools) == 0 {
		empty = append(empty, "there is no decode pool")
	}
	for i, spec := range slices.Concat(t.Spec.PrefillPools, t.Spec.DecodePools) {
		ready, name := pools[i].ReadyPods, fmt.Sprintf("%s pool %q", strings.ToLower(pools[i].Role), spec.Name)
		switch {
		case ready == 0 && (spec.Replicas == nil || *spec.Replicas > 0):
			empty = append(empty, fmt.Sprintf("%s has no ready pod of %d", name, pools[i].MatchedPods))
		case spec.Replicas != nil && ready < *spec.Replicas:
			below = append(below, fmt.Sprintf("%s has %d ready pods, %d wanted", name, ready, *spec.Replicas))
		}
	}
	c := condition{v1alpha1.ConditionResolved, reasonAllPoolsReady, "", metav1.ConditionTrue}
	switch {
	case empty != nil:
		c.status, c.reason = metav1.ConditionFalse, reasonPoolEmpty
	case below != nil:
		c.status, c.reason = metav1.ConditionFalse, reasonBelowReplicas
	}
	c.message = strings.Join(append(empty, below...), "; ")
	return c
}

// ofPod says which topologies a pod may belong to: all of its namespace.
func (r *TopologyReconciler) ofPod(ctx context.Context, pod *corev1.Pod) (requests []reconcile.Request) {
	var list v1alpha1.PDTopologyList
	if err := r.options.Client.List(ctx, &list, client.InNamespace(pod.Namespace)); err != nil {
		r.options.Logger.Error("cannot list the topologies of a pod", "namespace", pod.Namespace, "error", err)
		return nil
	}
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}
