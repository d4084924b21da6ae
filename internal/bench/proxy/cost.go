// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/inferencecache/inference-cache/internal/bench"
)

// mostIdle is what a gateway with many replicas and no requests may use, in
// percent of a core.
const mostIdle = 5.0

// measureCost looks at the processor time of an idle gateway and of requests
// of different sizes.
func measureCost(ctx context.Context, r *bench.Report, o Options) error {
	g, err := newRig(ctx, o)
	if err != nil {
		return err
	}
	defer g.close()
	if err := measureIdle(ctx, r, o, g); err != nil {
		return err
	}
	g.stopChildren()
	url, err := g.gateway(ctx, "gateway", g.urls(), "--index", g.grpc)
	if err != nil {
		return err
	}
	for _, load := range []struct{ size, rate int }{
		{smallPrompt, o.Rate / 5}, {50 << 10, o.Rate / 25}, {400 << 10, o.Rate / 200},
	} {
		a := &arm{name: "gateway", urls: []string{url}}
		if err := g.measureRequests(ctx, r, o, a, load.size, max(load.rate, 1)); err != nil {
			return err
		}
	}
	return nil
}

// measureRequests prints the processor time of requests of a size.
func (g *rig) measureRequests(ctx context.Context, r *bench.Report, o Options, a *arm, size, rate int) error {
	c := newClient()
	defer c.close()
	var values []float64
	detail := map[string]float64{}
	sent := 0
	for run := range o.Runs + 1 {
		d := o.Duration
		if run == 0 { // warm-up
			d = min(time.Second, d)
		}
		before := g.use()
		got := c.load(ctx, a.urls, func(i int) []byte { return chat(sent+i, size) }, float64(rate), d)
		if err := got.err(ctx, a.name); err != nil {
			return err
		}
		sent += got.sent
		used := g.use().since(before, a.name, detail)
		if run > 0 {
			values = append(values, micros(used)/1000/float64(got.sent))
		}
		got.detail(detail, "")
	}
	detail["per_s"] = float64(rate)
	r.AtMost("cost", fmt.Sprintf("gateway: processor time of a request of %d KiB", size>>10), "ms", 0, values, detail)
	return nil
}

// measureIdle prints what a gateway without requests uses.
func measureIdle(ctx context.Context, r *bench.Report, o Options, g *rig) error {
	urls, stop, err := idleEngines(o.Idle)
	if err != nil {
		return err
	}
	defer stop()
	if _, err := g.gateway(ctx, "gateway", urls, "--index", g.grpc); err != nil {
		return err
	}
	time.Sleep(min(2*time.Second, o.Duration))
	var values []float64
	detail := map[string]float64{}
	for range o.Runs {
		before := g.use()
		time.Sleep(o.Duration)
		after := g.use()
		used := after.since(before, "gateway", detail)
		values = append(values, 100*used.Seconds()/after.at.Sub(before.at).Seconds())
	}
	detail["replicas"] = float64(o.Idle)
	detail["resident_mib"] = bench.ResidentBytesOf(g.children["gateway"].pid()) / (1 << 20)
	r.AtMost("cost", "gateway: processor time while idle, of one core", "percent", mostIdle, values, detail)
	return nil
}

// idleEngines are HTTP servers that say what an engine without requests says.
func idleEngines(n int) (urls []string, stop func(), err error) {
	web := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(answerIdle)}
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			_ = web.Close()
			return nil, nil, err
		}
		go func() { _ = web.Serve(listener) }() // ends with Close
		urls = append(urls, "http://"+listener.Addr().String())
	}
	return urls, func() { _ = web.Close() }, nil
}

func answerIdle(w http.ResponseWriter, r *http.Request) {
	answer, known := map[string]string{
		"/health":    "",
		"/v1/models": `{"object":"list","data":[{"id":"` + model + `","object":"model","max_model_len":65536}]}`,
		"/version":   `{"version":"0.24.0"}`,
		"/metrics":   "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n",
	}[r.URL.Path]
	if !known {
		w.WriteHeader(http.StatusNotFound)
	}
	_, _ = w.Write([]byte(answer)) // the gateway may be gone
}
