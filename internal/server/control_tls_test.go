// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"crypto/tls"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/server"
)

func TestInternalListenerWithTLS(t *testing.T) {
	dir := t.TempDir()
	files := keyFiles{cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key")}
	began := time.Now().Add(-time.Hour)
	files.write(t, 1, began)
	h := startControlled(t, func(o *server.Options) {
		o.Internal.TLSCertFile, o.Internal.TLSKeyFile = files.cert, files.key
	})
	h.wantMetric("inferencecache_server_grpc_tls_enabled", 0)
	if _, ok := h.series()[`inferencecache_tls_not_after_timestamp_seconds{listener="internal"}`]; !ok {
		t.Error("no expiry of the internal certificate")
	}
	for serial := int64(1); serial <= 2; serial++ {
		files.write(t, serial, began.Add(time.Duration(serial)*time.Second))
		if got := h.internalSerial(tls.VersionTLS12); got != serial {
			t.Errorf("served certificate %d, want %d", got, serial)
		}
	}
	if got := h.internalSerial(tls.VersionTLS11); got != 0 {
		t.Error("TLS 1.1 was accepted")
	}
	if response, err := http.Get("http://" + h.server.Addresses().Internal.String() + "/status"); err == nil {
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			t.Error("answered in clear")
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// internalSerial asks for the status over at most a version of TLS and returns
// the serial number of the certificate shown, 0 without an answer.
func (h *harness) internalSerial(version uint16) int64 {
	h.t.Helper()
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: version},
	}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	response, err := client.Get("https://" + h.server.Addresses().Internal.String() + "/status")
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		h.t.Errorf("status over TLS: %d", response.StatusCode)
	}
	return response.TLS.PeerCertificates[0].SerialNumber.Int64()
}
