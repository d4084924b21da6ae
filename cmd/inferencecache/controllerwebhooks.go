// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/controller"
	"github.com/inferencecache/inference-cache/internal/inject"
	"github.com/inferencecache/inference-cache/internal/storage"
	"github.com/inferencecache/inference-cache/internal/webhook"
	"github.com/inferencecache/inference-cache/internal/webhookcert"
)

// Values of --webhook-cert-mode.
const (
	certModeSelf  = "self"
	certModeFiles = "files"
)

// Values of --server-cert-mode.
const (
	serverCertsNone = "none"
	serverCertsSelf = "self"
)

// defaultWebhookCertDir is where a pod finds the certificate of mode files.
const defaultWebhookCertDir = "/var/run/secrets/inferencecache.io/webhook-cert"

// Values of --sidecar-mode.
const (
	sidecarAuto      = "auto"
	sidecarNative    = "native"
	sidecarContainer = "container"
)

// maxShutdownDelay bounds --webhook-shutdown-delay.
const maxShutdownDelay = time.Minute

// serverService is the servers' Service; that with their addresses is called
// the same and -headless.
const serverService = "inference-cache-server"

// webhookFlags say how the API server is answered and what pods are given.
type webhookFlags struct {
	address, certMode, certDir string
	http2                      bool
	drain                      time.Duration

	image, sidecarMode, publisherServer string
	tenantScope, serverCertMode         string
}

func (w *webhookFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&w.address, "webhook-bind-address", fmt.Sprintf(":%d", webhook.ServerPort), "address of the admission webhooks, on every replica; 0 turns them off")
	flags.StringVar(&w.certMode, "webhook-cert-mode", certModeSelf, "who keeps the webhooks' certificate: self (the leader, in the Secret "+controller.WebhookSecret+", and its authority in the webhook configurations) or files (somebody else, in --webhook-cert-dir)")
	flags.StringVar(&w.certDir, "webhook-cert-dir", defaultWebhookCertDir, "directory of tls.crt and tls.key with --webhook-cert-mode=files; read again when they change")
	flags.StringVar(&w.serverCertMode, "server-cert-mode", serverCertsNone, "who keeps the servers' certificate: none (somebody else) or self (the leader, in the Secret "+controller.ServerSecret+")")
	flags.DurationVar(&w.drain, "webhook-shutdown-delay", 3*time.Second, "how long webhooks answer after a signal, until no API server calls this replica any more")
	flags.BoolVar(&w.http2, "enable-http2", false, "allow HTTP/2 to the webhooks and to metrics over TLS")
	flags.StringVar(&w.image, "kvevent-subscriber-image", "", "image of the publisher that engine pods get; empty gives them none")
	flags.StringVar(&w.sidecarMode, "sidecar-mode", sidecarAuto, "what the publisher is: native (a sidecar of Kubernetes 1.29), container (an ordinary container) or auto, by the API server's version")
	flags.StringVar(&w.publisherServer, "publisher-server-address", "", "the servers as publishers are told: host:port, or dns:///host:port for all behind a name (default --policy-server-grpc-address)")
	flags.StringVar(&w.tenantScope, "tenant-id-scope", string(webhook.TenantScopeCluster), "tenant ids that a CacheTenant may name: cluster (any) or namespace (its namespace's)")
}

// setWebhooks has the controller answer admission requests.
func (o *controllerOptions) setWebhooks(adapters *adapter.Registry, logger *slog.Logger) error {
	w := &o.webhooks
	scope, err := webhook.ParseTenantScope(w.tenantScope)
	if err != nil {
		return usagef("--tenant-id-scope: %w", err)
	}
	switch w.sidecarMode {
	case sidecarAuto, sidecarNative, sidecarContainer:
	default:
		return usagef("--sidecar-mode %q: expected auto, native or container", w.sidecarMode)
	}
	if w.drain < 0 || w.drain > maxShutdownDelay {
		return usagef("--webhook-shutdown-delay %s: expected 0 to 1m", w.drain)
	}
	server := w.publisherServer
	if server == "" {
		server = o.grpcAddress
	}
	if server == "" && w.image != "" {
		return usagef("--kvevent-subscriber-image: publishers need --publisher-server-address or --policy-server-grpc-address")
	}
	hooks, err := o.certificates()
	if err != nil {
		return err
	}
	var pods atomic.Pointer[inject.Handler]
	o.controller.Unseen = func(code string) {
		if handler := pods.Load(); handler != nil {
			handler.CountUnseen(code)
		}
	}
	hooks.Handlers = func(ctx context.Context, deps controller.WebhookDeps) (map[string]http.Handler, error) {
		ordinary, err := ordinaryContainer(ctx, w.sidecarMode, deps.Config)
		if err != nil {
			return nil, err
		}
		options := inject.HandlerOptions{Logger: logger, Resolve: o.resolve(deps, logger)}
		options.Options = inject.Options{
			Image: w.image, Servers: []string{server}, ServerName: o.serverName, PlainText: !o.serversUseTLS(),
			OrdinaryContainer: ordinary, Registry: adapters,
		}
		return admissionHandlers(deps, webhook.Options{Reader: deps.Live, Registry: adapters, TenantScope: scope}, options, &pods)
	}
	if m := &o.controller.Metrics; m.Secure && hooks.CertDir == "" && (w.address == "" || w.address == "0") {
		return usagef("--metrics-secure uses the webhooks' certificate: --webhook-bind-address must not be 0, or --webhook-cert-mode must be files")
	}
	o.controller.Metrics.HTTP2 = w.http2
	o.controller.Webhooks, o.controller.SidecarImage = hooks, w.image
	return nil
}

// certificates say who keeps which certificate.
func (o *controllerOptions) certificates() (controller.Webhooks, error) {
	w := &o.webhooks
	hooks := controller.Webhooks{
		Address: w.address, HTTP2: w.http2, Drain: w.drain, Mutating: webhook.MutatingName, Validating: webhook.ValidatingName,
		Hosts: webhookcert.ServiceNames(webhook.ServiceName, o.controller.Namespace),
	}
	switch {
	case w.certMode == certModeFiles && w.certDir != "":
		hooks.CertDir = w.certDir
	case w.certMode == certModeFiles:
		return hooks, usagef("--webhook-cert-dir: --webhook-cert-mode=files needs a directory")
	case w.certMode != certModeSelf:
		return hooks, usagef("--webhook-cert-mode %q: expected self or files", w.certMode)
	}
	o.controller.ServerCerts.ConfigMap = inject.CAConfigMap
	switch w.serverCertMode {
	case serverCertsNone:
	case serverCertsSelf:
		o.controller.ServerCerts.Keep = true
		for _, service := range []string{serverService, serverService + "-headless"} {
			o.controller.ServerCerts.Hosts = append(o.controller.ServerCerts.Hosts, webhookcert.ServiceNames(service, o.controller.Namespace)...)
		}
	default:
		return hooks, usagef("--server-cert-mode %q: expected none or self", w.serverCertMode)
	}
	return hooks, nil
}

// resolve finds the storages of backends; nil where none are run.
func (o *controllerOptions) resolve(deps controller.WebhookDeps, logger *slog.Logger) func(context.Context, *v1alpha1.CacheBackend) (*adapter.Binding, error) {
	if o.controller.Storage == nil {
		return nil
	}
	resolver := &storage.Resolver{Reader: deps.Live, Providers: o.controller.Storage, Unreadable: func(b *v1alpha1.CacheBackend, err error) {
		logger.Warn("engines are wired without their storage", "backend", b.Namespace+"/"+b.Name, "error", err)
	}}
	return resolver.Resolve
}

// serversUseTLS says whether clients check the servers' certificate.
func (o *controllerOptions) serversUseTLS() bool {
	return o.caFile != "" || o.webhooks.serverCertMode == serverCertsSelf
}

// admissionHandlers returns everything the API server may ask, by path, and
// keeps the one that answers about pods.
func admissionHandlers(deps controller.WebhookDeps, resources webhook.Options, pods inject.HandlerOptions, kept *atomic.Pointer[inject.Handler]) (map[string]http.Handler, error) {
	resources.Registerer, resources.Panicked = deps.Registerer, deps.Panicked
	handlers, err := webhook.Handlers(deps.Scheme, resources)
	if err != nil {
		return nil, err
	}
	pods.Live, pods.Cached, pods.Registerer, pods.Panicked = deps.Live, deps.Cached, deps.Registerer, deps.Panicked
	handler := inject.NewHandler(pods)
	kept.Store(handler)
	for path, serve := range map[string]func() (http.Handler, error){webhook.PodPath: handler.Inject, webhook.StampsPath: handler.Strip} {
		if handlers[path], err = serve(); err != nil {
			return nil, fmt.Errorf("serve %s: %w", path, err)
		}
	}
	return handlers, nil
}

// nativeSidecars is the first version whose pods may have sidecars that start
// before and end after the other containers.
var nativeSidecars = version.MajorMinor(1, 29)

// versionPatience is how long an API server that does not answer is asked for
// its version.
const versionPatience = time.Minute

// ordinaryContainer says whether publishers have to be ordinary containers.
func ordinaryContainer(ctx context.Context, mode string, config *rest.Config) (bool, error) {
	if mode != sidecarAuto {
		return mode == sidecarContainer, nil
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return false, fmt.Errorf("ask for the API server's version: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	for {
		info, err := client.ServerVersion()
		if err == nil {
			return olderThan(info.GitVersion, nativeSidecars)
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("ask for the API server's version: %w", err)
		case <-time.After(time.Second):
		}
	}
}

func olderThan(text string, than *version.Version) (bool, error) {
	v, err := version.ParseGeneric(text)
	if err != nil {
		return false, fmt.Errorf("--sidecar-mode=auto: the API server calls its version %.64q; set native or container: %w", text, err)
	}
	return v.LessThan(than), nil
}
