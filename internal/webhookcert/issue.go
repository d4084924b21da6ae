// SPDX-License-Identifier: Apache-2.0

package webhookcert

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

const (
	authorityLife = 5 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
	// backdate is how far clocks may be apart.
	backdate = time.Hour
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// newAuthority returns an authority as PEM.
func newAuthority(now time.Time) (cert, key []byte, err error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "inference-cache " + now.UTC().Format(time.DateOnly)},
		IsCA:    true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return issue(template, authorityLife, now, nil)
}

// newLeaf returns a certificate for names as PEM.
func newLeaf(a *authority, names []string, now time.Time) (cert, key []byte, err error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	return issue(template, leafLife, now, a)
}

// issue signs a certificate by an authority, or by itself without one. It does
// not outlive its authority.
func issue(template *x509.Certificate, life time.Duration, now time.Time, by *authority) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate a key: %w", err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, fmt.Errorf("generate a serial number: %w", err)
	}
	template.NotBefore, template.NotAfter = now.Add(-backdate), now.Add(life)
	parent, signer := template, crypto.Signer(private)
	if by != nil {
		parent, signer = by.cert, by.key
		if template.NotAfter.After(parent.NotAfter) {
			template.NotAfter = parent.NotAfter
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, private.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("sign a certificate: %w", err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", text), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

var errNoCertificate = errors.New("no certificate")

// Authorities returns the certificates of a PEM text and nothing else of it.
func Authorities(text []byte) ([]byte, error) {
	certs, err := parseBundle(text)
	if err != nil {
		return nil, err
	}
	return bundle(certs), nil
}

// parseBundle reads all certificates of a text.
func parseBundle(text []byte) (certs []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read a certificate: %w", err)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errNoCertificate
	}
	return certs, nil
}

func bundle(certs []*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, cert := range certs {
		out.Write(encode("CERTIFICATE", cert.Raw))
	}
	return out.Bytes()
}

func parseKey(text []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no key")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("the key cannot be read")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("the key cannot sign")
	}
	return signer, nil
}

// spent says whether a third of a certificate's life or less is left.
func spent(cert *x509.Certificate, now time.Time) bool {
	return !now.Before(cert.NotAfter.Add(-cert.NotAfter.Sub(cert.NotBefore) / 3))
}

// early says whether a certificate is not valid yet: a clock was far ahead when
// it was issued.
func early(cert *x509.Certificate, now time.Time) bool { return now.Before(cert.NotBefore) }
