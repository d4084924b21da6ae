// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"runtime/debug"

	"github.com/inferencecache/inference-cache/internal/control"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/probe"
)

// InternalOptions are those of the listener a controller talks to.
type InternalOptions struct {
	// Address serves policy, snapshot, status and probe; default none, so
	// that there is no such listener.
	Address string
	// TLSCertFile and TLSKeyFile switch TLS on for it; default off. Both or
	// neither.
	TLSCertFile, TLSKeyFile string
	// Gates decide who may call; required with an address.
	Gates control.Gates
	// PolicyMaxBytes bounds a compressed policy once it is plain; default
	// 16 MiB.
	PolicyMaxBytes int
	// Tier2 is what probes test as the second tier; default none.
	Tier2 probe.Tier2Store
}

func (o InternalOptions) validate() error {
	switch {
	case o.Address != "" && !o.Gates.Complete():
		return errors.New("the internal listener needs a gate for each endpoint")
	case (o.TLSCertFile == "") != (o.TLSKeyFile == ""):
		return errors.New("TLS of the internal listener needs both a certificate file and a key file")
	case o.PolicyMaxBytes < 0:
		return errors.New("the policy limit is negative")
	}
	return nil
}

// newEpoch names this process.
func newEpoch() string {
	var epoch [16]byte
	_, _ = rand.Read(epoch[:]) // never fails
	return hex.EncodeToString(epoch[:])
}

// followPolicies makes the index enforce its part of each policy view, and
// takes over its templates.
func (s *Server) followPolicies() {
	s.policies.Enforce(func(view *policy.View) {
		s.index.SetRules(view.Rules())
		s.deliverTemplates(view)
	})
}

// newInternalServer builds the listener a controller talks to.
func (s *Server) newInternalServer() {
	if s.options.Internal.Address == "" {
		return
	}
	prober := probe.New(probe.Options{
		Plane:    probe.IndexPlane{Index: s.index, Decider: s.decider, Now: s.options.Now},
		Tier2:    s.options.Internal.Tier2,
		Panicked: func(cause any) { s.panicked(componentProbe, cause, debug.Stack()) },
	})
	s.internal = control.NewHTTPServer(control.New(control.Options{
		Gates:          s.options.Internal.Gates,
		Policies:       s.policies,
		Holdings:       s.index,
		Prober:         prober,
		HotPrefixes:    s.HotPrefixes,
		Epoch:          s.epoch,
		StartedAt:      s.options.Now(),
		Ready:          func() bool { return s.Readiness().Ready },
		PolicyMaxBytes: s.options.Internal.PolicyMaxBytes,
		Registry:       s.options.Registry,
		Panicked:       func(cause any, stack []byte) { s.panicked(componentControl, cause, stack) },
		Logger:         s.logger,
		Now:            s.options.Now,
	}))
	s.internal.TLSConfig = s.internalTLS
	s.internal.ErrorLog = slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn)
}

// drainInternal lets running calls of the internal listener finish.
func (s *Server) drainInternal(grace context.Context) <-chan struct{} {
	return begin(func() {
		if s.internal == nil {
			return
		}
		if s.internal.Shutdown(grace) != nil {
			_ = s.internal.Close() // ends the connections that would not
		}
	})
}
