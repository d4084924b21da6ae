// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/webhookcert"
)

// WebhookSecret is the Secret of the webhooks' certificate.
const WebhookSecret = "webhook-server-cert"

// settleWebhooks is how long API servers may take to trust a new authority
// that the webhook configurations name.
const settleWebhooks = 30 * time.Second

// Webhooks are what every replica answers the API server. The zero value
// answers nothing.
type Webhooks struct {
	// Address is listened on; "" and "0" are no address.
	Address string
	// Handlers returns what is served by path. Required with an Address.
	Handlers func(context.Context, WebhookDeps) (map[string]http.Handler, error)
	// CertDir holds tls.crt and tls.key, which somebody else keeps, as they do
	// the webhook configurations. Default: the leader keeps a Secret
	// WebhookSecret and the bundles of the configurations.
	CertDir string
	// Hosts are the names in the certificate that the leader keeps.
	Hosts []string
	// Mutating and Validating name the webhook configurations.
	Mutating, Validating string
	// HTTP2 allows HTTP/2; default HTTP/1.1 only.
	HTTP2 bool
	// Drain is how long requests are taken after the context has ended, for
	// callers that have not heard of it yet; default none.
	Drain time.Duration
}

// WebhookDeps are what webhooks work with.
type WebhookDeps struct {
	// Config reaches the API server.
	Config *rest.Config
	Scheme *runtime.Scheme
	// Live asks the API server. Cached knows CacheBackends, and says so when
	// it does not know them yet.
	Live, Cached client.Reader
	// Registerer takes the metrics.
	Registerer prometheus.Registerer
	// Panicked counts a panic of a webhook.
	Panicked func()
}

func (w Webhooks) served() bool { return w.Address != "" && w.Address != "0" }

func (o Options) certificates(live client.Reader) webhookcert.Certificates {
	if o.Webhooks.CertDir != "" {
		return webhookcert.NewFiles(o.Webhooks.CertDir, webhookcert.SourceOptions{Logger: o.Logger})
	}
	return webhookcert.NewSource(live, webhookcert.SourceOptions{Namespace: o.Namespace, Name: WebhookSecret, Logger: o.Logger})
}

// addWebhooks has the manager serve webhooks, and keep their certificate while
// it leads.
func (o Options) addWebhooks(ctx context.Context, mgr ctrl.Manager, live client.Client, certs webhookcert.Certificates, registry prometheus.Registerer, metrics *Metrics) error {
	known := &knownBackends{cache: mgr.GetCache(), logger: o.Logger}
	handlers, err := o.Webhooks.Handlers(ctx, WebhookDeps{
		Config: o.Config, Scheme: mgr.GetScheme(), Live: live, Cached: known, Registerer: registry, Panicked: metrics.webhookPanicked,
	})
	if err != nil {
		return fmt.Errorf("set up the webhooks: %w", err)
	}
	mux := http.NewServeMux()
	for path, handler := range handlers {
		mux.Handle(path, handler)
	}
	listener, err := net.Listen("tcp", o.Webhooks.Address)
	if err != nil {
		return fmt.Errorf("serve webhooks: %w", err)
	}
	server := &webhookServer{listener: listener, drain: o.Webhooks.Drain, grace: o.ShutdownGrace}
	server.server = newTLSServer(server.partingFrom(mux), certs, o.Webhooks.HTTP2, o.Logger)
	err = errors.Join(mgr.Add(known), mgr.Add(server), mgr.AddReadyzCheck("webhooks", certs.Ready), mgr.AddReadyzCheck("backends", known.ready))
	if err != nil || o.Webhooks.CertDir != "" {
		return err
	}
	watching, err := client.NewWithWatch(o.Config, client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("set up the webhooks: %w", err)
	}
	keeper := webhookcert.NewKeeper(live, webhookcert.Options{
		Namespace: o.Namespace, Name: WebhookSecret, Hosts: o.Webhooks.Hosts, Settle: settleWebhooks, Logger: o.Logger,
		Publish: webhookcert.IntoWebhooks(live, o.Webhooks.Mutating, o.Webhooks.Validating),
	})
	return errors.Join(mgr.Add(keeper), mgr.Add(webhookcert.NewWatch(watching, o.Webhooks.Mutating, o.Webhooks.Validating, keeper.Wake, o.Logger)))
}

// idleTimeout is longer than the 90 s of API servers, so that these close
// connections that are not used: a request never meets a closed one.
const idleTimeout = 3 * time.Minute

// newTLSServer serves a handler with the certificate of each moment.
func newTLSServer(handler http.Handler, certs webhookcert.Certificates, http2 bool, logger *slog.Logger) *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certs.GetCertificate, NextProtos: []string{"http/1.1"}}
	if http2 {
		protocols.SetHTTP2(true)
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	return &http.Server{
		Handler: handler, TLSConfig: config, Protocols: protocols,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: idleTimeout,
		// Broken handshakes are everyday where a certificate is awaited.
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// webhookServer serves on every replica.
type webhookServer struct {
	listener     net.Listener
	server       *http.Server
	drain, grace time.Duration
	parting      atomic.Bool
}

// partingFrom ends every connection with its next answer once the server is
// about to end. A connection in use that is closed otherwise may take along the
// request that its caller is sending.
func (s *webhookServer) partingFrom(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.parting.Load() {
			w.Header().Set("Connection", "close")
		}
		handler.ServeHTTP(w, r)
	})
}

// NeedLeaderElection is false: every replica serves.
func (s *webhookServer) NeedLeaderElection() bool { return false }

// Start serves until the context ends and then, for the time of drain, what
// still comes.
func (s *webhookServer) Start(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- s.server.Serve(tls.NewListener(s.listener, s.server.TLSConfig)) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve webhooks: %w", err)
	case <-ctx.Done():
	}
	s.parting.Store(true)
	pause(context.WithoutCancel(ctx), s.drain)
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.grace)
	defer cancel()
	if s.server.Shutdown(stopping) != nil {
		_ = s.server.Close() // what hangs is cut off
	}
	<-ended
	return nil
}

// knownBackends reads CacheBackends from the cache of every replica. Until the
// cache knows them, reading fails at once: an API server that waits for an
// answer does not wait for a cache.
type knownBackends struct {
	cache  cache.Cache
	logger *slog.Logger
	synced atomic.Bool
}

var errUnknownBackends = errors.New("the CacheBackends of the cluster are not known yet")

// NeedLeaderElection is false: every replica reads.
func (k *knownBackends) NeedLeaderElection() bool { return false }

// Start waits for the kind to be installed and for the cache to know it.
func (k *knownBackends) Start(ctx context.Context) error {
	for {
		_, err := k.cache.GetInformer(ctx, &v1alpha1.CacheBackend{})
		if err == nil {
			k.synced.Store(true)
			<-ctx.Done()
			return nil
		}
		if !meta.IsNoMatchError(err) && ctx.Err() == nil {
			k.logger.Error("cannot watch", "kind", "CacheBackend", "error", err)
		}
		if !pause(ctx, definitionRetry) {
			return nil
		}
	}
}

func (k *knownBackends) ready(*http.Request) error {
	if !k.synced.Load() {
		return errUnknownBackends
	}
	return nil
}

// Get implements client.Reader.
func (k *knownBackends) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if !k.synced.Load() {
		return errUnknownBackends
	}
	return k.cache.Get(ctx, key, object, options...)
}

// List implements client.Reader.
func (k *knownBackends) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if !k.synced.Load() {
		return errUnknownBackends
	}
	return k.cache.List(ctx, list, options...)
}
