// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/internal/controlclient"
)

// Server is one server process to call.
type Server struct {
	// Name is stable while the process lives: its pod's, or the host of its
	// URL.
	Name string
	// Address is the host and port that are called.
	Address string
	Client  *controlclient.Client
}

// Discovery finds the servers there are. The result is sorted by name.
type Discovery interface {
	Servers(context.Context) ([]Server, error)
}

// ConfiguredServer is the one server behind the configured URLs.
type ConfiguredServer struct{ Options controlclient.Options }

var _ Discovery = ConfiguredServer{}

// Servers returns the server.
func (c ConfiguredServer) Servers(context.Context) ([]Server, error) {
	parsed, err := url.Parse(c.Options.URLs.Policy)
	if err != nil {
		return nil, fmt.Errorf("server policy URL: %w", err)
	}
	return []Server{{Name: parsed.Host, Address: parsed.Host, Client: controlclient.New(c.Options)}}, nil
}

// portName is what the servers' internal port is called in their Service.
const portName = "snapshot"

// EndpointServers are the endpoints behind the Service in the configured URLs,
// ready or not, except those that are going away.
type EndpointServers struct {
	Reader  client.Reader
	Options controlclient.Options
	// Namespace holds the Service if the URL does not name one.
	Namespace string
}

var _ Discovery = (*EndpointServers)(nil)

// Servers lists the endpoints.
func (e *EndpointServers) Servers(ctx context.Context) ([]Server, error) {
	service, namespace, err := e.service()
	if err != nil {
		return nil, err
	}
	var list discoveryv1.EndpointSliceList
	err = e.Reader.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{discoveryv1.LabelServiceName: service})
	if err != nil {
		return nil, fmt.Errorf("list endpoints of %s/%s: %w", namespace, service, err)
	}
	byName := make(map[string]Server)
	for i := range list.Items {
		if err := e.add(&list.Items[i], byName); err != nil {
			return nil, err
		}
	}
	servers := make([]Server, 0, len(byName))
	for _, server := range byName {
		servers = append(servers, server)
	}
	slices.SortFunc(servers, func(a, b Server) int { return strings.Compare(a.Name, b.Name) })
	return servers, nil
}

// service splits the host of the URL: <service>.<namespace>.svc and so on.
func (e *EndpointServers) service() (name, namespace string, err error) {
	parsed, err := url.Parse(e.Options.URLs.Policy)
	if err != nil {
		return "", "", fmt.Errorf("server policy URL: %w", err)
	}
	name, rest, _ := strings.Cut(parsed.Hostname(), ".")
	namespace, _, _ = strings.Cut(rest, ".")
	if namespace == "" {
		namespace = e.Namespace
	}
	if name == "" || namespace == "" {
		return "", "", fmt.Errorf("server policy URL %q: expected the host <service>.<namespace>.svc", e.Options.URLs.Policy)
	}
	return name, namespace, nil
}

func (e *EndpointServers) add(slice *discoveryv1.EndpointSlice, byName map[string]Server) error {
	port := 0
	for _, p := range slice.Ports {
		if p.Name != nil && *p.Name == portName && p.Port != nil {
			port = int(*p.Port)
		}
	}
	if port == 0 {
		return nil
	}
	for _, endpoint := range slice.Endpoints {
		if len(endpoint.Addresses) == 0 || endpoint.Conditions.Terminating != nil && *endpoint.Conditions.Terminating {
			continue
		}
		address := net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(port))
		name := address
		if endpoint.TargetRef != nil && endpoint.TargetRef.Name != "" {
			name = endpoint.TargetRef.Name
		}
		if other, ok := byName[name]; ok && other.Address <= address {
			continue // one process with an address of each family, in no order
		}
		options := e.Options
		urls, err := options.URLs.On(address)
		if err != nil {
			return err
		}
		options.URLs = urls
		byName[name] = Server{Name: name, Address: address, Client: controlclient.New(options)}
	}
	return nil
}
