// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/controlclient"
	"github.com/inferencecache/inference-cache/internal/storage"
	"github.com/inferencecache/inference-cache/internal/webhookcert"
)

// LeaderLock is the name of the Lease that leaders hold.
const LeaderLock = "inference-cache-controller-leader-lock"

// ServerDiscovery says which servers are addressed.
type ServerDiscovery string

// Ways to find the servers.
const (
	// DiscoverURL addresses exactly the configured URLs.
	DiscoverURL ServerDiscovery = "url"
	// DiscoverEndpoints addresses every endpoint of the Service in them.
	DiscoverEndpoints ServerDiscovery = "endpoints"
)

// Options of Run. Fields without a default are required.
type Options struct {
	// Config reaches the API server.
	Config *rest.Config
	// Servers says how to call a server.
	Servers controlclient.Options
	// Discovery finds the servers; default DiscoverURL.
	Discovery ServerDiscovery
	// Namespace is the controller's own: it holds the Lease, and the servers'
	// Service if the URLs name none.
	Namespace string
	// WireVersion, PushInterval, PollInterval and MaxReplicas are those of
	// Pusher and Poller.
	WireVersion                int
	PushInterval, PollInterval time.Duration
	MaxReplicas                int
	// Reconciles is how many CacheBackends, and how many PDTopologies, are
	// looked at at once; default DefaultReconciles.
	Reconciles int
	// Face tests what clients see of the servers; default not. Self-tests run
	// when Servers has a URL for them.
	Face Face
	// ConfigHash, SidecarImage, RepairSidecarImage and Unseen are those of
	// BackendOptions.
	ConfigHash         func(*v1alpha1.CacheBackend, *adapter.Binding) string
	SidecarImage       string
	RepairSidecarImage bool
	Unseen             func(code string)
	// Now is the clock of CacheBackends and events on pods; default time.Now.
	Now func() time.Time
	// Adapters say which backends are served; default adapter.Core.
	Adapters *adapter.Registry
	// Webhooks are answered on every replica; default none.
	Webhooks Webhooks
	// ServerCerts are the servers' certificates; default nobody's business.
	ServerCerts ServerCerts
	// Storage knows the storages that are run for backends; default none, and
	// what they consist of is not watched.
	Storage *storage.Registry
	// NodeServers has the LMCache servers of NodeLocal backends kept; default
	// false.
	NodeServers bool
	// LeaderElect has one of several controllers act.
	LeaderElect bool
	// HealthAddress is listened on; "0" turns it off.
	HealthAddress string
	// Metrics are served; default not.
	Metrics MetricsOptions
	// ShutdownGrace bounds the end, after the webhooks' Drain; default 10s.
	ShutdownGrace time.Duration
	// Logger takes the logs; default none.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Discovery == "" {
		o.Discovery = DiscoverURL
	}
	if o.Reconciles <= 0 {
		o.Reconciles = DefaultReconciles
	}
	if o.ShutdownGrace <= 0 {
		o.ShutdownGrace = 10 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// NewScheme returns the kinds that the controller reads and writes.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return scheme, v1alpha1.AddToScheme(scheme)
}

// unhurried leaves it to the API server how often it is asked, where nothing
// else is set: the client library's own limit of 5 calls a second for a kind
// would hold up everything after a start.
func unhurried(config *rest.Config) *rest.Config {
	if config.QPS != 0 || config.RateLimiter != nil {
		return config
	}
	config = rest.CopyConfig(config)
	config.QPS = -1
	return config
}

// Run keeps servers and resources in step until the context ends.
func Run(ctx context.Context, options Options) error {
	options = options.withDefaults()
	options.Config = unhurried(options.Config)
	mgr, err := newManager(options)
	if err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}
	if err := options.add(ctx, mgr); err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the controller: %w", err)
	}
	return nil
}

// add has the manager run everything there is.
func (o Options) add(ctx context.Context, mgr ctrl.Manager) error {
	discovery, err := o.discovery(mgr.GetClient())
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	live, err := o.liveClient(mgr)
	if err != nil {
		return err
	}
	var certs webhookcert.Certificates
	if listeners := o.listenersWithTLS(); listeners != nil {
		certs = o.certificates(live)
		if err := mgr.Add(certs); err != nil {
			return err
		}
		registry.MustRegister(newCertificateEnd(certs, listeners...))
	}
	metrics := NewMetrics(registry)
	if o.Webhooks.served() {
		if err := o.addWebhooks(ctx, mgr, live, certs, registry, metrics); err != nil {
			return err
		}
	}
	return errors.Join(o.addServerCerts(mgr, live, metrics), o.addLoops(mgr, discovery, metrics), o.serveMetrics(mgr, live, certs, registry))
}

// listenersWithTLS are those that serve with the webhooks' certificate.
func (o Options) listenersWithTLS() (listeners []string) {
	if o.Webhooks.served() {
		listeners = append(listeners, listenerWebhooks)
	}
	if o.Metrics.served() && o.Metrics.Secure {
		listeners = append(listeners, listenerMetrics)
	}
	return listeners
}

// liveClient asks the API server without a cache. The API server alone says
// how often: who asks the webhooks does not wait for other work of ours.
func (o Options) liveClient(mgr ctrl.Manager) (client.Client, error) {
	config := rest.CopyConfig(o.Config)
	config.QPS = -1
	return client.New(config, client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
}

// addLoops has the manager run everything that the leader does.
func (o Options) addLoops(mgr ctrl.Manager, discovery Discovery, metrics *Metrics) error {
	rows := new(Rows)
	counted := metrics.Counted(mgr.GetClient())
	var pusher *Pusher
	topologies := NewTopologies(func() { pusher.Changed() }, o.Logger)
	pusher = NewPusher(PusherOptions{
		Client: counted, Discovery: discovery, WireVersion: o.WireVersion, Interval: o.PushInterval,
		Topologies: topologies.All, Metrics: metrics, Logger: o.Logger,
	})
	poller := NewPoller(PollerOptions{
		Client: counted, Discovery: discovery, Interval: o.PollInterval, MaxReplicas: o.MaxReplicas,
		Observed: pusher.Observed, Rows: rows, Metrics: metrics, Logger: o.Logger, Now: o.Now,
	})
	watch := &watcher{cache: mgr.GetCache(), changed: pusher.Changed, servers: o.Discovery == DiscoverEndpoints, logger: o.Logger}
	runnables := []manager.Runnable{pusher, poller, watch, topologies, NewCensus(mgr.GetClient(), metrics, o.Logger)}
	var prober *Prober
	if o.Servers.URLs.Probe != "" {
		prober = NewProber(ProberOptions{Discovery: discovery, Face: o.Face, Metrics: metrics, Logger: o.Logger})
		runnables = append(runnables, prober)
	}
	var storages *Storages
	if o.Storage != nil {
		storages = NewStorages(StorageOptions{Client: counted, Live: mgr.GetAPIReader(), Providers: o.Storage, Metrics: metrics})
	}
	nodes, more, err := o.nodeServers(mgr, counted, metrics)
	if err != nil {
		return err
	}
	backends := NewBackendReconciler(BackendOptions{
		Storages: storages, NodeServers: nodes, Client: counted, Workloads: mgr.GetAPIReader(), ConfigHash: o.ConfigHash, SidecarImage: o.SidecarImage,
		RepairSidecarImage: o.RepairSidecarImage, Unseen: o.Unseen, Prober: prober, Rows: rows,
		Adapters: o.Adapters, Namespace: o.Namespace, Events: mgr.GetEventRecorder(reporter), Metrics: metrics,
		Logger: o.Logger, Now: o.Now,
	})
	pools := NewTopologyReconciler(TopologyOptions{Client: counted, Topologies: topologies, Rows: rows, Logger: o.Logger})
	topologies.LoadWith(pools.All)
	for _, runnable := range runnables {
		if err := mgr.Add(runnable); err != nil {
			return err
		}
	}
	told := NewPodEventReconciler(PodEventOptions{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Logger: o.Logger, Now: o.Now})
	return errors.Join(backends.register(mgr, o.Reconciles, more...), pools.register(mgr, o.Reconciles, metrics), told.register(mgr, o.Reconciles, metrics))
}

func (o Options) discovery(reader client.Reader) (Discovery, error) {
	switch o.Discovery {
	case DiscoverURL:
		return ConfiguredServer{o.Servers}, nil
	case DiscoverEndpoints:
		return &EndpointServers{Reader: reader, Options: o.Servers, Namespace: o.Namespace}, nil
	}
	return nil, fmt.Errorf("server discovery %q: expected %s or %s", o.Discovery, DiscoverURL, DiscoverEndpoints)
}

func newManager(o Options) (ctrl.Manager, error) {
	scheme, err := NewScheme()
	if err != nil {
		return nil, err
	}
	engines, err := labels.NewRequirement(v1alpha1.LabelCacheDomain, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	byObject := map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Label: labels.NewSelector().Add(*engines), Transform: stripPod},
	}
	if o.Storage != nil {
		cacheStorages(byObject)
	}
	if o.Discovery == DiscoverEndpoints {
		_, namespace, err := (&EndpointServers{Options: o.Servers, Namespace: o.Namespace}).service()
		if err != nil {
			return nil, err
		}
		byObject[&discoveryv1.EndpointSlice{}] = cache.ByObject{Namespaces: map[string]cache.Config{namespace: {}}}
	}
	if name := o.ServerCerts.ConfigMap; name != "" {
		byObject[&corev1.ConfigMap{}] = cache.ByObject{Field: fields.OneTermEqualSelector(metav1.ObjectNameField, name)}
	}
	grace := o.Webhooks.Drain + o.ShutdownGrace
	mgr, err := ctrl.NewManager(o.Config, ctrl.Options{
		Scheme: scheme,
		Logger: logr.FromSlogHandler(o.Logger.Handler()),
		Cache:  cache.Options{ByObject: byObject, DefaultTransform: cache.TransformStripManagedFields()},
		Metrics: metricsserver.Options{
			BindAddress: "0", // see serveMetrics
		},
		HealthProbeBindAddress:        o.HealthAddress,
		LeaderElection:                o.LeaderElect,
		LeaderElectionID:              LeaderLock,
		LeaderElectionNamespace:       o.Namespace,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &grace,
	})
	if err != nil {
		return nil, err
	}
	if err := mgr.AddHealthzCheck("alive", healthz.Ping); err != nil {
		return nil, err
	}
	return mgr, mgr.AddReadyzCheck("caches", func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return fmt.Errorf("caches are not in step with the API server yet")
		}
		return nil
	})
}

// stripPod keeps what the controller reads of a pod, which is little: there
// may be thousands.
func stripPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	kept := make(map[string]string)
	for name, value := range pod.Annotations {
		if len(name) > len(v1alpha1.Group) && name[:len(v1alpha1.Group)] == v1alpha1.Group {
			kept[name] = value
		}
	}
	pod.Annotations, pod.ManagedFields = kept, nil
	inits, containers := keptContainers(pod)
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, InitContainers: inits, Containers: containers}
	pod.Status = corev1.PodStatus{
		Phase: pod.Status.Phase, Conditions: pod.Status.Conditions, StartTime: pod.Status.StartTime,
		ContainerStatuses: pod.Status.ContainerStatuses, InitContainerStatuses: pod.Status.InitContainerStatuses,
	}
	return pod, nil
}
