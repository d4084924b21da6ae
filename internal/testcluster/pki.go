// SPDX-License-Identifier: Apache-2.0

package testcluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const certLife = 24 * time.Hour

// pki are the certificates and keys of a cluster, as files.
type pki struct {
	caFile                    string
	serverCert, serverKey     string
	adminCert, adminKey       string
	accountKey, accountPublic string
}

func newPKI(dir string) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	p := &pki{
		caFile:     in("ca.crt"),
		serverCert: in("server.crt"), serverKey: in("server.key"),
		adminCert: in("admin.crt"), adminKey: in("admin.key"),
		accountKey: in("sa.key"), accountPublic: in("sa.pub"),
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &x509.Certificate{
		Subject: pkix.Name{CommonName: "testcluster"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	if err := issue(ca, ca, caKey, caKey, p.caFile); err != nil {
		return nil, err
	}
	server := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost", "kubernetes.default.svc"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if err := issueWithKey(server, ca, caKey, p.serverCert, p.serverKey); err != nil {
		return nil, err
	}
	admin := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if err := issueWithKey(admin, ca, caKey, p.adminCert, p.adminKey); err != nil {
		return nil, err
	}
	return p, writeAccountKeys(p)
}

func issueWithKey(template, parent *x509.Certificate, signer crypto.Signer, certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := writeKey(key, keyFile); err != nil {
		return err
	}
	return issue(template, parent, key, signer, certFile)
}

func issue(template, parent *x509.Certificate, key, signer crypto.Signer, file string) error {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return err
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(certLife)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return fmt.Errorf("issue a certificate: %w", err)
	}
	return writePEM(file, "CERTIFICATE", der)
}

func writeAccountKeys(p *pki) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := writePEM(p.accountPublic, "PUBLIC KEY", public); err != nil {
		return err
	}
	return writeKey(key, p.accountKey)
}

func writeKey(key *ecdsa.PrivateKey, file string) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(file, "EC PRIVATE KEY", der)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
