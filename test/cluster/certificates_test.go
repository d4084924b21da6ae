// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
)

// admissions are pods that were created one after the other.
type admissions struct {
	created, uninjected int
	failed              []error
	slowest             time.Duration
}

func (a admissions) String() string {
	return fmt.Sprintf("%d pods created, %d refused, %d not injected; slowest %s", a.created, len(a.failed), a.uninjected, a.slowest.Round(time.Millisecond))
}

// createPods creates engine pods of a domain, twenty a second, none of which is
// ever scheduled, until what it returns is called.
func (e *env) createPods(domain string) (stop func() admissions) {
	e.t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.Unmarshal([]byte(enginePod("x", domain)), pod); err != nil {
		e.t.Fatal(err)
	}
	pod.Name, pod.GenerateName, pod.Namespace = "", "loop-", e.namespace
	pod.Labels["loop"] = "true"
	pod.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "nowhere"}
	c := e.client()
	ctx, cancel := context.WithCancel(e.t.Context())
	ended := make(chan admissions, 1)
	go func() {
		var a admissions
		defer func() { ended <- a }()
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			one, started := pod.DeepCopy(), time.Now()
			if err := c.Create(context.WithoutCancel(ctx), one); err != nil {
				a.failed = append(a.failed, err)
				continue
			}
			a.created++
			a.slowest = max(a.slowest, time.Since(started))
			if one.Annotations[v1alpha1.AnnotationInjectedBy] == "" {
				a.uninjected++
			}
		}
	}()
	return func() admissions {
		cancel()
		a := <-ended
		e.kubectl("delete", "pods", "-l", "loop=true", "--grace-period=0", "--force", "--wait=false")
		return a
	}
}

// webhookSecret reads the Secret of the webhooks' certificate.
func (e *env) webhookSecret(c client.Client) *corev1.Secret {
	e.t.Helper()
	secret := &corev1.Secret{}
	if err := c.Get(e.t.Context(), client.ObjectKey{Namespace: installed, Name: "webhook-server-cert"}, secret); err != nil {
		e.t.Fatal(err)
	}
	return secret
}

// bundles waits until every webhook trusts these authorities.
func (e *env) bundles(c client.Client, authorities []byte) error {
	mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
	if err := errors.Join(
		c.Get(e.t.Context(), client.ObjectKey{Name: "inference-cache-mutating-webhook-configuration"}, mutating),
		c.Get(e.t.Context(), client.ObjectKey{Name: "inference-cache-validating-webhook-configuration"}, validating),
	); err != nil {
		return err
	}
	for _, w := range mutating.Webhooks {
		if !bytes.Equal(w.ClientConfig.CABundle, authorities) {
			return fmt.Errorf("%s trusts others", w.Name)
		}
	}
	for _, w := range validating.Webhooks {
		if !bytes.Equal(w.ClientConfig.CABundle, authorities) {
			return fmt.Errorf("%s trusts others", w.Name)
		}
	}
	return nil
}

// shown says whether every replica of the controller shows a certificate.
func (e *env) shown(certificate []byte) error {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return errors.New("the certificate is no PEM")
	}
	for _, pod := range e.component("controller") {
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // what is shown is compared
		conn, err := dialer.DialContext(e.t.Context(), "tcp", e.address(pod)+":9443")
		if err != nil {
			return err
		}
		peers := conn.(*tls.Conn).ConnectionState().PeerCertificates
		if err := conn.Close(); err != nil {
			return err
		}
		if len(peers) == 0 || !bytes.Equal(peers[0].Raw, block.Bytes) {
			return fmt.Errorf("%s shows another certificate", pod)
		}
	}
	return nil
}

// newest is the first certificate of a PEM text.
func newest(authorities []byte) []byte {
	block, _ := pem.Decode(authorities)
	return block.Bytes
}

// leader names the pod of the controller that leads.
func (e *env) leader() string {
	e.t.Helper()
	holder := e.inSystem("get", "lease", "inference-cache-controller-leader-lock", "-o", "jsonpath={.spec.holderIdentity}")
	name, _, _ := strings.Cut(holder, "_")
	return name
}

func TestWebhookCertificatesAreReplacedUnderPodCreation(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.startBackend("sim", 0)
	c := e.client()
	for _, tc := range []struct {
		name   string
		remove []string
		// anew says that another authority certifies afterwards.
		anew bool
	}{
		{"the certificate", []string{"tls.crt", "tls.key"}, false},
		{"the authority", []string{"ca.key"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := e.sub(t)
			before := e.webhookSecret(c)
			stop := e.createPods("sim")
			started := time.Now()
			changed := before.DeepCopy()
			for _, key := range tc.remove {
				changed.Data[key] = nil
			}
			if err := c.Update(t.Context(), changed); err != nil {
				t.Fatal(err)
			}
			e.inSystem("delete", "pod", e.leader(), "--wait=false")
			var after *corev1.Secret
			e.eventually("another certificate", func() error {
				after = e.webhookSecret(c)
				if len(after.Data["tls.crt"]) == 0 || bytes.Equal(after.Data["tls.crt"], before.Data["tls.crt"]) {
					return errors.New("the certificate is the old one, or none")
				}
				return nil
			})
			issued := time.Since(started)
			e.eventually("trust in its authority", func() error { return e.bundles(c, after.Data["ca.crt"]) })
			e.rollOut("inference-cache-controller-manager")
			e.eventually("all replicas to show it", func() error { return e.shown(after.Data["tls.crt"]) })
			shown := time.Since(started)
			a := stop()
			t.Logf("issued after %s, in use by all replicas after %s; %s", issued.Round(100*time.Millisecond), shown.Round(100*time.Millisecond), a)
			if len(a.failed) > 0 {
				t.Errorf("a pod was refused: %v", a.failed[0])
			}
			if a.uninjected > 0 || a.created == 0 {
				t.Errorf("of %d pods %d went without a publisher", a.created, a.uninjected)
			}
			if anew := !bytes.Equal(newest(before.Data["ca.crt"]), newest(after.Data["ca.crt"])); anew != tc.anew {
				t.Errorf("the authority is another one: %t", anew)
			}
		})
	}
}
