// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// toolbox says where the peers are installed. hack/peers.sh sets it.
type toolbox struct {
	binary     string // bin/inferencecache
	nodeModule string // folder whose node_modules holds the client
	python     string // interpreter that has the client
}

// requireTools skips the test outside `make test-peers`; inside it, a missing
// part is a failure.
func requireTools(t *testing.T) toolbox {
	t.Helper()
	if os.Getenv("INFERENCECACHE_PEERS") == "" {
		t.Skip("needs installed peers: run make test-peers")
	}
	return toolbox{
		binary:     requireFile(t, "INFERENCECACHE_BINARY"),
		nodeModule: requireFile(t, "INFERENCECACHE_NODE_MODULE"),
		python:     requireFile(t, "INFERENCECACHE_PYTHON"),
	}
}

// requireFile returns the path an environment variable names.
func requireFile(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Fatalf("%s is not set", variable)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return path
}

// engineAddresses is how an engine can be reached.
type engineAddresses struct {
	HTTP   string `json:"http"`
	Events string `json:"events"`
	Replay string `json:"replay"`
}

// flag is the value of up's --engine.
func (a engineAddresses) flag() string {
	return fmt.Sprintf("%s,events=%s,replay=%s", a.HTTP, a.Events, a.Replay)
}

// simModel is what the simulated engines serve.
const simModel = "sim"

// startSimEngine starts a simulated engine that can hold a prompt of 1 MiB
// and answers without delay.
func startSimEngine(t *testing.T, binary, name string) engineAddresses {
	t.Helper()
	cmd := exec.Command(binary, "sim-engine", "--model", simModel, "--listen", "127.0.0.1:0",
		"--events", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0",
		"--blocks", "200000", "--step-tokens", "65536", "--prefill-rate", "50000000", "--decode-step", "1ms",
		"--print-addresses", "--exit-with-stdin")
	stdin, err := cmd.StdinPipe() // stays open for as long as this process lives
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close() })
	var addresses engineAddresses
	startProcess(t, name, cmd, &addresses)
	return addresses
}

// fleet is a running `up` with its engines.
type fleet struct {
	Gateway, Admin string // URLs
	engines        []string
}

// startUp puts `up` in front of the engines and waits until it is ready.
func startUp(t *testing.T, binary string, engines ...engineAddresses) *fleet {
	t.Helper()
	config := filepath.Join(t.TempDir(), "up.yaml")
	if err := os.WriteFile(config, []byte("routing: {exposeReplica: true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	arguments := []string{
		"up", "--config", config, "--print-addresses",
		"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
	}
	f := &fleet{}
	for _, engine := range engines {
		arguments = append(arguments, "--engine", engine.flag())
		f.engines = append(f.engines, engine.HTTP)
	}
	var addresses struct{ Gateway, Admin string }
	up := startProcess(t, "up", exec.Command(binary, arguments...), &addresses)
	f.Gateway, f.Admin = baseURL(addresses.Gateway), baseURL(addresses.Admin)
	eventually(t, 20*time.Second, "up is ready", func(ctx context.Context) bool {
		if up.ended() {
			t.Fatal("up ended before it was ready")
		}
		return status(ctx, f.Admin+"/readyz") == http.StatusOK
	})
	return f
}

func baseURL(address string) string {
	if len(address) > 4 && address[:4] == "http" {
		return address
	}
	return "http://" + address
}

// pageClient reads pages that are made without waiting for anything.
var pageClient = &http.Client{Timeout: 10 * time.Second}

// status returns the status of a GET, 0 when there was no answer.
func status(ctx context.Context, url string) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	response, err := pageClient.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}

// metrics reads a Prometheus page.
func metrics(ctx context.Context, t *testing.T, url string) map[string]*dto.MetricFamily {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := pageClient.Do(request)
	if err != nil {
		t.Fatalf("reading metrics: %v", err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		t.Fatalf("reading metrics of %s: %v", url, err)
	}
	return families
}

// sum adds up a family's counters and gauges whose labels hold want.
func sum(family *dto.MetricFamily, want map[string]string) float64 {
	total := 0.0
	for _, metric := range family.GetMetric() {
		matched := 0
		for _, label := range metric.GetLabel() {
			if value, ok := want[label.GetName()]; ok && value == label.GetValue() {
				matched++
			}
		}
		if matched == len(want) {
			total += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetUntyped().GetValue()
		}
	}
	return total
}

// requireIdle waits until no engine has a request left.
func (f *fleet) requireIdle(t *testing.T) {
	t.Helper()
	eventually(t, 10*time.Second, "all requests ended at the engines", func(ctx context.Context) bool {
		busy := 0.0
		for _, engine := range f.engines {
			families := metrics(ctx, t, engine+"/metrics")
			busy += sum(families["vllm:num_requests_running"], nil) + sum(families["vllm:num_requests_waiting"], nil)
		}
		return busy == 0
	})
}
