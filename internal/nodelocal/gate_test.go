// SPDX-License-Identifier: Apache-2.0

package nodelocal_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/nodelocal"
)

// lmcache answers as a server does.
type lmcache struct {
	mu       sync.Mutex
	config   map[string]any // nil answers 503
	health   string
	requests int
	// changed is called, locked, before the nth answer on /config.
	changed func(l *lmcache, n int)
}

func (l *lmcache) show(config map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.config = config
}

func (l *lmcache) change(changed func(l *lmcache, n int)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = changed
}

func (l *lmcache) looks() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests
}

func (l *lmcache) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var body any = map[string]string{"status": l.health}
	if r.URL.Path == "/config" {
		l.requests++
		if l.changed != nil {
			l.changed(l, l.requests)
		}
		if l.config == nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		body = l.config
	}
	_ = json.NewEncoder(w).Encode(body)
}

// shown is what the wanted server shows on /config.
func shown(httpPort int32, edits map[string]any) map[string]any {
	mp := map[string]any{
		"instance_id": "team/cache@4c1f#0123456789abcdef", "shm_name": "lmcache_l1_pool_inferencecache_4c1f", "host": "127.0.0.1",
		"port": 6555, "chunk_size": 256, "max_workers": 1, "max_gpu_workers": 8, "max_cpu_workers": 4,
	}
	maps.Copy(mp, edits)
	return map[string]any{"mp": mp, "http": map[string]any{"http_host": "127.0.0.1", "http_port": httpPort}, "storage_manager": map[string]any{}}
}

// runGate runs the gate as the kubelet would, but for two paths.
func runGate(t *testing.T, c corev1.Container, dir string) (exit int, termination string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 to run the gate with")
	}
	log := filepath.Join(dir, "termination-log")
	command := exec.CommandContext(t.Context(), python, c.Command[1:]...)
	command.Env = append(os.Environ(), "INFERENCECACHE_GATE_LOG="+log, "http_proxy=http://192.0.2.1:9")
	for _, v := range c.Env {
		value := strings.ReplaceAll(v.Value, nodelocal.ConfigDir, dir)
		if v.Name == nodelocal.NodeIPVariable {
			value = "127.0.0.1"
		}
		command.Env = append(command.Env, v.Name+"="+value)
	}
	if output, err := command.CombinedOutput(); err != nil {
		t.Logf("%s", output)
	}
	text, err := os.ReadFile(log)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return command.ProcessState.ExitCode(), string(text)
}

func gateFor(t *testing.T, port, seconds int32, sglang bool) corev1.Container {
	t.Helper()
	b := newBackend(func(b *v1alpha1.CacheBackend) {
		b.Spec.LMCache.NodeLocal.Server.HTTPPort = port
		b.Spec.LMCache.NodeLocal.GateTimeoutSeconds = &seconds
	})
	c, err := nodelocal.Gate(b, nodelocal.GateOptions{Hash: "0123456789abcdef", ClientFile: sglang})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func startLMCache(t *testing.T, l *lmcache) int32 {
	t.Helper()
	server := httptest.NewServer(l)
	t.Cleanup(server.Close)
	return int32(server.Listener.Addr().(*net.TCPAddr).Port)
}

func TestGateOpensOnceTheServerIsTheExpectedOne(t *testing.T) {
	t.Parallel()
	l := &lmcache{health: "healthy"}
	port := startLMCache(t, l)
	l.change(func(l *lmcache, n int) {
		switch n {
		case 1: // not started up
		case 2:
			l.config = shown(port, map[string]any{"instance_id": "team/cache@4c1f#an-older-one"})
		default:
			l.config = shown(port, nil)
		}
	})
	dir := t.TempDir()
	if exit, log := runGate(t, gateFor(t, port, 60, true), dir); exit != 0 || log != "" {
		t.Fatalf("exit %d, termination log %q", exit, log)
	}
	got, err := os.ReadFile(filepath.Join(dir, "client.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "chunk_size: 256\nmp_host: \"127.0.0.1\"\nmp_port: 6555\n"; string(got) != want {
		t.Errorf("client.yaml is %q, want %q", got, want)
	}
	if looks := l.looks(); looks != 3 {
		t.Errorf("%d looks at the configuration, want 3", looks)
	}
}

func TestGateGivesUp(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		edits  map[string]any
		health string
		want   string
	}{
		"another instance":   {map[string]any{"instance_id": "x"}, "healthy", "instance_id is 'x', expected 'team/cache@4c1f#0123456789abcdef'"},
		"other memory":       {map[string]any{"shm_name": nil}, "healthy", "shm_name is None, expected 'lmcache_l1_pool_inferencecache_4c1f'"},
		"another port":       {map[string]any{"port": 1}, "healthy", "port is 1, expected 6555"},
		"another chunk size": {map[string]any{"chunk_size": 16}, "healthy", "chunk_size is 16, expected 256"},
		"fewer workers":      {map[string]any{"max_gpu_workers": 1}, "healthy", "max_gpu_workers is 1, expected 8"},
		"fewer CPU workers":  {map[string]any{"max_cpu_workers": 1}, "healthy", "max_cpu_workers is 1, expected 4"},
		"a sick server":      {nil, "unhealthy", "its status is 'unhealthy'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &lmcache{health: tc.health}
			port := startLMCache(t, l)
			l.show(shown(port, tc.edits))
			exit, log := runGate(t, gateFor(t, port, 1, false), t.TempDir())
			if exit != 1 || !strings.Contains(log, tc.want) || !strings.HasPrefix(log, fmt.Sprintf("no usable LMCache server at http://127.0.0.1:%d within 1 s: ", port)) {
				t.Errorf("exit %d, termination log %q, want %q in it", exit, log, tc.want)
			}
		})
	}
	t.Run("no configuration", func(t *testing.T) {
		t.Parallel()
		port := startLMCache(t, &lmcache{config: map[string]any{}, health: "healthy"})
		if exit, log := runGate(t, gateFor(t, port, 1, false), t.TempDir()); exit != 1 || !strings.Contains(log, "/config has no section mp") {
			t.Errorf("exit %d, termination log %q", exit, log)
		}
	})
	t.Run("no server", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewServer(http.NotFoundHandler())
		port := int32(server.Listener.Addr().(*net.TCPAddr).Port)
		server.Close()
		if exit, log := runGate(t, gateFor(t, port, 1, false), t.TempDir()); exit != 1 || !strings.Contains(log, "Connection refused") {
			t.Errorf("exit %d, termination log %q", exit, log)
		}
	})
}

func TestGateKeepsAGuaranteedPodGuaranteed(t *testing.T) {
	for _, guaranteed := range []bool{false, true} {
		c, err := nodelocal.Gate(newBackend(), nodelocal.GateOptions{Guaranteed: guaranteed})
		if err != nil {
			t.Fatal(err)
		}
		cpu := c.Resources.Limits.Cpu()
		if equal := c.Resources.Requests.Cpu().Cmp(*cpu) == 0 && c.Resources.Requests.Memory().Cmp(*c.Resources.Limits.Memory()) == 0; equal != guaranteed {
			t.Errorf("guaranteed %v: resources %v", guaranteed, c.Resources)
		}
	}
}
