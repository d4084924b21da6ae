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
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/server"
)

// keyFiles is a key pair on disk.
type keyFiles struct{ cert, key string }

// write makes a new self-signed pair with a serial number, modified at a time.
func (f keyFiles) write(t *testing.T, serial int64, modified time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyBytes, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	f.put(t, f.key, "PRIVATE KEY", keyBytes, modified)
	f.put(t, f.cert, "CERTIFICATE", cert, modified)
}

func (f keyFiles) put(t *testing.T, file, kind string, der []byte, modified time.Time) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, modified, modified); err != nil {
		t.Fatal(err)
	}
}

func TestTLSFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	files := keyFiles{cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key")}
	began := time.Now().Add(-time.Hour)
	files.write(t, 1, began)
	h := start(t, func(o *server.Options) { o.TLSCertFile, o.TLSKeyFile = files.cert, files.key })
	h.wantMetric("inferencecache_server_grpc_tls_enabled", 1)

	// serial is the number of the certificate a new connection is shown.
	serial := func() int64 {
		conn, err := tls.Dial("tcp", h.server.Addresses().GRPC.String(), &tls.Config{
			InsecureSkipVerify: true, NextProtos: []string{"h2"},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	steps := []struct {
		what   string
		change func()
		want   int64
	}{
		{"the first pair", func() {}, 1},
		{"a newer pair", func() { files.write(t, 2, began.Add(time.Minute)) }, 2},
		{"a pair with an older time", func() { files.write(t, 3, began) }, 2},
		{"a file that is no certificate", func() { files.put(t, files.cert, "NOTHING", nil, began.Add(2*time.Minute)) }, 2},
		{"no file", func() { _ = os.Remove(files.cert) }, 2},
		{"a good pair again", func() { files.write(t, 4, began.Add(3*time.Minute)) }, 4},
	}
	for _, step := range steps {
		step.change()
		if got := serial(); got != step.want {
			t.Errorf("%s: certificate %d, want %d", step.what, got, step.want)
		}
	}
	if _, err := tls.Dial("tcp", h.server.Addresses().GRPC.String(), &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"h2"}, MaxVersion: tls.VersionTLS11,
	}); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
}
