// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
)

// ErrEndpointMissing is returned for an external storage without an endpoint.
var ErrEndpointMissing = errors.New("spec.remoteStorage.endpoint: expected host:port of the storage")

// ValidateEndpoint says what is wrong with the endpoint of an external
// storage, which is a bare host:port. IPv6 addresses stand in brackets.
func ValidateEndpoint(endpoint string) error {
	if endpoint == "" {
		return ErrEndpointMissing
	}
	if fault := EndpointFault(endpoint); fault != "" {
		return fmt.Errorf("spec.remoteStorage.endpoint %q: %s", endpoint, fault)
	}
	return nil
}

// EndpointFault is what ValidateEndpoint finds, without saying where; "" for
// nothing.
func EndpointFault(endpoint string) string {
	if strings.Contains(endpoint, "://") {
		return "expected host:port without a scheme"
	}
	if strings.ContainsFunc(endpoint, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return "expected no white space and no control characters"
	}
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		return "expected host:port, IPv6 addresses in brackets"
	}
	if strings.HasPrefix(endpoint, "[") {
		if address, err := netip.ParseAddr(host); err != nil || !address.Is6() {
			return "expected an IPv6 address in the brackets"
		}
	} else if host == "" || strings.ContainsFunc(host, notInHost) {
		return "expected a host name or address before the port, of letters, digits, '-', '_' and '.'"
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return "expected a port from 1 to 65535"
	}
	return ""
}

// notInHost finds what no host name has. Clients read some letters of other
// scripts as those of a name, so a name is taken as it is written only without
// them.
func notInHost(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
		return false
	}
	return true
}

// Binding is how engines reach the storage of a backend: nil for a backend
// without one, and for a managed storage that is not there yet. service is the
// Service of a managed storage as it is in the cluster, nil for none; it
// counts only if the backend owns it.
func (r *Registry) Binding(backend *v1alpha1.CacheBackend, service *corev1.Service) (*adapter.Binding, error) {
	remote := backend.Spec.RemoteStorage
	if remote == nil || adapter.WatchesOnly(backend) {
		return nil, nil
	}
	provider, err := r.For(remote)
	if err != nil {
		return nil, err
	}
	endpoint := remote.Endpoint
	if remote.Ownership == v1alpha1.OwnershipExternal {
		if err := ValidateEndpoint(endpoint); err != nil {
			return nil, err
		}
	} else {
		if endpoint = EndpointOf(backend, service); endpoint == "" {
			return nil, nil
		}
	}
	binding := &adapter.Binding{Protocol: provider.Protocol(), Endpoint: endpoint}
	if remote.Redis != nil && remote.Redis.Authentication != nil {
		binding.Username, binding.Password = remote.Redis.Authentication.Username, remote.Redis.Authentication.Password
	}
	return binding, nil
}

// EndpointOf is where the Service of a managed storage is reached; "" unless
// the backend owns it.
func EndpointOf(backend *v1alpha1.CacheBackend, service *corev1.Service) string {
	if service == nil || service.DeletionTimestamp != nil || !metav1.IsControlledBy(service, backend) || len(service.Spec.Ports) == 0 {
		return ""
	}
	return fmt.Sprintf("%s.%s.svc.cluster.local:%d", service.Name, service.Namespace, service.Spec.Ports[0].Port)
}

// readPatience is how long a Service is waited for: an API server waits for us.
const readPatience = time.Second

// Resolver finds bindings at the API server.
type Resolver struct {
	// Reader reads Services, not from a cache.
	Reader client.Reader
	// Providers know the storages.
	Providers *Registry
	// Unreadable is told of Services that cannot be read; default nobody.
	Unreadable func(*v1alpha1.CacheBackend, error)
}

// Resolve returns how engines reach the storage of a backend, nil for not at
// all or not yet. A managed storage that cannot be read counts as not there
// yet: its engines are told from those of today when they are looked at later.
func (r *Resolver) Resolve(ctx context.Context, backend *v1alpha1.CacheBackend) (*adapter.Binding, error) {
	remote := backend.Spec.RemoteStorage
	if remote == nil || remote.Ownership != v1alpha1.OwnershipManaged || adapter.WatchesOnly(backend) {
		return r.Providers.Binding(backend, nil)
	}
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	service := &corev1.Service{}
	if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(backend), service); err != nil {
		if client.IgnoreNotFound(err) != nil && r.Unreadable != nil {
			r.Unreadable(backend, err)
		}
		service = nil
	}
	return r.Providers.Binding(backend, service)
}
