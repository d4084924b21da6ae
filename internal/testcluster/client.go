// SPDX-License-Identifier: Apache-2.0

package testcluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// Object is a Kubernetes object as JSON.
type Object map[string]any

// Client calls an API server with an administrator's rights.
type Client struct {
	url  string
	http *http.Client
}

func newAdmin(url string, p *PKI) (*Client, error) {
	pair, err := tls.LoadX509KeyPair(p.AdminCert, p.AdminKey)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(p.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return &Client{url: url, http: &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair},
		}},
	}}, nil
}

// Ready returns nil once the API server is.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodGet, "/readyz", nil)
	return err
}

// Create posts an object to a collection, such as "/api/v1/namespaces".
func (c *Client) Create(ctx context.Context, collection string, object Object) (Object, error) {
	text, err := c.do(ctx, http.MethodPost, collection, object)
	if err != nil {
		return nil, err
	}
	var created Object
	if err := json.Unmarshal(text, &created); err != nil {
		return nil, fmt.Errorf("create in %s: %w", collection, err)
	}
	return created, nil
}

// Delete removes an object by its path, at once.
func (c *Client) Delete(ctx context.Context, path string) error {
	_, err := c.do(ctx, http.MethodDelete, path+"?gracePeriodSeconds=0", nil)
	return err
}

func (c *Client) do(ctx context.Context, method, path string, object Object) ([]byte, error) {
	var body io.Reader
	if object != nil {
		text, err := json.Marshal(object)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return nil, fmt.Errorf("%s %s: %s: %.500s", method, path, response.Status, text)
	}
	return text, nil
}

// Namespace creates a namespace.
func (c *Client) Namespace(ctx context.Context, name string) error {
	_, err := c.Create(ctx, "/api/v1/namespaces", Object{"metadata": Object{"name": name}})
	return err
}

// ServiceAccount creates a service account.
func (c *Client) ServiceAccount(ctx context.Context, namespace, name string) error {
	_, err := c.Create(ctx, "/api/v1/namespaces/"+namespace+"/serviceaccounts", Object{"metadata": Object{"name": name}})
	return err
}

// Pod creates a pod that never runs, as a service account's, and returns its
// uid.
func (c *Client) Pod(ctx context.Context, namespace, name, account string) (uid string, err error) {
	pod, err := c.Create(ctx, "/api/v1/namespaces/"+namespace+"/pods", Object{
		"metadata": Object{"name": name},
		"spec": Object{
			"serviceAccountName": account,
			"containers":         []Object{{"name": "c", "image": "none"}},
		},
	})
	if err != nil {
		return "", err
	}
	metadata, _ := pod["metadata"].(map[string]any)
	uid, ok := metadata["uid"].(string)
	if !ok {
		return "", errors.New("a pod was created without a uid")
	}
	return uid, nil
}

// TokenRequest says what token to issue.
type TokenRequest struct {
	Namespace, Account string
	// Audience is the API server's own if empty.
	Audience string
	// Pod and PodUID bind the token to a pod; to none if empty.
	Pod, PodUID string
}

// Token issues a token.
func (c *Client) Token(ctx context.Context, r TokenRequest) (string, error) {
	spec := Object{"expirationSeconds": 600}
	if r.Audience != "" {
		spec["audiences"] = []string{r.Audience}
	}
	if r.Pod != "" {
		spec["boundObjectRef"] = Object{"kind": "Pod", "apiVersion": "v1", "name": r.Pod, "uid": r.PodUID}
	}
	answer, err := c.Create(ctx, "/api/v1/namespaces/"+r.Namespace+"/serviceaccounts/"+r.Account+"/token", Object{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec,
	})
	if err != nil {
		return "", err
	}
	status, _ := answer["status"].(map[string]any)
	token, ok := status["token"].(string)
	if !ok {
		return "", errors.New("no token was issued")
	}
	return token, nil
}

// Grant is what a service account may do.
type Grant struct {
	// AccountNamespace and Account name who.
	AccountNamespace, Account string
	// Namespace is where; everywhere if empty.
	Namespace             string
	Group, Resource, Verb string
}

// Allow creates a role and binds it.
func (c *Client) Allow(ctx context.Context, g Grant) error {
	collection, kind := "/apis/rbac.authorization.k8s.io/v1/", "ClusterRole"
	if g.Namespace != "" {
		collection, kind = collection+"namespaces/"+g.Namespace+"/", "Role"
	}
	name := g.AccountNamespace + "-" + g.Account + "-" + g.Resource
	plural := strings.ToLower(kind) + "s"
	if _, err := c.Create(ctx, collection+plural, Object{
		"metadata": Object{"name": name},
		"rules":    []Object{{"apiGroups": []string{g.Group}, "resources": []string{g.Resource}, "verbs": []string{g.Verb}}},
	}); err != nil {
		return err
	}
	_, err := c.Create(ctx, collection+strings.ToLower(kind)+"bindings", Object{
		"metadata": Object{"name": name},
		"roleRef":  Object{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
		"subjects": []Object{{"kind": "ServiceAccount", "namespace": g.AccountNamespace, "name": g.Account}},
	})
	return err
}

// AllowReviews lets a service account create token reviews, and nothing else.
func (c *Client) AllowReviews(ctx context.Context, namespace, account string) error {
	return c.Allow(ctx, Grant{namespace, account, "", "authentication.k8s.io", "tokenreviews", "create"})
}

// AllowAccessReviews lets a service account create access reviews.
func (c *Client) AllowAccessReviews(ctx context.Context, namespace, account string) error {
	return c.Allow(ctx, Grant{namespace, account, "", "authorization.k8s.io", "subjectaccessreviews", "create"})
}
