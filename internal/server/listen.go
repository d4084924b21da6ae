// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/net/netutil"
)

// boundListener is one open socket and what serves it.
type boundListener struct {
	name     string
	listener net.Listener
	serve    func(net.Listener) error
}

// listen opens every listener the options ask for, or none, and fills in the
// addresses. The caller holds s.mu.
func (s *Server) listen() (listeners []boundListener, err error) {
	var addresses Addresses
	for _, l := range []struct {
		name, address string
		wanted        bool
		bound         *net.Addr
		serve         func(net.Listener) error
	}{
		{"gRPC", s.options.GRPCAddress, true, &addresses.GRPC, s.serveGRPC},
		{"HTTP", s.options.HTTPAddress, !s.options.WithoutHTTP, &addresses.HTTP, s.http.Serve},
		{"internal HTTP", s.options.Internal.Address, s.internal != nil, &addresses.Internal, s.serveInternal},
	} {
		if !l.wanted {
			continue
		}
		listener, err := net.Listen("tcp", l.address)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen for %s: %w", l.name, err), closeAll(listeners))
		}
		*l.bound = listener.Addr()
		listeners = append(listeners, boundListener{l.name, listener, l.serve})
	}
	s.addresses = addresses
	return listeners, nil
}

func (s *Server) serveGRPC(l net.Listener) error {
	return s.grpc.Serve(netutil.LimitListener(l, s.options.MaxConnections))
}

func (s *Server) serveInternal(l net.Listener) error {
	if s.internal.TLSConfig != nil {
		return s.internal.ServeTLS(l, "", "")
	}
	return s.internal.Serve(l)
}

func closeAll(listeners []boundListener) error {
	var errs []error
	for _, l := range listeners {
		errs = append(errs, l.listener.Close())
	}
	return errors.Join(errs...)
}
