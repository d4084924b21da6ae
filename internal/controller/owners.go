// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// ownersAge is how long what was read of the workloads of a namespace is good
// for backends that had no pods before either.
const ownersAge = 5 * time.Minute

// owners reads what workloads want of engine pods. Nothing watches workloads:
// most of a cluster's are of no interest. The backends of a namespace share
// what one of them has read. It is safe for concurrent use.
type owners struct {
	reader client.Reader
	now    func() time.Time

	mu          sync.Mutex
	byNamespace map[string]*ownersOf // guarded by mu
}

// ownersOf is what is known of a namespace.
type ownersOf struct {
	mu     sync.Mutex // held while reading
	read   time.Time
	wanted map[string]*wantedPods // by cache domain
}

// wantedPods is what all owners of a cache domain's pods want together.
type wantedPods struct {
	owners int
	pods   int32
}

func newOwners(reader client.Reader, now func() time.Time) *owners {
	return &owners{reader: reader, now: now, byNamespace: map[string]*ownersOf{}}
}

// of returns what is wanted for a cache domain, at most as old as an age.
func (o *owners) of(ctx context.Context, namespace, domain string, age time.Duration) (wantedPods, error) {
	o.mu.Lock()
	known := o.byNamespace[namespace]
	if known == nil {
		known = &ownersOf{}
		o.byNamespace[namespace] = known
	}
	o.mu.Unlock()
	known.mu.Lock()
	defer known.mu.Unlock()
	if now := o.now(); known.wanted == nil || now.Sub(known.read) >= age {
		wanted, err := o.list(ctx, namespace)
		if err != nil {
			return wantedPods{}, err
		}
		known.read, known.wanted = now, wanted
	}
	if w := known.wanted[domain]; w != nil {
		return *w, nil
	}
	return wantedPods{}, nil
}

// forget drops a namespace of which a backend is gone. Others read it again.
func (o *owners) forget(namespace string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.byNamespace, namespace)
}

func (o *owners) list(ctx context.Context, namespace string) (map[string]*wantedPods, error) {
	var (
		deployments  appsv1.DeploymentList
		statefulSets appsv1.StatefulSetList
		replicaSets  appsv1.ReplicaSetList
	)
	for _, list := range []client.ObjectList{&deployments, &statefulSets, &replicaSets} {
		if err := o.reader.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("list owners of engine pods: %w", err)
		}
	}
	wanted := map[string]*wantedPods{}
	count := func(template *corev1.PodTemplateSpec, replicas *int32) {
		domain := template.Labels[v1alpha1.LabelCacheDomain]
		if domain == "" {
			return
		}
		if wanted[domain] == nil {
			wanted[domain] = &wantedPods{}
		}
		wanted[domain].owners++
		if replicas == nil {
			wanted[domain].pods++
		} else {
			wanted[domain].pods += *replicas
		}
	}
	for i := range deployments.Items {
		count(&deployments.Items[i].Spec.Template, deployments.Items[i].Spec.Replicas)
	}
	for i := range statefulSets.Items {
		count(&statefulSets.Items[i].Spec.Template, statefulSets.Items[i].Spec.Replicas)
	}
	for i := range replicaSets.Items {
		if metav1.GetControllerOf(&replicaSets.Items[i]) == nil {
			count(&replicaSets.Items[i].Spec.Template, replicaSets.Items[i].Spec.Replicas)
		}
	}
	return wanted, nil
}
