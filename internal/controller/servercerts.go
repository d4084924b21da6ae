// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/webhookcert"
)

// Secrets of the servers' certificate. The authority's key has a Secret of its
// own, which no pod mounts: with the one a pod can be a server, with the other
// it could make anybody one.
const (
	ServerSecret    = "inference-cache-server-tls"
	ServerKeySecret = "inference-cache-server-ca"
)

// settleServers is how long it may take until a new authority has reached the
// files of every client.
const settleServers = 5 * time.Minute

// ServerCerts say how clients come to trust the servers.
type ServerCerts struct {
	// ConfigMap is the name of the copies of the servers' authority, one in
	// each namespace with a CacheBackend; default none.
	ConfigMap string
	// Keep has the leader issue the servers' certificate, for Hosts; default:
	// somebody else does.
	Keep  bool
	Hosts []string
	// Trust gets the servers' authority while this controller leads; default
	// nobody.
	Trust *auth.Authorities
}

// addServerCerts has the manager keep the certificate of the servers, and
// copies of its authority, while it leads.
func (o Options) addServerCerts(mgr ctrl.Manager, live client.Client, metrics *Metrics) error {
	publish := func(context.Context, []byte) error { return nil }
	if o.ServerCerts.ConfigMap != "" {
		copies := NewServerCA(ServerCAOptions{
			Client: mgr.GetClient(), Live: live, Namespace: o.Namespace, Secret: ServerSecret, ConfigMap: o.ServerCerts.ConfigMap,
			Trust:  o.ServerCerts.Trust,
			Events: mgr.GetEventRecorder(reporter), Metrics: metrics, Logger: o.Logger,
		})
		publish = copies.Publish
		if err := errors.Join(copies.register(mgr), mgr.Add(copies)); err != nil {
			return err
		}
	}
	if !o.ServerCerts.Keep {
		return nil
	}
	return mgr.Add(webhookcert.NewKeeper(live, webhookcert.Options{
		Namespace: o.Namespace, Name: ServerSecret, KeyName: ServerKeySecret, Hosts: o.ServerCerts.Hosts,
		Settle: settleServers, Publish: publish, Logger: o.Logger,
	}))
}
