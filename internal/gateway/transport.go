// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// errForbiddenAddress is why a connection to a replica was not opened.
var errForbiddenAddress = errors.New("address is not allowed")

// forbiddenAddresses serve instance metadata in clouds.
var forbiddenAddresses = [...]netip.Addr{
	netip.AddrFrom4([4]byte{192, 0, 0, 192}),
	netip.AddrFrom4([4]byte{100, 100, 100, 200}),
	netip.MustParseAddr("fd00:ec2::254"),
}

// newTransport returns the connections to engines. It uses no proxy, follows
// no redirect, dials only what known accepts (the host and port of a replica)
// and checks every resolved address before it connects.
func newTransport(known func(hostPort string) bool, resolver *net.Resolver) *http.Transport {
	dialer := &net.Dialer{
		Timeout:  5 * time.Second,
		Resolver: resolver,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			return checkAddress(address)
		},
	}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if !known(address) {
				return nil, fmt.Errorf("%w: not that of a replica", errForbiddenAddress)
			}
			return dialer.DialContext(ctx, network, address)
		},
		MaxIdleConnsPerHost: 1024,
		// Below the keep-alive of engines (5 s), so that an idle connection is
		// rarely one the engine is about to close.
		IdleConnTimeout:        3 * time.Second,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		WriteBufferSize:        32 << 10,
		ReadBufferSize:         32 << 10,
	}
}

// knowsEndpoint reports whether a replica has the address.
func (g *Gateway) knowsEndpoint(hostPort string) bool {
	for _, u := range g.upstreams {
		if u.hostPort == hostPort {
			return true
		}
	}
	return false
}

// checkAddress refuses addresses no engine can have.
func checkAddress(address string) error {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: not an IP address and port", errForbiddenAddress)
	}
	addr := parsed.Addr().Unmap().WithZone("")
	if addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() {
		return fmt.Errorf("%w: link-local, multicast or unspecified", errForbiddenAddress)
	}
	for _, forbidden := range forbiddenAddresses {
		if addr == forbidden {
			return fmt.Errorf("%w: instance metadata", errForbiddenAddress)
		}
	}
	return nil
}
