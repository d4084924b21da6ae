// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/controller"
)

func endpointSlice(name, service, port string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: object("system", name), Endpoints: endpoints}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	slice.Ports = []discoveryv1.EndpointPort{{Name: ptr("grpc"), Port: ptr(int32(9090))}, {Name: &port, Port: ptr(int32(8081))}}
	return slice
}

func endpoint(address, pod string, ready, terminating bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Terminating: &terminating},
	}
	if pod != "" {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: pod}
	}
	return e
}

func TestEndpointsAreAddressedReadyOrNot(t *testing.T) {
	cluster := newCluster(t,
		endpointSlice("one", "server", "snapshot",
			endpoint("10.0.0.2", "server-b", true, false), endpoint("10.0.0.1", "server-a", false, false),
			endpoint("10.0.0.3", "server-c", false, true)),
		endpointSlice("another-family", "server", "snapshot", endpoint("fd00::2", "server-b", true, false)),
		endpointSlice("two", "server", "snapshot", endpoint("fd00::4", "", true, false), endpoint("fd00::1", "server-a", false, false)),
		endpointSlice("portless", "server", "other", endpoint("10.0.0.5", "server-d", true, false)),
		endpointSlice("foreign", "another", "snapshot", endpoint("10.0.0.6", "other", true, false)))
	for name, tc := range map[string]struct {
		url, namespace string
		want           []string
		wantErr        bool
	}{
		"the namespace of the URL":       {"https://server.system.svc:8081/policy", "", []string{"[fd00::4]:8081 [fd00::4]:8081", "server-a 10.0.0.1:8081", "server-b 10.0.0.2:8081"}, false},
		"the controller's own namespace": {"http://server:8081/policy", "system", []string{"[fd00::4]:8081 [fd00::4]:8081", "server-a 10.0.0.1:8081", "server-b 10.0.0.2:8081"}, false},
		"another namespace":              {"http://server.elsewhere.svc:8081/policy", "system", nil, false},
		"no namespace at all":            {"http://server:8081/policy", "", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			discovery := &controller.EndpointServers{
				Reader: cluster, Namespace: tc.namespace, Options: controlclient.Options{URLs: controlclient.URLs{Policy: tc.url}},
			}
			found, err := discovery.Servers(t.Context())
			if (err != nil) != tc.wantErr {
				t.Fatalf("error %v", err)
			}
			var got []string
			for _, server := range found {
				got = append(got, server.Name+" "+server.Address)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
