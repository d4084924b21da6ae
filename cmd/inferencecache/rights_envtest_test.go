// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package main

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/inject"
	"github.com/inferencecache/inference-cache/internal/kubetest"
	"github.com/inferencecache/inference-cache/internal/testcert"
)

const serverHost = "inference-cache-server." + installNamespace + ".svc"

// charted is an API server with the accounts and rights of the chart, and
// programs that have no others.
type charted struct {
	*kubetest.Cluster
	authority *testcert.Authority
	files     string
}

// startCharted applies what the chart renders, without the webhooks: nobody
// answers them here.
func startCharted(t *testing.T) *charted {
	t.Helper()
	c := &charted{Cluster: kubetest.Start(t, "../../deploy/crds"), authority: testcert.NewAuthority(t), files: t.TempDir()}
	c.Namespace(t, installNamespace, nil)
	c.Namespace(t, "team", nil)
	for _, object := range rendered(t) {
		if strings.HasSuffix(object.GetKind(), "WebhookConfiguration") {
			continue
		}
		must(t, c.Client.Patch(t.Context(), object, client.Apply, client.FieldOwner("helm"), client.ForceOwnership))
	}
	must(t, os.WriteFile(c.file("api-ca.crt"), c.Config.CAData, 0o600))
	return c
}

func (c *charted) file(name string) string { return filepath.Join(c.files, name) }

// token writes one of an account into a file.
func (c *charted) token(t *testing.T, name, account string, audiences ...string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	holder := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: installNamespace, Name: account}}
	must(t, c.Client.SubResource("token").Create(t.Context(), holder, request))
	must(t, os.WriteFile(c.file(name+".new"), []byte(request.Status.Token), 0o600))
	must(t, os.Rename(c.file(name+".new"), c.file(name)))
	return c.file(name)
}

// server runs one that speaks TLS only and asks for tokens, and publishes its
// authority as the chart does.
func (c *charted) server(t *testing.T) serverProcess {
	t.Helper()
	certificate := c.authority.Issue(t, serverHost)
	testcert.Write(t, certificate, c.file("tls.crt"), c.file("tls.key"))
	authority, err := os.ReadFile(c.authority.File)
	must(t, err)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: installNamespace, Name: "inference-cache-server-tls"}}
	must(t, client.IgnoreNotFound(c.Client.Delete(t.Context(), secret)))
	secret.Type = corev1.SecretTypeTLS
	key, err := os.ReadFile(c.file("tls.key"))
	must(t, err)
	leaf := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})
	secret.Data = map[string][]byte{"ca.crt": authority, "tls.crt": leaf, "tls.key": key}
	must(t, c.Client.Create(t.Context(), secret))
	return startProcess(t,
		"--tls-cert-file="+c.file("tls.crt"), "--tls-key-file="+c.file("tls.key"),
		"--snapshot-tls-cert-file="+c.file("tls.crt"), "--snapshot-tls-key-file="+c.file("tls.key"), "--grpc-auth=required",
		"--allowed-controller-sa=system:serviceaccount:"+installNamespace+":"+controllerAccount,
		"--kube-api-url="+c.Config.Host, "--kube-ca-file="+c.file("api-ca.crt"),
		"--kube-token-file="+c.token(t, "server", "inference-cache-server"),
	)
}

const controllerAccount = "inference-cache-controller-manager"

// controller runs one as the chart's account, for a server.
func (c *charted) controller(t *testing.T, server serverProcess, more ...string) *logText {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: c.Config.Host, CertificateAuthorityData: c.Config.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{TokenFile: c.token(t, "account", controllerAccount)}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	must(t, clientcmd.WriteToFile(*config, c.file("kubeconfig")))
	logs := &logText{}
	root := (&cli{stdout: io.Discard, stderr: logs}).newRootCommand()
	internal := "https://" + server.Internal
	root.SetArgs(append([]string{
		"controller", "--kubeconfig=" + c.file("kubeconfig"), "--namespace=" + installNamespace, "--leader-elect",
		"--server-snapshot-url=" + internal + "/snapshot", "--server-policy-url=" + internal + "/policy", "--server-probe-url=" + internal + "/probe",
		"--policy-server-grpc-address=" + server.GRPC, "--server-ca-file=" + c.authority.File, "--server-name=" + serverHost,
		"--controller-token-file=" + c.token(t, "controller", controllerAccount, "inferencecache.io/controller"),
		"--policy-token-file=" + c.token(t, "policy", controllerAccount, "inferencecache.io/policy"),
		"--lookup-token-file=" + c.token(t, "lookup", controllerAccount, "inferencecache.io/lookup"),
		"--cacheindex-refresh-interval=500ms", "--webhook-bind-address=0", "--metrics-bind-address=0", "--health-probe-bind-address=0",
		"--kvevent-subscriber-image=" + publisherImage,
	}, more...))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the controller ended with %v", err)
		}
		if t.Failed() {
			t.Logf("logs end with:\n%s", tail(logs.String(), 6000))
		}
	})
	return logs
}

// backend of a domain that needs no events.
func (c *charted) backend(t *testing.T, name string) *v1alpha1.CacheBackend {
	t.Helper()
	b := &v1alpha1.CacheBackend{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, Annotations: map[string]string{v1alpha1.AnnotationRequireKVEvents: "false"},
	}}
	b.Spec.Runtime, b.Spec.Type = v1alpha1.RuntimeVLLM, v1alpha1.BackendMemory
	b.Spec.EngineSelector = &v1alpha1.EngineSelector{MatchLabels: map[string]string{v1alpha1.LabelCacheDomain: name}}
	b.Spec.Observation = &v1alpha1.BackendObservation{ModelID: "m"}
	must(t, c.Client.Create(t.Context(), b))
	return b
}

// engine is a pod, with annotations if it was wired.
func (c *charted) engine(t *testing.T, name, domain string, annotations map[string]string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, Labels: map[string]string{v1alpha1.LabelCacheDomain: domain}, Annotations: annotations,
	}}
	pod.Spec.ServiceAccountName = "default"
	pod.Spec.Containers = []corev1.Container{{Name: "vllm", Image: "vllm"}}
	must(t, c.Client.Create(t.Context(), pod))
}

// says waits for conditions, "Type=Status/Reason".
func (c *charted) says(t *testing.T, o client.Object, conditions func() []metav1.Condition, wants ...string) {
	t.Helper()
	for _, want := range wants {
		kubetest.Eventually(t, fmt.Sprintf("%T %s: %s", o, o.GetName(), want), func() error {
			if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
				return err
			}
			kind, _, _ := strings.Cut(want, "=")
			got := meta.FindStatusCondition(conditions(), kind)
			if got == nil || kind+"="+string(got.Status)+"/"+got.Reason != want {
				return fmt.Errorf("it says %+v", got)
			}
			return nil
		})
	}
}

// With the rights of the chart, and over TLS with projected tokens, every
// status, event and ConfigMap is written.
func TestEnvtestControllerWorksWithTheRightsOfTheChart(t *testing.T) {
	c := startCharted(t)
	logs := c.controller(t, c.server(t))
	in := metav1.ObjectMeta{Namespace: "team", Name: "x"}
	quota := int64(5)
	var (
		backend  = c.backend(t, "cb")
		policy   = &v1alpha1.CachePolicy{ObjectMeta: in}
		tenant   = &v1alpha1.CacheTenant{ObjectMeta: in, Spec: v1alpha1.CacheTenantSpec{TenantID: "team", Quota: v1alpha1.CacheTenantQuota{MaxIndexEntries: &quota}}}
		template = &v1alpha1.PromptTemplate{ObjectMeta: in, Spec: v1alpha1.PromptTemplateSpec{Body: "hello"}}
		topology = &v1alpha1.PDTopology{ObjectMeta: in, Spec: v1alpha1.PDTopologySpec{
			PrefillPools: []v1alpha1.PDPool{{Name: "p", MatchLabels: map[string]string{"role": "prefill"}}},
			DecodePools:  []v1alpha1.PDPool{{Name: "d", MatchLabels: map[string]string{"role": "decode"}}},
		}}
	)
	for _, o := range []client.Object{policy, tenant, template, topology} {
		must(t, c.Client.Create(t.Context(), o))
	}
	c.engine(t, "wired", "cb", map[string]string{v1alpha1.AnnotationInjectedBy: "team/cb", v1alpha1.AnnotationInjectedByUID: string(backend.UID)})
	c.engine(t, "unseen", "cb", nil)

	c.says(t, policy, func() []metav1.Condition { return policy.Status.Conditions }, "Accepted=True/Accepted", "Programmed=True/Programmed")
	c.says(t, tenant, func() []metav1.Condition { return tenant.Status.Conditions }, "Ready=True/Observed", "Programmed=True/Programmed")
	c.says(t, template, func() []metav1.Condition { return template.Status.Conditions }, "Accepted=True/Accepted", "Programmed=True/Programmed")
	c.says(t, topology, func() []metav1.Condition { return topology.Status.Conditions }, "Resolved=False/PoolEmpty", "Programmed=True/Programmed")
	c.says(t, backend, func() []metav1.Condition { return backend.Status.Conditions },
		"Ready=True/EventsOnlyActive", "FunctionalProbeOK=True/ProbeOK", "InjectionHealthy=False/PodsUnseen")
	if got := backend.Status.Injection; got.SidecarImage != publisherImage || len(got.ConfigHash) != 16 {
		t.Errorf("injection %+v, want the image and a hash", got)
	}
	kubetest.Eventually(t, "the index and the authority's copy", func() error {
		copied := &corev1.ConfigMap{}
		return errors.Join(
			c.Client.Get(t.Context(), client.ObjectKey{Name: v1alpha1.CacheIndexName}, &v1alpha1.CacheIndex{}),
			c.Client.Get(t.Context(), client.ObjectKey{Namespace: "team", Name: inject.CAConfigMap}, copied),
		)
	})
	kubetest.Eventually(t, "events on both pods and on the backend", func() error {
		var events eventsv1.EventList
		if err := c.Client.List(t.Context(), &events, client.InNamespace("team")); err != nil {
			return err
		}
		var got []string
		for _, e := range events.Items {
			got = append(got, e.Regarding.Name+" "+e.Reason)
		}
		for _, want := range []string{"wired InjectedByCacheBackend", "unseen InjectionSkipped", "cb InjectionDegraded"} {
			if !slices.Contains(got, want) {
				return fmt.Errorf("no %s among %q", want, got)
			}
		}
		return nil
	})

	c.token(t, "lookup", controllerAccount, "inferencecache.io/policy")
	refused := c.backend(t, "refused")
	c.says(t, refused, func() []metav1.Condition { return refused.Status.Conditions },
		"FunctionalProbeOK=False/ProbeGRPCFailed", "Ready=False/ProbeGRPCFailed", "Degraded=False/NotDegraded")
	if text := logs.String(); strings.Contains(text, "forbidden") {
		t.Error("the account lacks permissions")
	}
}

// A server whose certificate is another's is none to the self-test.
func TestEnvtestProbeChecksTheCertificate(t *testing.T) {
	c := startCharted(t)
	server := c.server(t)
	plain := startProcess(t, "--insecure-disable-auth")
	server.GRPC = plain.GRPC
	c.controller(t, server)
	backend := c.backend(t, "cb")
	c.says(t, backend, func() []metav1.Condition { return backend.Status.Conditions }, "FunctionalProbeOK=False/ProbeGRPCFailed")
}
