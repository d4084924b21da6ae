// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/control"
	"github.com/inferencecache/inference-cache/internal/probe"
)

// serve runs the harness's handler on loopback until the test ends.
func (h *harness) serve(change func(*http.Server)) string {
	h.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	s := control.NewHTTPServer(h.handler)
	change(s)
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	h.t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			h.t.Errorf("shutdown: %v", err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			h.t.Errorf("serve: %v", err)
		}
	})
	return "http://" + listener.Addr().String()
}

func send(t *testing.T, method, url, body string, headers ...string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// TestAProbeMayOutlastTheLimits has a probe take longer than the listener
// gives a request, as one that waits for many others does.
func TestAProbeMayOutlastTheLimits(t *testing.T) {
	const limit = time.Second
	h := start(t, func(o *control.Options) {
		o.Prober = proberFunc(func(ctx context.Context, _ probe.Request) (probe.Result, error) {
			select {
			case <-ctx.Done():
				return probe.Result{}, ctx.Err()
			case <-time.After(limit + limit/2):
				return probe.Result{Ingest: probe.OK, Routing: probe.OK, Tier2: probe.Skipped}, nil
			}
		})
	})
	url := h.serve(func(s *http.Server) { s.ReadTimeout, s.WriteTimeout = limit, limit })
	if code, text := send(t, "POST", url+"/probe", aProbe); code != http.StatusOK || !strings.Contains(text, `"routing":"ok"`) {
		t.Errorf("answer %d %s", code, text)
	}
}

func TestHeadersAreBounded(t *testing.T) {
	url := start(t).serve(func(*http.Server) {})
	for length, want := range map[int]int{1 << 10: http.StatusOK, 80 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		if code, _ := send(t, "GET", url+"/snapshot", "", "X-Long", strings.Repeat("x", length)); code != want {
			t.Errorf("a header of %d bytes: %d, want %d", length, code, want)
		}
	}
}
