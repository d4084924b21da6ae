// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/gateway"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testModel   = "base/model"
	testAdapter = "lora-a"
	patience    = 20 * time.Second
)

// engine is a small engine whose token ids are the bytes of the prompt.
type engine struct {
	*httptest.Server
	id        string
	blockSize int
	// generate answers completions; tokenize may replace the tokenizer.
	generate, tokenize http.HandlerFunc
	models             []string
	// offers are the endpoints it has besides those every engine has.
	offers []string
	// modelsNow may replace models by what changes.
	modelsNow func() []string
	static    []string
	rank      *int
	// sleeping tells whether it sleeps, loads is what /v1/loads says; each may
	// be left out.
	sleeping func() bool
	loads    string

	mu       sync.Mutex
	received []received
}

// received is a request as an engine saw it.
type received struct {
	path   string
	header http.Header
	body   []byte
}

func newEngine(t *testing.T, id string, change ...func(*engine)) *engine {
	t.Helper()
	e := &engine{id: id, blockSize: 16, models: []string{
		`{"id":"` + testModel + `","object":"model","owned_by":"vllm","max_model_len":4096}`,
		`{"id":"` + testAdapter + `","object":"model","parent":"` + testModel + `"}`,
	}}
	e.generate = answerJSON(e.id, 0)
	e.tokenize = tokenizeBytes
	for _, f := range change {
		f(e)
	}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Server.Close)
	return e
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health", "/model_info":
	case "/v1/loads":
		fmt.Fprint(w, e.loads)
	case "/v1/models":
		models := e.models
		if e.modelsNow != nil {
			models = e.modelsNow()
		}
		fmt.Fprintf(w, `{"object":"list","data":[%s]}`, strings.Join(models, ","))
	case "/metrics":
		fmt.Fprintf(w, "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"%d\"} 1\n", e.blockSize)
		fmt.Fprint(w, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n")
		fmt.Fprint(w, "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 0\n")
		e.writeSleep(w)
	case "/tokenize":
		e.tokenize(w, r)
	case "/kv_event_sources", "/version", "/is_sleeping", "/server_info":
		http.NotFound(w, r)
	default:
		optional := r.URL.Path == "/v1/responses" || r.URL.Path == "/v1/messages"
		if optional && !slices.Contains(e.offers, r.URL.Path) {
			http.NotFound(w, r)
			return
		}
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		body, _ := io.ReadAll(r.Body)
		e.mu.Lock()
		e.received = append(e.received, received{r.URL.Path, r.Header.Clone(), body})
		e.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		e.mu.Lock()
		generate := e.generate
		e.mu.Unlock()
		generate(w, r)
	}
}

func (e *engine) writeSleep(w io.Writer) {
	if e.sleeping == nil {
		return
	}
	awake := 1
	if e.sleeping() {
		awake = 0
	}
	fmt.Fprintf(w, "# TYPE vllm:engine_sleep_state gauge\nvllm:engine_sleep_state{sleep_state=\"awake\"} %d\n", awake)
}

// requests returns what was received besides health checks and the like.
func (e *engine) requests() []received {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]received(nil), e.received...)
}

// answerJSON answers with usage; the engine's id is the text.
func answerJSON(id string, cached int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"x","choices":[{"text":%q}],"usage":{"prompt_tokens":64,"completion_tokens":2,`+
			`"prompt_tokens_details":{"cached_tokens":%d}}}`, id, cached)
	}
}

func answerStatus(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"message":"status %d of the engine"}}`, status)
	}
}

func tokenizeBytes(w http.ResponseWriter, r *http.Request) {
	var call struct {
		Prompt   string          `json:"prompt"`
		Messages json.RawMessage `json:"messages"`
	}
	if err := json.NewDecoder(r.Body).Decode(&call); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	text := call.Prompt + string(call.Messages)
	tokens := make([]int, len(text))
	for i := range text {
		tokens[i] = int(text[i])
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"count": len(tokens), "tokens": tokens})
}

// index is an index of fixed answers that remembers what it was asked.
type index struct {
	answer func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error)

	mu    sync.Mutex
	asked []*pb.LookupRouteRequest
}

func (i *index) LookupRoute(ctx context.Context, request *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
	i.mu.Lock()
	i.asked = append(i.asked, request)
	i.mu.Unlock()
	return i.answer(ctx, request)
}

func (i *index) requests() []*pb.LookupRouteRequest {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]*pb.LookupRouteRequest(nil), i.asked...)
}

// says returns an index that always gives one answer; each replica matches
// 48 tokens.
func says(reason string, replicas ...string) *index {
	response := &pb.LookupRouteResponse{ReasonCode: reason}
	for _, id := range replicas {
		response.ReplicaScores = append(response.ReplicaScores, &pb.ReplicaScore{ReplicaId: id, Score: 0.9, MatchedTokens: 48})
	}
	return &index{answer: func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
		return response, nil
	}}
}

// fixture is a running gateway.
type fixture struct {
	*gateway.Gateway
	t        *testing.T
	url      string
	trusted  string // empty without a trusted listener
	admin    string
	registry *prometheus.Registry
	logs     *logBuffer
	client   *http.Client
	// stop ends Run and returns its error.
	stop func() error
}

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) count(part string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.text.String(), part)
}

func replicas(engines ...*engine) []gateway.Replica {
	var out []gateway.Replica
	for _, e := range engines {
		out = append(out, gateway.Replica{ID: e.id, URL: e.URL, Rank: e.rank, Models: e.static})
	}
	return out
}

// start runs a gateway until the test ends and waits for its replicas.
func start(t *testing.T, options gateway.Options, engines ...*engine) *fixture {
	t.Helper()
	options.Replicas = append(options.Replicas, replicas(engines...)...)
	f := startUnready(t, options)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := f.AwaitReplicas(ctx, len(engines)); err != nil {
		t.Fatal(err)
	}
	return f
}

func startUnready(t *testing.T, options gateway.Options) *fixture {
	t.Helper()
	f := &fixture{t: t, registry: prometheus.NewRegistry(), logs: &logBuffer{}}
	options.Registry = f.registry
	options.AdminListen = "127.0.0.1:0"
	options.Logger = slog.New(slog.NewTextHandler(f.logs, nil))
	if options.Timeouts.Lookup == 0 {
		options.Timeouts.Lookup = patience
	}
	if options.Timeouts.Tokenize == 0 {
		options.Timeouts.Tokenize = patience
	}
	g, err := gateway.New(options)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	f.Gateway = g
	f.url = "http://" + g.Addresses().Data.String()
	if trusted := g.Addresses().Trusted; trusted != nil {
		f.trusted = "http://" + trusted.String()
	}
	f.admin = "http://" + g.Addresses().Admin.String()
	f.client = &http.Client{Transport: &http.Transport{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	f.stop = sync.OnceValue(func() error {
		f.client.CloseIdleConnections()
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := f.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return f
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
}

func (f *fixture) post(path, body string, header ...string) answer {
	f.t.Helper()
	return f.do(http.MethodPost, f.url+path, body, header...)
}

func (f *fixture) do(method, url, body string, header ...string) answer {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	response, err := f.client.Do(request)
	if err != nil {
		f.t.Fatalf("%s %s: %v", method, url, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		f.t.Fatalf("%s %s: read the answer: %v", method, url, err)
	}
	return answer{response.StatusCode, response.Header, string(data)}
}

// prompt is a completion whose prompt has 64 tokens, four blocks.
func prompt() string { return completion(strings.Repeat("p", 64)) }

func completion(text string) string {
	body, _ := json.Marshal(map[string]any{"model": testModel, "prompt": text})
	return string(body)
}

// value returns a metric's value; a histogram's is its count.
func (f *fixture) value(name string, labels ...string) float64 {
	f.t.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "inferencecache_"+name {
			continue
		}
	metrics:
		for _, m := range family.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			for i := 0; i < len(labels); i += 2 {
				if have[labels[i]] != labels[i+1] {
					continue metrics
				}
			}
			switch {
			case m.Counter != nil:
				return m.GetCounter().GetValue()
			case m.Gauge != nil:
				return m.GetGauge().GetValue()
			default:
				return float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	f.t.Fatalf("no metric %s %v", name, labels)
	return 0
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// idle checks that no load is left anywhere.
func (f *fixture) idle() {
	f.t.Helper()
	eventually(f.t, "all load is given back", func() bool {
		state := f.State()
		left := state.Inflight
		for _, r := range state.Replicas {
			left += int64(r.Inflight) + r.QueueTokens
		}
		return left == 0
	})
}
