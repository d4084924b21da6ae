// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/webhookcert"
)

const (
	// ReasonServerCAConflict is the event's for a ConfigMap that is not ours
	// where the servers' authority should be.
	ReasonServerCAConflict = "ServerCAConflict"

	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "inference-cache-controller"
	authorityKey   = "ca.crt"
)

// States of a namespace's copy of the servers' authority.
const (
	caCurrent = "current"
	caForeign = "foreign"
	caFailed  = "failed"
)

// ServerCAOptions of a ServerCA. Fields without a default are required.
type ServerCAOptions struct {
	// Client reads CacheBackends and ConfigMaps, and writes ConfigMaps.
	Client client.Client
	// Live reads the Secret.
	Live client.Reader
	// Namespace and Secret say where the authority comes from, as ca.crt.
	Namespace, Secret string
	// ConfigMap is the name of its copies.
	ConfigMap string
	// Trust gets the authority too; default nobody.
	Trust *auth.Authorities
	// Interval is the time between two looks at the Secret; default 10 s.
	Interval time.Duration
	// Events takes the events; default nobody.
	Events events.EventRecorder
	// Metrics count namespaces; default none.
	Metrics *Metrics
	// Logger takes the logs; default none.
	Logger *slog.Logger
}

// ServerCA keeps the authority of the servers' certificates in a ConfigMap of
// each namespace with a CacheBackend, for the publishers there. ConfigMaps
// without its label it leaves alone. It is safe for concurrent use.
type ServerCA struct {
	options ServerCAOptions

	mu          sync.Mutex
	authorities []byte                     // guarded by mu
	states      map[string]string          // by namespace, guarded by mu
	changed     func(types.NamespacedName) // guarded by mu
}

var _ reconcile.Reconciler = (*ServerCA)(nil)

// NewServerCA returns a ServerCA that knows no authority yet.
func NewServerCA(o ServerCAOptions) *ServerCA {
	if o.Interval <= 0 {
		o.Interval = 10 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &ServerCA{options: o, states: map[string]string{}}
}

// NeedLeaderElection is true: one controller writes.
func (s *ServerCA) NeedLeaderElection() bool { return true }

// Start follows the Secret until the context ends. A Secret that is away or
// unusable changes nothing.
func (s *ServerCA) Start(ctx context.Context) error {
	told := ""
	for {
		failure := ""
		if err := s.Load(ctx); err != nil && ctx.Err() == nil {
			if failure = err.Error(); failure != told && !apierrors.IsNotFound(err) {
				s.options.Logger.Warn("no new authority of the servers", "error", err)
			}
		}
		told = failure
		if !pause(ctx, s.options.Interval) {
			return nil
		}
	}
}

// Load reads the Secret once and has every copy of an older authority renewed.
func (s *ServerCA) Load(ctx context.Context) error {
	var secret corev1.Secret
	if err := s.options.Live.Get(ctx, client.ObjectKey{Namespace: s.options.Namespace, Name: s.options.Secret}, &secret); err != nil {
		return fmt.Errorf("read the Secret %s: %w", s.options.Secret, err)
	}
	authorities, err := webhookcert.Authorities(secret.Data[authorityKey])
	if err != nil {
		return fmt.Errorf("%s of the Secret %s: %w", authorityKey, s.options.Secret, err)
	}
	return s.Publish(ctx, authorities)
}

// Publish has authorities, PEM, copied everywhere, and returns before they are.
func (s *ServerCA) Publish(ctx context.Context, authorities []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes.Equal(s.authorities, authorities) {
		return nil
	}
	if s.changed != nil {
		var backends v1alpha1.CacheBackendList
		if err := s.options.Client.List(ctx, &backends); err != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("list CacheBackends: %w", err)
		}
		for i := range backends.Items {
			s.changed(types.NamespacedName{Namespace: backends.Items[i].Namespace, Name: s.options.ConfigMap})
		}
	}
	if s.options.Trust != nil {
		if err := s.options.Trust.Replace(authorities); err != nil {
			return err
		}
	}
	s.authorities = authorities
	return nil
}

// notify has changed told of every copy to look at.
func (s *ServerCA) notify(changed func(types.NamespacedName)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = changed
}

func (s *ServerCA) current() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.authorities
}

// Reconcile brings one copy in step.
func (s *ServerCA) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	authorities := s.current()
	if request.Name != s.options.ConfigMap {
		return reconcile.Result{}, nil
	}
	var backends v1alpha1.CacheBackendList
	if err := s.options.Client.List(ctx, &backends, client.InNamespace(request.Namespace)); err != nil {
		return reconcile.Result{}, fmt.Errorf("list CacheBackends: %w", err)
	}
	copied, found, err := s.read(ctx, request.NamespacedName)
	if err == nil {
		err = s.settle(ctx, copied, found, len(backends.Items) > 0, authorities)
	}
	if err != nil {
		s.say(request.Namespace, caFailed)
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}

func (s *ServerCA) read(ctx context.Context, name types.NamespacedName) (*corev1.ConfigMap, bool, error) {
	copied := &corev1.ConfigMap{}
	err := s.options.Client.Get(ctx, name, copied)
	if apierrors.IsNotFound(err) {
		copied.ObjectMeta = metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{managedByLabel: managedBy}}
		return copied, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read ConfigMap %s: %w", name, err)
	}
	return copied, true, nil
}

// settle writes or removes one copy.
func (s *ServerCA) settle(ctx context.Context, copied *corev1.ConfigMap, found, wanted bool, authorities []byte) error {
	data := map[string]string{authorityKey: string(authorities)}
	ours := copied.Labels[managedByLabel] == managedBy
	switch {
	case !wanted && found && ours:
		s.say(copied.Namespace, "")
		version, uid := copied.ResourceVersion, copied.UID
		err := s.options.Client.Delete(ctx, copied, client.Preconditions{UID: &uid, ResourceVersion: &version})
		return client.IgnoreNotFound(err)
	case !wanted:
		s.say(copied.Namespace, "")
		return nil
	case found && !ours:
		s.conflict(copied)
		return nil
	case authorities == nil:
		return nil // Publish comes back to it
	case found && maps.Equal(copied.Data, data) && len(copied.BinaryData) == 0:
		s.say(copied.Namespace, caCurrent)
		return nil
	}
	copied.Data, copied.BinaryData = data, nil
	var err error
	if found {
		err = s.options.Client.Update(ctx, copied)
	} else {
		err = s.options.Client.Create(ctx, copied)
	}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		s.say(copied.Namespace, "")
		return nil
	case err != nil:
		return fmt.Errorf("write ConfigMap %s/%s: %w", copied.Namespace, copied.Name, err)
	}
	s.say(copied.Namespace, caCurrent)
	return nil
}

// conflict tells of a ConfigMap of somebody else, once.
func (s *ServerCA) conflict(foreign *corev1.ConfigMap) {
	if !s.say(foreign.Namespace, caForeign) {
		return
	}
	s.options.Logger.Warn("a ConfigMap that is not ours keeps publishers from the servers' authority", "namespace", foreign.Namespace, "name", foreign.Name)
	if s.options.Events != nil {
		s.options.Events.Eventf(foreign, nil, corev1.EventTypeWarning, ReasonServerCAConflict, "Publish",
			"This ConfigMap is mounted by publishers as the authority of their servers, but lacks the label %s=%s and is left alone; "+
				"rename it, or add the label to have it replaced.", managedByLabel, managedBy)
	}
}

// say notes the state of a namespace, "" for none, and returns whether it is
// new.
func (s *ServerCA) say(namespace, state string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.states[namespace] == state {
		return false
	}
	if s.states[namespace] = state; state == "" {
		delete(s.states, namespace)
	}
	counts := map[string]int{caCurrent: 0, caForeign: 0, caFailed: 0}
	for _, state := range s.states {
		counts[state]++
	}
	s.options.Metrics.serverCA(counts)
	return true
}
