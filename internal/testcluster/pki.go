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

// Life is how long certificates are valid.
const Life = 30 * 24 * time.Hour

// PKI are the certificates and keys of a cluster, as files.
type PKI struct {
	// CA verifies the API server and its clients.
	CA string
	// ServerCert and ServerKey are the API server's.
	ServerCert, ServerKey string
	// AdminCert and AdminKey identify a client with all rights.
	AdminCert, AdminKey string
	// AccountKey signs tokens of service accounts, AccountPublic verifies them.
	AccountKey, AccountPublic string
}

// NewPKI writes certificates and keys to a folder. Beside loopback, the API
// server's is valid for the addresses.
func NewPKI(dir string, addresses ...net.IP) (*PKI, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	p := &PKI{
		CA:         in("ca.crt"),
		ServerCert: in("server.crt"), ServerKey: in("server.key"),
		AdminCert: in("admin.crt"), AdminKey: in("admin.key"),
		AccountKey: in("sa.key"), AccountPublic: in("sa.pub"),
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &x509.Certificate{
		Subject: pkix.Name{CommonName: "testcluster"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	if err := issue(ca, ca, caKey, caKey, p.CA); err != nil {
		return nil, err
	}
	server := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		IPAddresses: append([]net.IP{net.IPv4(127, 0, 0, 1)}, addresses...),
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if err := issueWithKey(server, ca, caKey, p.ServerCert, p.ServerKey); err != nil {
		return nil, err
	}
	admin := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if err := issueWithKey(admin, ca, caKey, p.AdminCert, p.AdminKey); err != nil {
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
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(Life)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return fmt.Errorf("issue a certificate: %w", err)
	}
	return writePEM(file, "CERTIFICATE", der)
}

func writeAccountKeys(p *PKI) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := writePEM(p.AccountPublic, "PUBLIC KEY", public); err != nil {
		return err
	}
	return writeKey(key, p.AccountKey)
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
