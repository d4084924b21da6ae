// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"strings"

	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/control"
	"github.com/inferencecache/inference-cache/internal/gate"
)

// gateOptions say who may call the internal listener.
type gateOptions struct {
	controllerSA                       string
	insecure                           bool
	tokenFile                          string
	controllerAudience, policyAudience string
}

func (o *gateOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.controllerSA, "allowed-controller-sa", "", "admit this service account to the internal listener: system:serviceaccount:NAMESPACE:NAME")
	flags.BoolVar(&o.insecure, "insecure-disable-auth", false, "admit everyone to the internal listener")
	flags.StringVar(&o.tokenFile, "internal-token-file", "", "admit the bearers of this file's tokens to the internal listener; lines \"audience token\", read again when it changes")
	flags.StringVar(&o.controllerAudience, "controller-audience", "inferencecache.io/controller", "audience of tokens for /snapshot, /status and /probe")
	flags.StringVar(&o.policyAudience, "policy-audience", "inferencecache.io/policy", "audience of tokens for /policy and /policy/extensions")
}

// validate wants exactly one way to admit callers.
func (o *gateOptions) validate() error {
	ways := 0
	for _, chosen := range []bool{o.controllerSA != "", o.insecure, o.tokenFile != ""} {
		if chosen {
			ways++
		}
	}
	if ways != 1 {
		return usagef("server needs exactly one of --allowed-controller-sa, --internal-token-file and --insecure-disable-auth, got %d", ways)
	}
	names := map[string]string{"--controller-audience": o.controllerAudience, "--policy-audience": o.policyAudience}
	if o.controllerSA != "" {
		names["--allowed-controller-sa"] = o.controllerSA
	}
	for flag, value := range names {
		if value == "" || strings.TrimSpace(value) != value {
			return usagef("%s %q: expected a name without white space around it", flag, value)
		}
	}
	return nil
}

// gates builds the gates that need no cluster.
func (o *gateOptions) gates(logger *slog.Logger) (control.Gates, error) {
	if o.insecure {
		logger.Warn("everyone who reaches the internal listener may read the index and replace policy")
		return control.Gates{Snapshot: gate.Open{}, Policy: gate.Open{}, Probe: gate.Open{}}, nil
	}
	tokens, err := gate.OpenTokenFile(o.tokenFile, logger)
	if err != nil {
		return control.Gates{}, err
	}
	read, write := tokens.For(o.controllerAudience), tokens.For(o.policyAudience)
	return control.Gates{Snapshot: read, Policy: write, Probe: read}, nil
}

// reviewedGates admit the one service account.
func (a *admission) reviewedGates() control.Gates {
	gates := &a.flags.gates
	reviews := func(endpoint, audience string) *auth.Reviews {
		r := auth.NewReviews(auth.ReviewOptions{
			Reviewer: a.cluster,
			Audience: audience,
			Username: gates.controllerSA,
			Endpoint: endpoint,
			Metrics:  a.metrics,
			Logger:   a.logger,
		})
		a.onClose(r.Close)
		return r
	}
	return control.Gates{
		Snapshot: reviews(auth.EndpointSnapshot, gates.controllerAudience),
		Policy:   reviews(auth.EndpointPolicy, gates.policyAudience),
		Probe:    reviews(auth.EndpointProbe, gates.controllerAudience),
	}
}
