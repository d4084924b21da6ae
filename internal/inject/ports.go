// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// metricsPortTaken skips pods in which something else answers where the
// publisher's health is asked for.
func metricsPortTaken(spec *corev1.PodSpec, e engine) Outcome {
	if spec.HostNetwork {
		return Outcome{} // it does not listen there
	}
	if e.httpPort() == metricsPort {
		return skip(ReasonReservedNameConflict, fmt.Sprintf("the engine listens on port %d, where the publisher has its metrics", metricsPort))
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
			return p.ContainerPort == metricsPort && p.Protocol != corev1.ProtocolUDP
		}) {
			return skip(ReasonReservedNameConflict, fmt.Sprintf("container %q has port %d, where the publisher has its metrics", c.Name, metricsPort))
		}
	}
	return Outcome{}
}

// eventPortTaken skips pods in which events and something else would share a
// port. Where the publisher listens first, the engine could not.
func eventPortTaken(spec *corev1.PodSpec, e engine, s sockets, backend *v1alpha1.CacheBackend) Outcome {
	ranks := max(ranksOf(e, observationOf(backend).KVEvents), 1)
	among := func(port int32) bool {
		return port >= s.port && port < s.port+ranks || s.replayPort != 0 && port >= s.replayPort && port < s.replayPort+ranks
	}
	switch {
	case among(metricsPort) && !spec.HostNetwork:
		return skip(ReasonReservedNameConflict, fmt.Sprintf("port %d is one of the events' and has the publisher's metrics", metricsPort))
	case among(e.httpPort()):
		return skip(ReasonReservedNameConflict, fmt.Sprintf("port %d is one of the events' and the engine listens there", e.httpPort()))
	}
	return Outcome{}
}
