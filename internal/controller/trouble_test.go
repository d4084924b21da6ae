// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controller"
)

// reset ends the connection as a process that dies does.
func reset(w http.ResponseWriter, _ *http.Request) {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = connection.Close()
}

// The same trouble at each attempt, from another port each time, is one
// change.
func TestTroubleOfAServerIsWrittenOnce(t *testing.T) {
	server := startServer(t, "1")
	server.serve(reset)
	p := startPusher(t, newCluster(t, somePolicy("a", "p", 7)), server.named(t, "one"))
	p.awaitPolicy(t, "a", "p", "False/PushFailed: one: call the server: ")
	version := func() string {
		return get[v1alpha1.CachePolicy](t, p.cluster, key("a", "p")).ResourceVersion
	}
	first, pushes := version(), server.received()
	eventually(t, "five more attempts", func() bool { return server.received() >= pushes+5 })
	if version() != first {
		t.Errorf("the status was written again: %s", conditionOf(p.policyStatus(t, "a", "p").Conditions, "Programmed"))
	}
}

// A message names all servers that it can hold.
func TestMessageNamesServersInTrouble(t *testing.T) {
	const longText = 300
	down := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "down", http.StatusServiceUnavailable) }
	verbose := func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, strings.Repeat("word ", longText), http.StatusInternalServerError)
	}
	for name, tc := range map[string]struct {
		serve map[string]http.HandlerFunc
		many  int // more servers that are down
		gone  int // more servers, each with an error of its own
		want  []string
	}{
		"the same trouble":   {map[string]http.HandlerFunc{"b": down, "c": down}, 0, 0, []string{"b, c: the server answered 503: down"}},
		"long and short":     {map[string]http.HandlerFunc{"b": verbose, "c": down}, 0, 0, []string{"b: the server answered 500: word", "...; c: the server answered 503: down"}},
		"more troubles":      {nil, 0, 40, []string{"g00: call the server: dial tcp 127.", "; g03: call the server:", "; and 36 more"}},
		"more than it holds": {nil, 40, 0, []string{"s00, s01, ", " more: the server answered 503: down"}},
	} {
		t.Run(name, func(t *testing.T) {
			all := []controller.Server{startServer(t, "1").named(t, "a")}
			for server, handler := range tc.serve {
				s := startServer(t, "1")
				s.serve(handler)
				all = append(all, s.named(t, server))
			}
			shared := startServer(t, "1")
			shared.serve(down)
			for i := range tc.many {
				all = append(all, shared.named(t, fmt.Sprintf("s%02d", i)))
			}
			var gone []*testServer
			for i := range tc.gone {
				s := startServer(t, "1")
				gone = append(gone, s)
				all = append(all, s.named(t, fmt.Sprintf("g%02d", i)))
			}
			for _, s := range gone { // only now, lest a port is used twice
				s.listener.Close()
			}
			p := startPusher(t, newCluster(t, somePolicy("a", "p", 7)), all...)
			eventually(t, "all servers have been asked", func() bool {
				status := p.policyStatus(t, "a", "p")
				got := conditionOf(status.Conditions, "Programmed")
				for _, part := range tc.want {
					if !strings.Contains(got, part) {
						return false
					}
				}
				return len(got) <= 256+len("False/PushFailed: ") && *status.ProgrammedServers == 1 && int(*status.DesiredServers) == len(all)
			})
		})
	}
}
