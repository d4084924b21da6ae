// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package controller_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/kubetest"
)

// The controller keeps little of a pod, and enough to know its ranks.
func TestEnvtestExpectedReplicasAreRanks(t *testing.T) {
	f := &fleet{t: t, cluster: kubetest.Start(t, "../../deploy/crds")}
	server := startServer(t, "1")
	startController(t, f.cluster, server, false)
	var rows []index.ReplicaRow
	for name, tc := range replicasCases() {
		f.cluster.Namespace(t, name, nil)
		backend, pod := tc.objects(name, "x")
		backend.ObjectMeta, pod.ObjectMeta = bare(backend.ObjectMeta), bare(pod.ObjectMeta)
		f.create(backend)
		status := pod.Status
		f.create(pod)
		if status.Phase != "" {
			pod.Status = status
			f.setStatus(pod)
		}
		rows = append(rows, tc.holds(name)...)
	}
	server.holdings.hold(rows...)
	for name, tc := range replicasCases() {
		t.Run(name, func(t *testing.T) {
			eventually(t, "the replicas are counted", func() bool {
				return tc.shown(get[v1alpha1.CacheBackend](t, f.cluster.Client, key(name, "x")).Status.IndexParticipation)
			})
		})
	}
}

// bare returns the object's name alone, as it is created.
func bare(o metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, Labels: o.Labels, Annotations: o.Annotations}
}
