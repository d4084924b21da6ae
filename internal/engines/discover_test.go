// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers GET with the page of each path, and 404 elsewhere.
func serve(t *testing.T, pages map[string]string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, page)
	}))
	t.Cleanup(func() {
		s.Client().CloseIdleConnections()
		s.Close()
	})
	return s
}

const oneModel = `{"object":"list","data":[{"id":"m","root":"/models/m","parent":null,"max_model_len":4096}]}`

func TestDiscover(t *testing.T) {
	tests := map[string]struct {
		runtime string
		pages   map[string]string
		want    Discovery
		wantErr string
	}{
		"an old vLLM": {
			pages: map[string]string{"/v1/models": oneModel},
			want:  Discovery{Models: []Model{{ID: "m"}}},
		},
		"adapters name their parent": {
			pages: map[string]string{"/v1/models": `{"data":[{"id":"sql","parent":"m"},{"id":"m","parent":null}]}`},
			want:  Discovery{Models: []Model{{ID: "sql", Parent: "m"}, {ID: "m"}}, LoRA: true},
		},
		"a vLLM that tells its block size and sockets": {
			pages: map[string]string{
				"/v1/models": oneModel,
				"/metrics":   `vllm:cache_config_info{block_size="32",enable_prefix_caching="True"} 1` + "\n",
				"/kv_event_sources": `[
					{"data_parallel_rank":0,"endpoint":"tcp://*:5557","replay_endpoint":"tcp://0.0.0.0:5600","topic":"kv@a"},
					{"data_parallel_rank":1,"endpoint":"tcp://127.0.0.1:5558","replay_endpoint":null,"topic":""}]`,
			},
			want: Discovery{
				Models:    []Model{{ID: "m"}},
				BlockSize: 32,
				Sources: []EventSource{
					{Rank: 0, Endpoint: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5600", Topic: "kv@a"},
					{Rank: 1, Endpoint: "tcp://127.0.0.1:5558"},
				},
			},
		},
		"a vLLM that lists its sockets by rank": {
			pages: map[string]string{
				"/v1/models": oneModel,
				"/kv_event_sources": `{
					"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558","replay_endpoint":null,"topic":"kv@a"},
					"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5600","topic":"kv@a"}}`,
			},
			want: Discovery{
				Models: []Model{{ID: "m"}},
				Sources: []EventSource{
					{Rank: 0, Endpoint: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5600", Topic: "kv@a"},
					{Rank: 1, Endpoint: "tcp://127.0.0.1:5558", Topic: "kv@a"},
				},
			},
		},
		"a vLLM without event sockets": {
			pages: map[string]string{"/v1/models": oneModel, "/kv_event_sources": `{}`},
			want:  Discovery{Models: []Model{{ID: "m"}}},
		},
		"sockets on other hosts are not believed": {
			pages: map[string]string{
				"/v1/models": oneModel,
				"/kv_event_sources": `[
					{"data_parallel_rank":0,"endpoint":"tcp://169.254.169.254:80"},
					{"data_parallel_rank":1,"endpoint":"ipc:///run/docker.sock"},
					{"data_parallel_rank":2,"endpoint":"tcp://*:0"},
					{"data_parallel_rank":-1,"endpoint":"tcp://*:5557"},
					{"data_parallel_rank":3,"endpoint":"tcp://*:5557","replay_endpoint":"tcp://10.0.0.1:5600"}]`,
			},
			want: Discovery{Models: []Model{{ID: "m"}}, Sources: []EventSource{{Rank: 3, Endpoint: "tcp://127.0.0.1:5557"}}},
		},
		"SGLang": {
			runtime: SGLang,
			pages: map[string]string{
				"/v1/models":   oneModel,
				"/server_info": `{"page_size":16,"enable_lora":true,"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"t","block_size":64,"dp_size":2}}`,
			},
			want: Discovery{
				Models: []Model{{ID: "m"}}, BlockSize: 64, LoRA: true,
				Sources: []EventSource{
					{Rank: 0, Endpoint: "tcp://127.0.0.1:5557", Topic: "t"},
					{Rank: 1, Endpoint: "tcp://127.0.0.1:5558", Topic: "t"},
				},
			},
		},
		"SGLang without events": {
			runtime: SGLang,
			pages:   map[string]string{"/v1/models": oneModel, "/server_info": `{"page_size":1,"kv_events":null}`},
			want:    Discovery{Models: []Model{{ID: "m"}}, BlockSize: 1},
		},
		"TensorRT-LLM": {
			runtime: TensorRTLLM,
			pages:   map[string]string{"/v1/models": oneModel},
			want:    Discovery{Models: []Model{{ID: "m"}}},
		},
		"no list of models":       {pages: nil, wantErr: "status 404"},
		"an empty list of models": {pages: map[string]string{"/v1/models": `{"data":[{"id":""}]}`}, wantErr: "lists no model"},
		"a list that is no JSON":  {pages: map[string]string{"/v1/models": `<html>`}, wantErr: "no valid JSON at byte 1"},
		"a list of another shape": {pages: map[string]string{"/v1/models": `{"data":[{"id":5}]}`}, wantErr: `field "data.id": string expected`},
		"a list without end":      {pages: map[string]string{"/v1/models": strings.Repeat(" ", maxJSONBytes+1)}, wantErr: "too large"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := serve(t, tc.pages)
			runtime := tc.runtime
			if runtime == "" {
				runtime = VLLM
			}
			got, err := Discover(t.Context(), s.Client(), s.URL, runtime)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDiscoverURL(t *testing.T) {
	for _, bad := range []string{"", "127.0.0.1:8000", "ftp://h", "http://", "http://h:port"} {
		if _, err := Discover(t.Context(), http.DefaultClient, bad, VLLM); err == nil || !strings.Contains(err.Error(), "http://host:port expected") {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

func TestBaseModel(t *testing.T) {
	d := Discovery{Models: []Model{{ID: "sql", Parent: "m"}, {ID: "m"}, {ID: "alias"}}}
	if got := d.BaseModel(); got != "m" {
		t.Errorf("got %q, want m", got)
	}
	if got := (Discovery{}).BaseModel(); got != "" {
		t.Errorf("got %q of nothing", got)
	}
}

func TestScrapeFails(t *testing.T) {
	tests := map[string]struct {
		page, wantErr string
	}{
		"no metrics":           {"<html>secret</html>", "not in the Prometheus text format"},
		"a page without end":   {strings.Repeat("# x\n", maxMetricsBytes/4+1), "too large"},
		"a line without end":   {strings.Repeat("x", maxMetricsBytes+1), "too large"},
		"a value that is none": {"a b\n", "not in the Prometheus text format"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := serve(t, map[string]string{"/metrics": tc.page})
			_, err := Scrape(t.Context(), s.Client(), s.URL+"/metrics")
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %q", err, tc.wantErr)
			}
		})
	}
	s := serve(t, nil)
	var status *StatusError
	if _, err := Scrape(t.Context(), s.Client(), s.URL); !errors.As(err, &status) || status.Code != http.StatusNotFound {
		t.Errorf("got %v, want a 404", err)
	}
}

func FuzzParseFamilies(f *testing.F) {
	f.Add([]byte(vllmIdle))
	f.Add([]byte("# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		families, err := ParseFamilies(strings.NewReader(string(page)))
		if err != nil {
			return
		}
		for _, runtime := range []string{VLLM, SGLang, TensorRTLLM} {
			_, _ = NewLoadMeter(runtime, LoadOptions{HasRank: true}).Read(families)
		}
		families.blockSize("vllm:cache_config_info")
	})
}
