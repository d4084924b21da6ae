// SPDX-License-Identifier: Apache-2.0

//go:build scale

package scale

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// publisherImage is what engines are wired with; nothing runs it.
const publisherImage = "example.com/publisher@sha256:0000000000000000000000000000000000000000000000000000000000000000"

// buildProgram builds the product as it is released.
func buildProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "inferencecache")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, root+"/cmd/inferencecache").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return program
}

// process is a running program.
type process struct {
	pid  int
	stop func()
	// started is when it was started.
	started time.Time
}

// run starts a program whose log goes to a file. With a message it returns once
// a line has it, and decodes that line into found.
func run(t *testing.T, name, message string, found any, program string, args ...string) *process {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	must(t, err)
	command := exec.Command(program, args...)
	stderr, err := command.StderrPipe()
	must(t, err)
	p := &process{started: time.Now()}
	must(t, command.Start())
	p.pid = command.Process.Pid
	seen, read := make(chan []byte, 1), make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewReader(stderr)
		for {
			line, err := lines.ReadBytes('\n')
			_, _ = log.Write(line)
			if message != "" && strings.Contains(string(line), `"msg":"`+message+`"`) {
				select {
				case seen <- line:
				default:
				}
			}
			if err != nil {
				return
			}
		}
	}()
	p.stop = sync.OnceFunc(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		<-read
		if err := command.Wait(); err != nil {
			t.Errorf("%s ended: %v", name, err)
		}
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s ends with:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
	t.Cleanup(p.stop)
	if message == "" {
		return p
	}
	select {
	case line := <-seen:
		must(t, json.Unmarshal(line, found))
	case <-read:
		t.Fatalf("%s never said %q", name, message)
	}
	return p
}

// server is a running `inferencecache server`.
type server struct{ GRPC, HTTP, Internal string }

func startServer(t *testing.T, program string) server {
	t.Helper()
	var s server
	run(t, "server", "serving", &s, program, "server", "--grpc-bind-address=127.0.0.1:0", "--http-bind-address=127.0.0.1:0",
		"--snapshot-bind-address=127.0.0.1:0", "--ready-max-wait=0", "--insecure-disable-auth", "--log-format=json")
	return s
}

// controller is a running `inferencecache controller`.
type controller struct {
	*process
	metrics, health string
}

// places are where each controller listens, one after another.
type places struct{ webhooks, metrics, health string }

func newPlaces(t *testing.T) (p places) {
	t.Helper()
	for _, address := range []*string{&p.webhooks, &p.metrics, &p.health} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer listener.Close()
		*address = listener.Addr().String()
	}
	return p
}

func (b *bed) startController(t *testing.T, program string, at places, s server, adapters string) *controller {
	t.Helper()
	internal := "http://" + s.Internal
	p := run(t, "controller", "", nil, program, "controller", "--kubeconfig="+b.kubeconfig, "--namespace="+installNamespace,
		"--leader-elect", "--adapters="+adapters, "--kvevent-subscriber-image="+publisherImage,
		"--server-snapshot-url="+internal+"/snapshot", "--server-policy-url="+internal+"/policy", "--server-probe-url="+internal+"/probe",
		"--policy-server-grpc-address="+s.GRPC, "--webhook-shutdown-delay=0s",
		"--webhook-bind-address="+at.webhooks, "--metrics-bind-address="+at.metrics, "--health-probe-bind-address="+at.health)
	return &controller{p, at.metrics, at.health}
}

// memory returns VmRSS or VmHWM of the process in MiB.
func (p *process) memory(t *testing.T, field string) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			must(t, err)
			return float64(kib) / 1024
		}
	}
	t.Fatalf("no %s of process %d", field, p.pid)
	return 0
}

type families map[string]*dto.MetricFamily

// scrape reads the metrics page of a controller.
func (c *controller) scrape(t *testing.T) families {
	t.Helper()
	response, err := http.Get("http://" + c.metrics + "/metrics")
	must(t, err)
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	parsed, err := parser.TextToMetricFamilies(response.Body)
	must(t, err)
	return parsed
}

func (c *controller) ready() error {
	response, err := http.Get("http://" + c.health + "/readyz")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s: %s", response.Status, text)
	}
	return nil
}

// requests counts the calls of the API server, those for leases included.
func (f families) requests() (sum float64) {
	for _, m := range f["rest_client_requests_total"].GetMetric() {
		sum += m.GetCounter().GetValue()
	}
	return sum
}

// reconciles are the cumulative counts of passes over CacheBackends by the
// upper bound of their time in seconds.
func (f families) reconciles() map[float64]uint64 {
	counts := map[float64]uint64{}
	for _, m := range f["controller_runtime_reconcile_time_seconds"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "controller" && l.GetValue() == "cachebackend" {
				for _, b := range m.GetHistogram().GetBucket() {
					counts[b.GetUpperBound()] += b.GetCumulativeCount()
				}
			}
		}
	}
	return counts
}
