// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/index"
)

// replicasCase is a backend with one engine pod e and external replicas.
type replicasCase struct {
	pod       func(*corev1.Pod)
	declared  *int32
	external  []string
	rows      []string
	reporting int32
	expected  int32
}

func engineArgs(args ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Args = args }
}

func withPublisher(args ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{
			Name: "kvevent-subscriber", Image: "publisher", Args: args, RestartPolicy: ptr(corev1.ContainerRestartPolicyAlways),
		}}
	}
}

func ended(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }

// replicasCases count an engine as often as it reports, by what is known of it.
func replicasCases() map[string]replicasCase {
	return map[string]replicasCase{
		"silent":                  {expected: 1},
		"reporting":               {rows: []string{"e"}, reporting: 1, expected: 1},
		"declared":                {declared: ptr(int32(4)), rows: []string{"e#0", "e#1"}, reporting: 2, expected: 4},
		"engine-flag":             {pod: engineArgs("serve", "m", "-dp", "3"), rows: []string{"e#0"}, reporting: 1, expected: 3},
		"engine-flag-underscored": {pod: engineArgs("--data_parallel_size=2"), expected: 2},
		"publisher-flag":          {pod: withPublisher("--data-parallel-ranks=2", "--no-exit"), declared: ptr(int32(8)), expected: 2},
		"by-rows":                 {rows: []string{"e#0", "e#1", "e#2"}, reporting: 3, expected: 3},
		"too-many-ranks":          {pod: engineArgs("--data-parallel-size=100000"), expected: 1},
		"ended":                   {pod: ended, rows: []string{"e"}, reporting: 0, expected: 0},
		"external":                {pod: ended, declared: ptr(int32(2)), external: []string{"x", "y#0"}, rows: []string{"x#0", "x#1", "y#0"}, reporting: 3, expected: 3},
	}
}

func (tc replicasCase) objects(namespace, name string) (*v1alpha1.CacheBackend, *corev1.Pod) {
	b := backend(name, name, tc.external...)
	b.Namespace = namespace
	b.Spec.Type = v1alpha1.BackendMemory
	if tc.declared != nil {
		if b.Spec.Observation == nil {
			b.Spec.Observation = new(v1alpha1.BackendObservation)
		}
		b.Spec.Observation.KVEvents = &v1alpha1.KVEventsSpec{DataParallelRanks: tc.declared}
	}
	pod := enginePod("e", name)
	pod.Namespace = namespace
	pod.Spec.Containers = []corev1.Container{{Name: "vllm", Image: "vllm"}}
	if tc.pod != nil {
		tc.pod(pod)
	}
	return b, pod
}

func (tc replicasCase) holds(namespace string) (all []index.ReplicaRow) {
	for _, id := range tc.rows {
		all = append(all, reports(namespace, id, 1, .5, noon))
	}
	return all
}

func (tc replicasCase) shown(p *v1alpha1.IndexParticipation) bool {
	return p != nil && p.ReportingReplicas != nil && *p.ReportingReplicas == tc.reporting && p.ExpectedReplicas != nil && *p.ExpectedReplicas == tc.expected
}

func TestExpectedReplicasAreRanks(t *testing.T) {
	for name, tc := range replicasCases() {
		t.Run(name, func(t *testing.T) {
			server := startServer(t, "1")
			server.holdings.hold(tc.holds("a")...)
			backend, pod := tc.objects("a", "x")
			cluster := newCluster(t, backend, pod)
			if err := poller(cluster, 0, server.named(t, "one")).Poll(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := get[v1alpha1.CacheBackend](t, cluster, key("a", "x")).Status.IndexParticipation
			if !tc.shown(got) {
				t.Errorf("%d of %d replicas report, want %d of %d", *got.ReportingReplicas, *got.ExpectedReplicas, tc.reporting, tc.expected)
			}
		})
	}
}
