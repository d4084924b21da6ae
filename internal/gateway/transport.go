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

// newTransport returns the connections to the engine at an address. It uses no
// proxy, follows no redirect, dials no other address and checks what that
// resolves to before it connects.
func newTransport(protocol, hostPort string, resolver *net.Resolver) *http.Transport {
	var protocols http.Protocols
	if protocol == ProtocolH2C {
		protocols.SetUnencryptedHTTP2(true)
	} else {
		protocols.SetHTTP1(true)
		protocols.SetHTTP2(true)
	}
	dialer := &net.Dialer{
		Timeout:  5 * time.Second,
		Resolver: resolver,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			return checkAddress(address)
		},
	}
	return &http.Transport{
		Protocols: &protocols,
		HTTP2:     &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != hostPort {
				return nil, fmt.Errorf("%w: not that of the replica", errForbiddenAddress)
			}
			return dialer.DialContext(ctx, network, address)
		},
		TLSHandshakeTimeout: 5 * time.Second,
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
