// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
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
	if port, ok := serverPort(spec, backend, among); ok {
		return skip(ReasonReservedNameConflict, fmt.Sprintf("port %d is one of the events' and the LMCache server listens there", port))
	}
	kvEvents := observationOf(backend).KVEvents
	if kvEvents == nil || !kvEvents.Inject || e.Count(kvEventsFlag) > 0 {
		return Outcome{} // the engine's sockets are not our doing
	}
	first := e.nixlPort(s.bind)
	for port := first; first != 0 && port < first+ranks; port++ {
		if among(port) {
			return skip(ReasonReservedNameConflict, fmt.Sprintf("port %d is one of the events' and the engine's for NIXL: give events others, or %s the pod's address", port, nixlHost))
		}
	}
	return Outcome{}
}

// serverPort finds a port among those of the LMCache server beside the engine.
func serverPort(spec *corev1.PodSpec, backend *v1alpha1.CacheBackend, among func(int32) bool) (int32, bool) {
	if adapter.WatchesOnly(backend) {
		return 0, false
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, p := range c.Ports {
			if c.Name == adapter.ServerContainer && among(p.ContainerPort) {
				return p.ContainerPort, true
			}
		}
	}
	return 0, false
}

// Where an engine with NIXL waits for its peers: from here on one port a rank,
// and by default on the loopback.
const (
	nixlHost        = "VLLM_NIXL_SIDE_CHANNEL_HOST"
	nixlVariable    = "VLLM_NIXL_SIDE_CHANNEL_PORT"
	defaultNIXLPort = 5600
)

// nixlPort is the port of rank 0, 0 for none that is in the way of events on
// the loopback, or on all addresses.
func (e engine) nixlPort(loopback bool) int32 {
	transfers := func(value string) bool { return strings.Contains(value, "NixlConnector") }
	if !slices.ContainsFunc(e.Values("--kv-transfer-config"), transfers) {
		return 0
	}
	host, port := "localhost", int32(defaultNIXLPort)
	for _, v := range e.container.Env {
		switch v.Name {
		case nixlHost:
			host = v.Value // of a field: none
		case nixlVariable:
			number, _ := strconv.ParseUint(v.Value, 10, 16)
			port = int32(number)
		}
	}
	if loopback && host != "localhost" && host != "127.0.0.1" && host != "0.0.0.0" {
		return 0
	}
	return port
}
