// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
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
	"github.com/inferencecache/inference-cache/internal/controlclient"
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
	// LeaderElect has one of several controllers act.
	LeaderElect bool
	// MetricsAddress and HealthAddress are listened on; "0" turns either off.
	MetricsAddress, HealthAddress string
	// ShutdownGrace bounds the end; default 10s.
	ShutdownGrace time.Duration
	// Logger takes the logs; default none.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Discovery == "" {
		o.Discovery = DiscoverURL
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

// Run keeps servers and resources in step until the context ends.
func Run(ctx context.Context, options Options) error {
	options = options.withDefaults()
	mgr, err := newManager(options)
	if err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}
	discovery, err := options.discovery(mgr.GetClient())
	if err != nil {
		return err
	}
	pusher := NewPusher(PusherOptions{
		Client: mgr.GetClient(), Discovery: discovery, WireVersion: options.WireVersion, Interval: options.PushInterval,
		Logger: options.Logger,
	})
	poller := NewPoller(PollerOptions{
		Client: mgr.GetClient(), Discovery: discovery, Interval: options.PollInterval, MaxReplicas: options.MaxReplicas,
		Observed: pusher.Observed, Logger: options.Logger,
	})
	watch := &watcher{
		cache: mgr.GetCache(), changed: pusher.Changed, servers: options.Discovery == DiscoverEndpoints, logger: options.Logger,
	}
	for _, runnable := range []manager.Runnable{pusher, poller, watch} {
		if err := mgr.Add(runnable); err != nil {
			return fmt.Errorf("set up the controller: %w", err)
		}
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the controller: %w", err)
	}
	return nil
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
	if o.Discovery == DiscoverEndpoints {
		_, namespace, err := (&EndpointServers{Options: o.Servers, Namespace: o.Namespace}).service()
		if err != nil {
			return nil, err
		}
		byObject[&discoveryv1.EndpointSlice{}] = cache.ByObject{Namespaces: map[string]cache.Config{namespace: {}}}
	}
	mgr, err := ctrl.NewManager(o.Config, ctrl.Options{
		Scheme: scheme,
		Logger: logr.FromSlogHandler(o.Logger.Handler()),
		Cache:  cache.Options{ByObject: byObject, DefaultTransform: cache.TransformStripManagedFields()},
		Metrics: metricsserver.Options{
			BindAddress: o.MetricsAddress,
		},
		HealthProbeBindAddress:        o.HealthAddress,
		LeaderElection:                o.LeaderElect,
		LeaderElectionID:              LeaderLock,
		LeaderElectionNamespace:       o.Namespace,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &o.ShutdownGrace,
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
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
	pod.Status = corev1.PodStatus{
		Phase: pod.Status.Phase, Conditions: pod.Status.Conditions, StartTime: pod.Status.StartTime,
		ContainerStatuses: pod.Status.ContainerStatuses, InitContainerStatuses: pod.Status.InitContainerStatuses,
	}
	return pod, nil
}
