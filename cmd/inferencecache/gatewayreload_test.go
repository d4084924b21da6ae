// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestGatewayFollowsItsFile adds a replica to the file of a running gateway,
// breaks the file, and looks at what is served and counted.
func TestGatewayFollowsItsFile(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
		}
	}))
	defer engine.Close()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	put := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte("version: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	admin := "http://" + freeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	var stderr lockedBuffer
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		c := &cli{stdout: io.Discard, stderr: &stderr}
		args := []string{"gateway", "--config", file, "--listen", "127.0.0.1:0", "--admin-listen", strings.TrimPrefix(admin, "http://")}
		if code := c.run(ctx, args); code != exitOK {
			t.Errorf("exit code %d: %s", code, stderr.String())
		}
	})
	shows := func(path, want string) {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		body := ""
		for !strings.Contains(body, want) {
			if time.Now().After(deadline) {
				t.Fatalf("%s never shows %q: %s\n%s", path, want, body, stderr.String())
			}
			time.Sleep(5 * time.Millisecond)
			if response, err := http.Get(admin + path); err == nil {
				data, _ := io.ReadAll(response.Body)
				_ = response.Body.Close()
				body = string(data)
			}
		}
	}
	shows("/debug/state", `"policy":"hint"`)
	put(fmt.Sprintf("replicas:\n  - {id: a, url: '%s'}\nrouting:\n  policy: random\n", engine.URL))
	shows("/debug/state", `"policy":"random"`)
	shows("/debug/state", `"ready":true`)
	put("routing:\n  policy: best\n")
	shows("/metrics", `inferencecache_config_reloads_total{result="refused"} 1`)
	shows("/debug/state", `"policy":"random"`)
	if logs := stderr.String(); !strings.Contains(logs, "gateway.yaml:2:11: routing.policy") {
		t.Errorf("the log does not say what is wrong: %s", logs)
	}
	http.DefaultClient.CloseIdleConnections()
}

// freeAddress returns an address nobody listens on now.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
