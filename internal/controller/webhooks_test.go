// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/testcert"
)

func TestWebhooksPartFromCallersBeforeTheyEnd(t *testing.T) {
	authority := testcert.NewAuthority(t)
	certificate := authority.Issue(t, "localhost")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &webhookServer{listener: listener, drain: time.Second, grace: time.Second}
	s.server = &http.Server{
		Handler:   s.partingFrom(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "yes") })),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()

	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authority.Pool(), ServerName: "localhost"}}
	defer transport.CloseIdleConnections()
	closes := func() bool {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+listener.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatalf("a request while the server answers: %v", err)
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); err != nil || string(body) != "yes" {
			t.Fatalf("answer %q, %v", body, err)
		}
		return response.Close
	}
	if closes() {
		t.Error("the first answer ends its connection")
	}
	cancel()
	for !closes() { // the signal is on its way
	}
	if !closes() {
		t.Error("an answer of a server that is about to end keeps its connection")
	}
	if err := <-ended; err != nil {
		t.Errorf("the server ended with %v", err)
	}
}
