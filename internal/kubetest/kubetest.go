// SPDX-License-Identifier: Apache-2.0

// Package kubetest gives tests a Kubernetes API server that knows our
// resources and asks the test's own webhooks.
package kubetest

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/testcert"
	"github.com/inferencecache/inference-cache/internal/testcluster"
)

// patience is how long a change may take to be in force.
const patience = 60 * time.Second

// Cluster is an API server of one test.
type Cluster struct {
	// Client has all rights and does not cache.
	Client client.Client
	// Config is its configuration.
	Config *rest.Config
	Scheme *runtime.Scheme

	warnings *collector
}

// NewScheme knows Kubernetes' own kinds and ours.
func NewScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	return scheme
}

// StartEmpty runs an API server until the test ends, without our resources and
// with more flags. It skips the test without the programs.
func StartEmpty(t testing.TB, flags ...string) *Cluster {
	t.Helper()
	running := testcluster.ForTest(t, flags...)
	// Given as files, they would be watched for changes without end.
	certificate, err := os.ReadFile(running.AdminCertFile)
	must(t, err)
	key, err := os.ReadFile(running.AdminKeyFile)
	must(t, err)
	authority, err := os.ReadFile(running.CAFile)
	must(t, err)
	c := &Cluster{Scheme: NewScheme(t), warnings: &collector{}}
	c.Config = &rest.Config{Host: running.URL, QPS: -1, WarningHandlerWithContext: c.warnings, TLSClientConfig: rest.TLSClientConfig{
		CAData: authority, CertData: certificate, KeyData: key,
	}}
	c.connect(t)
	return c
}

// Start is StartEmpty with the resource definitions of a directory.
func Start(t testing.TB, definitions string, flags ...string) *Cluster {
	t.Helper()
	c := StartEmpty(t, flags...)
	files, err := filepath.Glob(filepath.Join(definitions, "*.yaml"))
	must(t, err)
	if len(files) == 0 {
		t.Fatalf("no resource definitions in %s", definitions)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		definition := &unstructured.Unstructured{}
		must(t, yaml.Unmarshal(text, &definition.Object))
		must(t, c.Client.Create(t.Context(), definition))
	}
	c.AwaitResources(t)
	return c
}

// AwaitResources returns once the API server serves our resources.
func (c *Cluster) AwaitResources(t testing.TB) {
	t.Helper()
	for _, list := range []client.ObjectList{
		&v1alpha1.CacheBackendList{}, &v1alpha1.CachePolicyList{}, &v1alpha1.CacheTenantList{}, &v1alpha1.CacheIndexList{},
		&v1alpha1.PromptTemplateList{}, &v1alpha1.PDTopologyList{},
	} {
		Eventually(t, "resource served", func() error {
			err := c.Client.List(t.Context(), list)
			if meta.IsNoMatchError(err) {
				c.connect(t)
			}
			return err
		})
	}
}

func (c *Cluster) connect(t testing.TB) {
	t.Helper()
	var err error
	c.Client, err = client.New(c.Config, client.Options{Scheme: c.Scheme})
	must(t, err)
}

// Namespace creates a namespace with labels.
func (c *Cluster) Namespace(t testing.TB, name string, labels map[string]string) {
	t.Helper()
	namespace := &corev1.Namespace{}
	namespace.Name, namespace.Labels = name, labels
	must(t, c.Client.Create(t.Context(), namespace))
}

// Warnings returns what the API server warned of since the last call.
func (c *Cluster) Warnings() []string { return c.warnings.take() }

// Serve answers the API server's questions until the test ends. It returns the
// base of the handlers' paths and the authority of its certificate.
func Serve(t testing.TB, handlers map[string]http.Handler) (url string, authority []byte) {
	t.Helper()
	mux := http.NewServeMux()
	for path, handler := range handlers {
		mux.Handle(path, handler)
	}
	issuer := testcert.NewAuthority(t)
	authority, err := os.ReadFile(issuer.File)
	must(t, err)
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = log.New(quiet{}, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{issuer.Issue(t, "127.0.0.1")}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, authority
}

// quiet drops complaints about connections that a stopping API server leaves.
type quiet struct{}

func (quiet) Write(p []byte) (int, error) { return len(p), nil }

// Eventually repeats a check that another process makes pass.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not in time: %s: %v", what, err)
		case <-ticker.C:
		}
	}
}

// Refused returns nil once an error is one whose text has a part: the check of
// an Eventually that waits for a rule.
func Refused(err error, part string) error {
	switch {
	case err == nil:
		return errors.New("still admitted")
	case strings.Contains(err.Error(), part):
		return nil
	}
	return err
}

// Message is the text of a refusal, "" for none.
func Message(err error) string {
	if err == nil {
		return ""
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Message
	}
	return err.Error()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
