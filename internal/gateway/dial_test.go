// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// SEC-09 at load time: addresses no engine can have, and numbers that resolvers
// take for addresses.
func TestSEC_09_AddressesAtLoadTime(t *testing.T) {
	for host, allowed := range map[string]bool{
		"engine.example:8000":         true,
		"10.0.0.1:8000":               true,
		"127.0.0.1:8000":              true, // configured by hand
		"[::1]:8000":                  true,
		"engine-1:8000":               true,
		"engine.0.example.":           true,
		"169.254.169.254":             false,
		"169.254.169.254:80":          false,
		"[::ffff:169.254.169.254]:80": false,
		"[fe80::1]:80":                false,
		"[fd00:ec2::254]:80":          false,
		"100.100.100.200:80":          false,
		"192.0.0.192":                 false,
		"0.0.0.0:80":                  false,
		"224.0.0.1:80":                false,
		"0x7f000001:80":               false,
		"0xa9fea9fe":                  false,
		"2130706433:80":               false,
		"2852039166":                  false,
		"0177.0.0.1:80":               false,
		"127.1:80":                    false,
		"169.254.0xa9fe":              false,
		"user@10.0.0.1:80":            false,
		"10.0.0.1:80/path":            false,
		"10.0.0.1:80?query":           false,
		"":                            false,
	} {
		_, err := New(Options{Replicas: []Replica{{ID: "a", URL: "http://" + host}}})
		if (err == nil) != allowed {
			t.Errorf("%q: %v, want allowed %t", host, err, allowed)
		}
	}
	for _, scheme := range []string{"ftp", "file", "unix", "gopher"} {
		if _, err := New(Options{Replicas: []Replica{{ID: "a", URL: scheme + "://10.0.0.1:80"}}}); err == nil {
			t.Errorf("scheme %s was taken", scheme)
		}
	}
}

// nameServer answers every question for an A record with the current address.
func nameServer(t *testing.T, address *atomic.Pointer[netip.Addr]) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-done })
	go func() {
		defer close(done)
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var message dnsmessage.Message
			if message.Unpack(buffer[:n]) != nil || len(message.Questions) != 1 {
				continue
			}
			question := message.Questions[0]
			message.Response, message.Additionals = true, nil
			if ip := *address.Load(); question.Type == dnsmessage.TypeA && ip.Is4() {
				message.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: question.Name, Type: question.Type, Class: question.Class},
					Body:   &dnsmessage.AResource{A: ip.As4()},
				}}
			}
			packed, err := message.Pack()
			if err == nil {
				_, _ = conn.WriteTo(packed, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// SEC-09 at dial time: the resolved address is judged, each time anew, and only
// the exact host and port of a replica is dialled.
func TestSEC_09_AddressesAtDialTime(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
	}))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	var address atomic.Pointer[netip.Addr]
	set := func(text string) { a := netip.MustParseAddr(text); address.Store(&a) }
	set("127.0.0.1")
	u, err := newUpstream(Replica{ID: "a", URL: "http://engine.example:" + port}, nameServer(t, &address))
	if err != nil {
		t.Fatal(err)
	}
	defer u.transport.CloseIdleConnections()
	get := func(url string) (*http.Response, error) {
		u.transport.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := u.client.Do(request)
		if err == nil {
			_ = response.Body.Close()
		}
		return response, err
	}
	response, err := get(u.url("/health"))
	if err != nil || response.StatusCode != http.StatusFound {
		t.Fatalf("a name that resolves to an engine: %v; want its answer, a redirect that is not followed", err)
	}
	for _, inside := range []string{"169.254.169.254", "100.100.100.200", "192.0.0.192", "224.0.0.1", "0.0.0.0"} {
		set(inside) // the answer changes between the check and the call
		if _, err := get(u.url("/health")); !errors.Is(err, errForbiddenAddress) {
			t.Errorf("a name that resolves to %s now: %v", inside, err)
		}
	}
	set("127.0.0.1")
	for _, other := range []string{"other.example:" + port, "engine.example:1", "127.0.0.1:" + port, "169.254.169.254:80"} {
		if _, err := get(fmt.Sprintf("http://%s/health", other)); !errors.Is(err, errForbiddenAddress) {
			t.Errorf("%s, which is no replica's: %v", other, err)
		}
	}
}

// No environment variable puts a proxy between the gateway and its engines.
func TestSEC_09_NoProxyFromTheEnvironment(t *testing.T) {
	u, err := newUpstream(Replica{ID: "a", URL: "http://10.0.0.1:80"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport, ok := u.client.Transport.(*http.Transport)
	if !ok || transport.Proxy != nil {
		t.Errorf("transport %T may use a proxy", u.client.Transport)
	}
}
