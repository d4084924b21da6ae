// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// authority issues client certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

func (a *authority) writePEM(t *testing.T, file string) {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// issue returns a client certificate for URIs.
func (a *authority) issue(t *testing.T, uris ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, text := range uris {
		uri, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, uri)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// use makes further calls over TLS with a client certificate.
func (g *guarded) use(t *testing.T, certificates ...tls.Certificate) {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true, Certificates: certificates}
	g.connect(t, credentials.NewTLS(config))
}

func (g *guarded) connect(t *testing.T, transport credentials.TransportCredentials) {
	t.Helper()
	conn, err := grpc.NewClient(g.server.Addresses().GRPC.String(), grpc.WithTransportCredentials(transport))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	g.client = pb.NewInferenceCacheClient(conn)
}

func TestClientCertificates(t *testing.T) {
	dir := t.TempDir()
	files := keyFiles{cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key")}
	files.write(t, 1, time.Now())
	ours, caFile := newAuthority(t), filepath.Join(dir, "ca.crt")
	ours.writePEM(t, caFile)
	tenants := filepath.Join(dir, "tenants")
	if err := os.WriteFile(tenants, []byte(tenantMap+"spiffe://d/gateway team\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := startGuarded(t, server.AuthRequired, func(o *server.Options) {
		o.TLSCertFile, o.TLSKeyFile = files.cert, files.key
		o.Auth.ClientCAFile, o.Auth.TenantMapFile = caFile, tenants
	})
	read := matrixRow{tenant: "team"}
	write := func(replica string) string { return g.reportAs("", g.update(replica, "z", 16)) }

	g.use(t, ours.issue(t, "spiffe://d/ns/team/pod/pod-a"))
	for what, result := range map[string][2]string{
		"a pod as itself":          {write("pod-a"), ok},
		"a pod as another":         {write("pod-b"), "DROPPED"},
		"a pod that has no tenant": {g.lookupAs(read), absent},
	} {
		if result[0] != result[1] {
			t.Errorf("%s: %s, want %s", what, result[0], result[1])
		}
	}
	withToken := read
	withToken.token = "tok-gateway"
	if got := g.lookupAs(withToken); got != ok {
		t.Errorf("a token beside the certificate: %s", got)
	}
	withToken.token = "tok-none"
	if got := g.lookupAs(withToken); got != refused {
		t.Errorf("a bad token beside the certificate: %s", got)
	}
	g.use(t, ours.issue(t, "spiffe://d/gateway"))
	if got := g.lookupAs(read); got != ok {
		t.Errorf("a gateway: %s", got)
	}
	if got := write("pod-a"); got != refused {
		t.Errorf("a gateway that writes: %s", got)
	}
	g.use(t, ours.issue(t))
	if got := g.lookupAs(read); got != refused {
		t.Errorf("a certificate without a name: %s", got)
	}
	for what, certificates := range map[string][]tls.Certificate{
		"no certificate":                     nil,
		"a certificate of another authority": {newAuthority(t).issue(t, "spiffe://d/gateway")},
	} {
		g.use(t, certificates...)
		if got := g.callOnce(t); got == ok {
			t.Errorf("%s was admitted", what)
		}
	}
	g.connect(t, insecure.NewCredentials())
	if got := g.callOnce(t); got == ok {
		t.Error("plaintext was served")
	}

	theirs := newAuthority(t)
	theirs.writePEM(t, caFile)
	if err := os.Chtimes(caFile, time.Now(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	g.use(t, theirs.issue(t, "spiffe://d/gateway"))
	if got := g.lookupAs(read); got != ok {
		t.Errorf("a certificate of the new authority: %s", got)
	}
}

// callOnce returns the result of a call that does not wait for a connection.
func (g *guarded) callOnce(t *testing.T) string {
	t.Helper()
	_, err := g.client.GetCacheState(g.ctx(), &pb.GetCacheStateRequest{TenantId: "team"})
	return resultOf(err)
}
