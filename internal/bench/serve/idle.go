// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/inferencecache/inference-cache/internal/bench"
)

// idleLoad is what an engine without requests says of itself.
const idleLoad = `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="model"} 0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="model"} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="model"} 0
`

const mib = 1 << 20

// measureIdle looks at what a server and publishers without work cost. The
// engines' sockets are in the publishers' process and count with them.
func measureIdle(ctx context.Context, r *bench.Report, o Options) error {
	load, stop, err := serveLoad()
	if err != nil {
		return err
	}
	defer stop()
	server, err := o.Launch(ctx, "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = server.Stop() }() // the measurement is over
	w := watch(server)
	defer w.close()
	e, err := startEngines(ctx, w, server.GRPC(), o.Idle, load)
	if err != nil {
		return err
	}
	defer e.close()
	debug.FreeOSMemory()
	time.Sleep(min(2*time.Second, o.Duration))
	var percents, sizes []float64
	var detail map[string]float64
	for range o.Runs {
		before := use(server)
		time.Sleep(o.Duration)
		used := use(server).since(before)
		percents = append(percents, 100*(used.server+used.bench))
		ours, servers := bench.ResidentBytes()/mib, 0.0
		if server.PID() != os.Getpid() {
			servers = bench.ResidentBytesOf(server.PID()) / mib
		}
		sizes = append(sizes, ours+servers)
		detail = map[string]float64{
			"publishers": float64(o.Idle), "server_percent": 100 * used.server, "publishers_percent": 100 * used.bench,
			"server_mib": servers, "publishers_mib": ours,
		}
	}
	r.AtMost("G11", "processor time of server and idle publishers, of one core", "percent", 2, percents, detail)
	r.AtMost("G11", "resident memory of server and idle publishers", "MiB", 100, sizes, detail)
	return nil
}

// serveLoad serves the metrics of engines without work.
func serveLoad() (url string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	web := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			_, _ = w.Write([]byte(idleLoad)) // the publisher may be gone
		}),
	}
	go func() { _ = web.Serve(listener) }() // ends with Close
	return "http://" + listener.Addr().String() + "/metrics", func() { _ = web.Close() }, nil
}
