// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/inject"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/storage"
)

type controllerOptions struct {
	controller          controller.Options
	webhooks            webhookFlags
	adapters            string
	discovery           string
	kubeconfig          string
	caFile, serverName  string
	snapshotURL         string
	policyURL           string
	probeURL            string
	grpcAddress         string
	lookupTokenFile     string
	controllerTokenFile string
	policyTokenFile     string
}

func (c *cli) newControllerCommand() *cobra.Command {
	options := &controllerOptions{}
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Bring declared policy to the servers, and what they know to the cluster",
		Long: `controller pushes all CachePolicies, CacheTenants and PromptTemplates of the
cluster to every server, after each change and every 30 seconds, and says on
each resource whether it is in force and where not. It polls the servers and
shows what they know in the status of CacheIndex, CacheTenant and CacheBackend.
It says on each CacheBackend whether its engines are injected, heard of and
found by a self-test, and resolves the pools of each PDTopology to engines.
It answers the API server's admission webhooks: declared resources are checked,
and engine pods get their publisher. Their certificate, and that of the servers
with --server-cert-mode=self, are in Secrets of --namespace, the only ones it
reads. With --adapters=all it also runs, in the namespace of each CacheBackend
that wants it, an LMCache server on each node with engines, and managed Redis,
whose password is in a Secret there.
Inside a pod it uses the pod's service account; elsewhere --kubeconfig.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runController(cmd.Context(), options) },
	}
	options.addFlags(cmd.Flags())
	return cmd
}

func (o *controllerOptions) addFlags(flags *pflag.FlagSet) {
	x := &o.controller
	flags.StringVar(&o.snapshotURL, "server-snapshot-url", "http://inference-cache-server:8081/snapshot", "where servers are polled")
	flags.StringVar(&o.policyURL, "server-policy-url", "http://inference-cache-server:8081/policy", "where policy is pushed")
	flags.StringVar(&o.probeURL, "server-probe-url", "http://inference-cache-server:8081/probe", "where self-tests are run; empty runs none")
	flags.StringVar(&o.grpcAddress, "policy-server-grpc-address", "inference-cache-server.inference-cache-system.svc.cluster.local:9090", "gRPC of the servers, part of the self-test; with --server-discovery=endpoints only its port and name count; empty leaves it out")
	flags.IntVar(&x.Reconciles, "max-concurrent-reconciles", controller.DefaultReconciles, "resources of a kind looked at at once")
	flags.StringVar(&o.discovery, "server-discovery", string(controller.DiscoverURL), "url: call exactly those URLs; endpoints: call every endpoint of the Service in them")
	flags.StringVar(&o.caFile, "server-ca-file", "", "authorities that servers' certificates are checked against (default with --server-cert-mode=self what the leader keeps, else the system's)")
	flags.StringVar(&o.serverName, "server-name", "", "name in servers' certificates, whatever address is called (default the host of the URL)")
	flags.StringVar(&o.controllerTokenFile, "controller-token-file", controlclient.DefaultControllerTokenFile, "token for polls; a missing file sends none")
	flags.StringVar(&o.policyTokenFile, "policy-token-file", controlclient.DefaultPolicyTokenFile, "token for pushes; a missing file sends none")
	flags.StringVar(&o.lookupTokenFile, "lookup-token-file", controller.DefaultLookupTokenFile, "token for the lookup of the self-test; sent over TLS or loopback only, a missing file sends none")
	flags.IntVar(&x.WireVersion, "policy-wire-version", policy.CurrentVersion, "schema version of pushed policy, for older servers: 3 to 7")
	flags.DurationVar(&x.PushInterval, "cachepolicy-push-interval", controller.DefaultPushInterval, "time between pushes without a change")
	flags.DurationVar(&x.PollInterval, "cacheindex-refresh-interval", controller.DefaultPollInterval, "time between polls")
	flags.IntVar(&x.MaxReplicas, "cacheindex-max-replicas", controller.DefaultMaxReplicas, "most replicas shown in the CacheIndex")
	flags.BoolVar(&x.LeaderElect, "leader-elect", false, "act only while holding the lease, for several controllers")
	flags.StringVar(&x.Namespace, "namespace", "inference-cache-system", "the controller's own namespace, that of the servers: holds the lease and the Secrets of certificates")
	flags.StringVar(&x.Metrics.Address, "metrics-bind-address", ":8080", "address of /metrics; 0 turns it off")
	flags.BoolVar(&x.Metrics.Secure, "metrics-secure", false, "serve /metrics over TLS, with the webhooks' certificate, to whom the API server lets get /metrics")
	flags.StringVar(&x.HealthAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz; 0 turns it off")
	flags.StringVar(&o.adapters, "adapters", adaptersCore, "which backends are served: core (those that watch engines) or all (those that offload too, to LMCache servers and Redis that the controller runs)")
	flags.BoolVar(&x.RepairSidecarImage, "repair-sidecar-image", false, "give pods that wait for their publisher's image the present one; needs the right to patch pods")
	o.webhooks.addFlags(flags)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "how to reach the API server outside a pod (default $KUBECONFIG)")
}

func (c *cli) runController(ctx context.Context, o *controllerOptions) error {
	logger, err := c.logger()
	if err != nil {
		return err
	}
	if err := o.validate(); err != nil {
		return err
	}
	o.setFace(logger)
	calls, err := o.httpClient(logger)
	if err != nil {
		return err
	}
	o.controller.Servers = controlclient.Options{
		URLs:                controlclient.URLs{Snapshot: o.snapshotURL, Policy: o.policyURL, Probe: o.probeURL},
		ControllerTokenFile: o.controllerTokenFile, PolicyTokenFile: o.policyTokenFile, HTTP: calls,
		Unreadable: func(err error) { logger.Warn("a call goes out without a token", "error", err) },
	}
	adapters, err := adaptersFor(o.adapters)
	if err != nil {
		return err
	}
	if o.adapters == adaptersAll {
		o.controller.Storage, o.controller.NodeServers = storage.All(), true
	}
	if err := o.setWebhooks(adapters, logger); err != nil {
		return err
	}
	o.controller.Logger, o.controller.Adapters, o.controller.ConfigHash = logger, adapters, configHash(adapters, logger)
	if o.controller.Config, err = o.cluster(); err != nil {
		return err
	}
	ctrllog.SetLogger(logr.FromSlogHandler(logger.Handler())) // for what asks no manager
	return controller.Run(ctx, o.controller)
}

// Values of --adapters.
const (
	adaptersCore = "core"
	adaptersAll  = "all"
)

func adaptersFor(name string) (*adapter.Registry, error) {
	switch name {
	case adaptersCore:
		return adapter.Core(), nil
	case adaptersAll:
		return adapter.All(), nil
	}
	return nil, usagef("--adapters %q: expected core or all", name)
}

// configHash is what the pod webhook stamps engines of a backend with.
func configHash(adapters *adapter.Registry, logger *slog.Logger) func(*v1alpha1.CacheBackend, *adapter.Binding) string {
	return func(backend *v1alpha1.CacheBackend, binding *adapter.Binding) string {
		a, served := adapters.For(backend)
		if !served {
			return ""
		}
		hash, err := inject.ConfigHash(backend, a, binding)
		if err != nil {
			logger.Error("cannot say which pods are stale", "backend", backend.Namespace+"/"+backend.Name, "error", err)
		}
		return hash
	}
}
