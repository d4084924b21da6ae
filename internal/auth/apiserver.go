// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/livefile"
)

// Where a pod finds its own credentials.
const (
	podTokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	podCAFile    = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
)

const (
	tokenReviewPath     = "/apis/authentication.k8s.io/v1/tokenreviews"
	accessReviewPath    = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
	maxReviewBytes      = 1 << 20
	extraPodName        = "authentication.kubernetes.io/pod-name"
	extraPodUID         = "authentication.kubernetes.io/pod-uid"
	apiServerIdle       = 90 * time.Second
	apiServerMaxIdle    = 8
	apiServerDialBudget = 3 * time.Second
)

// ErrNoCluster means that this process does not run in a Kubernetes pod.
var ErrNoCluster = errors.New("not in a Kubernetes pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")

// Cluster tells how to reach an API server. All fields are required.
type Cluster struct {
	// URL is its base, https without a path.
	URL string
	// CAFile verifies it, TokenFile holds the bearer token of this process;
	// both are read again when they change.
	CAFile, TokenFile string
}

// InCluster returns the cluster that this process runs in, or ErrNoCluster.
func InCluster(getenv func(string) string) (Cluster, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Cluster{}, ErrNoCluster
	}
	return Cluster{
		URL:       "https://" + net.JoinHostPort(host, port),
		CAFile:    podCAFile,
		TokenFile: podTokenFile,
	}, nil
}

// APIServer reviews tokens and access with a Kubernetes API server. It is safe for
// concurrent use.
type APIServer struct {
	url    string
	client *livefile.File[*http.Client]
	token  *livefile.File[string]
}

var (
	_ Reviewer       = (*APIServer)(nil)
	_ AccessReviewer = (*APIServer)(nil)
)

// NewAPIServer reads the credentials of a cluster. logger is told when their
// files become unusable later.
func NewAPIServer(c Cluster, logger *slog.Logger) (*APIServer, error) {
	client, err := livefile.Open(c.CAFile, logger, clientFor)
	if err != nil {
		return nil, fmt.Errorf("CA of the API server: %w", err)
	}
	token, err := livefile.Open(c.TokenFile, logger, func(text []byte) (string, error) {
		return strings.TrimSpace(string(text)), nil
	})
	if err != nil {
		return nil, fmt.Errorf("token for the API server: %w", err)
	}
	return &APIServer{url: strings.TrimSuffix(c.URL, "/"), client: client, token: token}, nil
}

// Close ends idle connections.
func (s *APIServer) Close() { s.client.Get().CloseIdleConnections() }

// clientFor trusts the certificate authorities of a PEM text. It uses no proxy
// and follows no redirect.
func clientFor(pem []byte) (*http.Client, error) {
	roots, err := parseRoots(pem)
	if err != nil {
		return nil, err
	}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: apiServerDialBudget}).DialContext,
			TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
			TLSHandshakeTimeout: apiServerDialBudget,
			MaxIdleConnsPerHost: apiServerMaxIdle,
			IdleConnTimeout:     apiServerIdle,
			ForceAttemptHTTP2:   true,
		},
	}, nil
}

// tokenReview is authentication.k8s.io/v1 TokenReview, as far as it is used.
type tokenReview struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Spec       tokenReviewSpec   `json:"spec"`
	Status     tokenReviewStatus `json:"status,omitzero"`
}

type tokenReviewSpec struct {
	Token     string   `json:"token"`
	Audiences []string `json:"audiences"`
}

type tokenReviewStatus struct {
	Authenticated bool            `json:"authenticated,omitempty"`
	User          tokenReviewUser `json:"user,omitzero"`
	Audiences     []string        `json:"audiences,omitempty"`
	Error         string          `json:"error,omitempty"`
}

type tokenReviewUser struct {
	Username string              `json:"username,omitempty"`
	UID      string              `json:"uid,omitempty"`
	Groups   []string            `json:"groups,omitempty"`
	Extra    map[string][]string `json:"extra,omitempty"`
}

// Review implements Reviewer.
func (s *APIServer) Review(ctx context.Context, token, audience string) (Review, error) {
	text, err := s.post(ctx, tokenReviewPath, tokenReview{
		APIVersion: "authentication.k8s.io/v1",
		Kind:       "TokenReview",
		Spec:       tokenReviewSpec{Token: token, Audiences: []string{audience}},
	})
	if err != nil {
		return Review{}, fmt.Errorf("token review: %w", err)
	}
	status, err := decodeReview(text)
	if err != nil {
		return Review{}, fmt.Errorf("token review: %w", err)
	}
	if status.Authenticated && status.User.Username == "" {
		return Review{}, errors.New("token review: an authenticated user without a name")
	}
	return Review{
		Authenticated: status.Authenticated,
		Username:      status.User.Username,
		UID:           status.User.UID,
		Groups:        status.User.Groups,
		Extra:         status.User.Extra,
		Pod:           only(status.User.Extra[extraPodName]),
		PodUID:        only(status.User.Extra[extraPodUID]),
		Audiences:     status.Audiences,
		Reason:        status.Error,
	}, nil
}

// post sends a review and returns the answer.
func (s *APIServer) post(ctx context.Context, path string, review any) ([]byte, error) {
	body, err := json.Marshal(review)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+s.token.Get())
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	response, err := s.client.Get().Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxReviewBytes))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if response.StatusCode != http.StatusCreated && response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the API server answers %s", response.Status)
	}
	return text, nil
}

// decodeReview reads what an API server answers.
func decodeReview(text []byte) (tokenReviewStatus, error) {
	var answer tokenReview
	if err := json.Unmarshal(text, &answer); err != nil {
		return tokenReviewStatus{}, errors.New("the answer is not a token review in JSON")
	}
	if answer.Kind != "TokenReview" {
		return tokenReviewStatus{}, errors.New("the answer is of another kind than TokenReview")
	}
	return answer.Status, nil
}

// only returns the one element of a list, "" for any other list.
func only(list []string) string {
	if len(list) != 1 {
		return ""
	}
	return list[0]
}
