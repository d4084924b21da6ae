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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/webhookcert"
)

const metricsPath = "/metrics"

// MetricsOptions say who reads the metrics, and how.
type MetricsOptions struct {
	// Address is listened on; "" and "0" are no address.
	Address string
	// Secure serves over TLS, with the webhooks' certificate, who the API
	// server lets get /metrics. Default: everybody, without TLS.
	Secure bool
	// HTTP2 allows HTTP/2 over TLS; default HTTP/1.1 only.
	HTTP2 bool
}

func (m MetricsOptions) served() bool { return m.Address != "" && m.Address != "0" }

// serveMetrics serves our metrics on one page with those of the libraries.
func (o Options) serveMetrics(mgr ctrl.Manager, live client.Client, certs webhookcert.Certificates, registry *prometheus.Registry) error {
	if !o.Metrics.served() {
		return nil
	}
	listener, err := net.Listen("tcp", o.Metrics.Address)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	mux := http.NewServeMux()
	page := promhttp.HandlerFor(prometheus.Gatherers{ctrlmetrics.Registry, registry}, promhttp.HandlerOpts{})
	mux.Handle(metricsPath, page)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	if o.Metrics.Secure {
		readers := newMetricsReaders(live, o.Logger)
		if err := mgr.Add(readers); err != nil {
			return errors.Join(err, listener.Close())
		}
		server = newTLSServer(readers.only(mux), certs, o.Metrics.HTTP2, o.Logger)
		listener = tls.NewListener(listener, server.TLSConfig)
	}
	return mgr.Add(&manager.Server{Name: "metrics", Server: server, Listener: listener, ShutdownTimeout: &o.ShutdownGrace})
}

// metricsReaders lets those read whom the API server lets get /metrics.
type metricsReaders struct{ reviews *auth.Reviews }

func newMetricsReaders(c client.Client, logger *slog.Logger) *metricsReaders {
	return &metricsReaders{auth.NewReviews(auth.ReviewOptions{
		Reviewer: tokenReviewer{c}, Audience: clusterAudience, Endpoint: "metrics", Logger: logger,
		Permit: func(ctx context.Context, id *auth.Identity) gate.Verdict { return mayGet(ctx, c, id.Subject, logger) },
	})}
}

// NeedLeaderElection is false: every replica has metrics.
func (m *metricsReaders) NeedLeaderElection() bool { return false }

// Start ends the reviews with the context.
func (m *metricsReaders) Start(ctx context.Context) error {
	<-ctx.Done()
	m.reviews.Close()
	return nil
}

func (m *metricsReaders) only(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch verdict := m.reviews.Check(r); verdict {
		case gate.OK:
			next.ServeHTTP(w, r)
		case gate.Unauthenticated:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a token of the cluster is needed", http.StatusUnauthorized)
		case gate.Forbidden:
			http.Error(w, "the account may not get "+metricsPath, http.StatusForbidden)
		default:
			http.Error(w, "the API server cannot be asked now", http.StatusServiceUnavailable)
		}
	})
}

// clusterAudience stands for the audience of the API server itself, whose name
// clusters choose.
const clusterAudience = "the API server"

// tokenReviewer asks an API server about tokens for itself.
type tokenReviewer struct{ client client.Client }

var _ auth.Reviewer = tokenReviewer{}

// Review implements auth.Reviewer.
func (t tokenReviewer) Review(ctx context.Context, token, audience string) (auth.Review, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := t.client.Create(ctx, review); err != nil {
		return auth.Review{}, fmt.Errorf("review a token: %w", err)
	}
	user := review.Status.User
	extra := make(map[string][]string, len(user.Extra))
	for key, values := range user.Extra {
		extra[key] = values
	}
	return auth.Review{
		Authenticated: review.Status.Authenticated, Username: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		Audiences: []string{audience}, Reason: review.Status.Error,
	}, nil
}

// mayGet asks an API server whether it lets a user get /metrics.
func mayGet(ctx context.Context, c client.Client, subject auth.Subject, logger *slog.Logger) gate.Verdict {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: subject.User, UID: subject.UID, Groups: subject.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: metricsPath, Verb: "get"},
	}}
	for key, values := range subject.Extra {
		review.Spec.Extra[key] = values
	}
	if err := c.Create(ctx, review); err != nil {
		logger.Warn("access to the metrics could not be reviewed", "error", err)
		return gate.Error
	}
	if !review.Status.Allowed {
		return gate.Forbidden
	}
	return gate.OK
}
