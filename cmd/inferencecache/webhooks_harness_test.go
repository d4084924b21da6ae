// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/inject"
	"github.com/inferencecache/inference-cache/internal/kubetest"
	"github.com/inferencecache/inference-cache/internal/webhook"
)

const publisherImage = "example.com/publisher@sha256:0000000000000000000000000000000000000000000000000000000000000000"

// front is what a Service is in a cluster: connections go to the controllers
// in turn, past those that do not listen.
type front struct {
	listener net.Listener
	serving  sync.WaitGroup

	mu      sync.Mutex
	targets []string              // guarded by mu
	next    int                   // guarded by mu
	open    map[net.Conn]net.Conn // servers by callers, guarded by mu, nil once it is closed
}

func newFront(t *testing.T) *front {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f := &front{listener: listener, open: map[net.Conn]net.Conn{}}
	f.serving.Go(func() {
		for {
			caller, err := listener.Accept()
			if err != nil {
				return
			}
			f.serving.Go(func() { f.serve(caller) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		f.mu.Lock()
		open := f.open
		f.open = nil
		f.mu.Unlock()
		for caller, server := range open {
			_, _ = caller.Close(), server.Close()
		}
		f.serving.Wait()
	})
	return f
}

func (f *front) serve(caller net.Conn) {
	defer caller.Close()
	f.mu.Lock()
	targets := slices.Clone(f.targets)
	f.next++
	first := f.next
	f.mu.Unlock()
	for i := range targets {
		server, err := net.Dial("tcp", targets[(first+i)%len(targets)])
		if err != nil {
			continue
		}
		defer server.Close()
		f.mu.Lock()
		if f.open == nil {
			f.mu.Unlock()
			return
		}
		f.open[caller] = server
		f.mu.Unlock()
		defer f.forget(caller)
		var halves sync.WaitGroup
		halves.Go(func() { _, _ = io.Copy(server, caller); _ = server.Close() })
		halves.Go(func() { _, _ = io.Copy(caller, server); _ = caller.Close() })
		halves.Wait()
		return
	}
}

func (f *front) forget(caller net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, caller)
}

// cut ends every connection that no request is on, so that the next call is a
// new handshake. It returns once the callers have let go of them: a caller
// that has not noticed would send a request into a connection that is closed.
func (f *front) cut(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	for c := range f.open {
		_ = c.(*net.TCPConn).CloseWrite()
	}
	f.mu.Unlock()
	kubetest.Eventually(t, "connections are closed", func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.open) > 0 {
			return fmt.Errorf("%d are open", len(f.open))
		}
		return nil
	})
}

// to has new connections go to addresses.
func (f *front) to(t *testing.T, targets ...string) {
	t.Helper()
	f.mu.Lock()
	f.targets = targets
	f.mu.Unlock()
	f.cut(t)
}

// hooked is an API server that asks controllers through a front.
type hooked struct {
	*kubetest.Cluster
	front      *front
	kubeconfig string
}

// startHooked runs an API server with the namespace of the install and one of
// engines.
func startHooked(t *testing.T) *hooked {
	t.Helper()
	h := &hooked{Cluster: kubetest.Start(t, "../../deploy/crds"), front: newFront(t)}
	h.Namespace(t, installNamespace, nil)
	h.Namespace(t, "team", map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: h.Config.Host, CertificateAuthorityData: h.Config.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: h.Config.CertData, ClientKeyData: h.Config.KeyData}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	h.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*config, h.kubeconfig))
	return h
}

// register has the API server ask the webhooks by their Service, which leads
// to the front.
func (h *hooked) register(t *testing.T, authority []byte) {
	t.Helper()
	port := int32(h.front.listener.Addr().(*net.TCPAddr).Port)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: installNamespace, Name: webhook.ServiceName}}
	service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}
	must(t, h.Client.Create(t.Context(), service))
	registered := webhook.Registration(webhook.RegistrationOptions{Namespace: installNamespace, CABundle: authority})
	for i := range registered.Mutating.Webhooks {
		registered.Mutating.Webhooks[i].ClientConfig.Service.Port = &port
	}
	for i := range registered.Validating.Webhooks {
		registered.Validating.Webhooks[i].ClientConfig.Service.Port = &port
	}
	must(t, h.Client.Create(t.Context(), registered.Mutating))
	must(t, h.Client.Create(t.Context(), registered.Validating))
}

// served is where a controller listens.
type served struct{ webhooks, metrics, health string }

// arguments of a controller that knows no server.
func (h *hooked) arguments(t *testing.T, more ...string) (served, []string) {
	t.Helper()
	s := served{freePort(t), freePort(t), freePort(t)}
	return s, append([]string{
		"controller", "--kubeconfig=" + h.kubeconfig, "--namespace=" + installNamespace, "--server-probe-url=",
		"--server-policy-url=http://127.0.0.1:1/policy", "--server-snapshot-url=http://127.0.0.1:1/snapshot",
		"--webhook-bind-address=" + s.webhooks, "--metrics-bind-address=" + s.metrics, "--health-probe-bind-address=" + s.health,
		"--webhook-shutdown-delay=500ms", "--kvevent-subscriber-image=" + publisherImage,
	}, more...)
}

// run runs a controller as its command until stop or the end of the test.
func (h *hooked) run(t *testing.T, more ...string) (s served, logs *logText, stop func()) {
	t.Helper()
	s, args := h.arguments(t, more...)
	logs = &logText{}
	root := (&cli{stdout: io.Discard, stderr: logs}).newRootCommand()
	root.SetArgs(args)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the controller ended with %v", err)
		}
		if t.Failed() {
			t.Logf("logs end with:\n%s", tail(logs.String(), 6000))
		}
	})
	t.Cleanup(stop)
	return s, logs, stop
}

func tail(text string, n int) string { return text[max(0, len(text)-n):] }

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

// page fetches what a controller serves without TLS; an error for any status
// but 200.
func page(t *testing.T, address, path string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	must(t, err)
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, bytes.TrimSpace(body))
	}
	return string(body), err
}

func (s served) awaitReady(t *testing.T) {
	t.Helper()
	kubetest.Eventually(t, "ready", func() error {
		_, err := page(t, s.health, "/readyz")
		return err
	})
}

// backend creates a CacheBackend for the domain d.
func (h *hooked) backend(t *testing.T, namespace string) *v1alpha1.CacheBackend {
	t.Helper()
	b := &v1alpha1.CacheBackend{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cb"}}
	b.Spec.Runtime, b.Spec.Type = v1alpha1.RuntimeVLLM, v1alpha1.BackendMemory
	b.Spec.EngineSelector = &v1alpha1.EngineSelector{MatchLabels: map[string]string{v1alpha1.LabelCacheDomain: "d"}}
	b.Spec.Observation = &v1alpha1.BackendObservation{ModelID: "m"}
	must(t, h.Client.Create(t.Context(), b))
	return b
}

var errNotInjected = errors.New("the pod was not injected")

// inject creates an engine pod of the domain d, for real or as a dry run.
func (h *hooked) inject(ctx context.Context, namespace string, dry bool) (*corev1.Pod, error) {
	no, yes := false, true
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "engine", Labels: map[string]string{v1alpha1.LabelCacheDomain: "d"}}}
	pod.Spec.ServiceAccountName = "default"
	pod.Spec.Containers = []corev1.Container{{
		Name: "vllm", Image: "vllm", Args: []string{"--model", "m"},
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}}
	var options []client.CreateOption
	if dry {
		options = append(options, client.DryRunAll)
	}
	if err := h.Client.Create(ctx, pod, options...); err != nil {
		return pod, err
	}
	if !slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool {
		return c.Name == inject.SidecarName && c.Image == publisherImage
	}) {
		return pod, fmt.Errorf("%w: %s", errNotInjected, strings.Join(annotationsOf(pod), ", "))
	}
	return pod, nil
}

func annotationsOf(pod *corev1.Pod) (texts []string) {
	for key, value := range pod.Annotations {
		texts = append(texts, key+"="+value)
	}
	return texts
}

func (h *hooked) awaitInjection(t *testing.T, namespace string) {
	t.Helper()
	kubetest.Eventually(t, "pods are injected", func() error {
		_, err := h.inject(t.Context(), namespace, true)
		return err
	})
}

func (h *hooked) secret(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	must(t, h.Client.Get(t.Context(), client.ObjectKey{Namespace: installNamespace, Name: name}, secret))
	return secret
}

// bundles are those of every registered webhook.
func (h *hooked) bundles(t *testing.T) map[string][]byte {
	t.Helper()
	mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
	must(t, h.Client.Get(t.Context(), client.ObjectKey{Name: webhook.MutatingName}, mutating))
	must(t, h.Client.Get(t.Context(), client.ObjectKey{Name: webhook.ValidatingName}, validating))
	all := map[string][]byte{}
	for _, w := range mutating.Webhooks {
		all[w.Name] = w.ClientConfig.CABundle
	}
	for _, w := range validating.Webhooks {
		all[w.Name] = w.ClientConfig.CABundle
	}
	return all
}

// handshake returns the certificate that an address serves.
func handshake(t *testing.T, address, protocol string) *x509.Certificate {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}} //nolint:gosec // it looks, and sends nothing
	conn, err := tls.Dial("tcp", address, config)
	must(t, err)
	defer conn.Close()
	if got := conn.ConnectionState().NegotiatedProtocol; got != protocol {
		t.Errorf("%s speaks %q, want %s", address, got, protocol)
	}
	return conn.ConnectionState().PeerCertificates[0]
}

// servesNew says whether an address serves a certificate by none of the given
// authorities.
func servesNew(t *testing.T, address string, authorities []byte) bool {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authorities) {
		t.Fatal("no authority")
	}
	_, err := handshake(t, address, "http/1.1").Verify(x509.VerifyOptions{Roots: roots})
	return err != nil
}

// testMetricsReaders expects metrics over TLS.
func (h *hooked) testMetricsReaders(t *testing.T, s served) {
	t.Helper()
	roles := []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "metrics"}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "metrics"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "metrics"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "team", Name: "scraper"}},
		},
	}
	for _, object := range roles {
		must(t, h.Client.Create(t.Context(), object))
	}
	token := func(name string) string {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
		must(t, h.Client.Create(t.Context(), account))
		request := &authenticationv1.TokenRequest{}
		must(t, h.Client.SubResource("token").Create(t.Context(), account, request))
		return request.Status.Token
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the rights are under test
	for name, tc := range map[string]struct {
		token string
		want  int
	}{
		"nobody":               {"", http.StatusUnauthorized},
		"a token of nobody":    {"nonsense", http.StatusUnauthorized},
		"who may not get them": {token("stranger"), http.StatusForbidden},
		"who may get them":     {token("scraper"), http.StatusOK},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.metrics+"/metrics", nil)
		must(t, err)
		if tc.token != "" {
			request.Header.Set("Authorization", "Bearer "+tc.token)
		}
		kubetest.Eventually(t, name, func() error { // rights take a moment
			response, err := transport.RoundTrip(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			_, _ = io.Copy(io.Discard, response.Body)
			if response.StatusCode != tc.want {
				return fmt.Errorf("%s, want %d", response.Status, tc.want)
			}
			return nil
		})
	}
}
