// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/control"
	"github.com/inferencecache/inference-cache/internal/probe"
)

// startProbing answers every probe with a result and notes the requests.
func startProbing(t *testing.T, result probe.Result, err error) (*harness, *[]probe.Request) {
	requests := new([]probe.Request)
	return start(t, func(o *control.Options) {
		o.Prober = proberFunc(func(_ context.Context, r probe.Request) (probe.Result, error) {
			*requests = append(*requests, r)
			return result, err
		})
	}), requests
}

func TestProbeAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		result probe.Result
		want   string
	}{
		"all is well": {
			probe.Result{Ingest: probe.OK, Routing: probe.OK, Tier2: probe.Skipped},
			`{"backend":"team-a/cb","ingest":"ok","routing":"ok","t2":"skipped"}`,
		},
		"a failure": {
			probe.Result{
				Ingest: probe.Failed, Routing: probe.Skipped, Tier2: probe.Skipped,
				Problems: []probe.Problem{{Stage: probe.Ingest, Message: "lost"}, {Stage: probe.Tier2, Message: "put failed: full"}},
			},
			`{"backend":"team-a/cb","ingest":"failed","routing":"skipped","t2":"skipped",` +
				`"errors":[{"stage":"ingest","message":"lost"},{"stage":"t2","message":"put failed: full"}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := startProbing(t, tc.result, nil)
			response := h.call("POST", "/probe", aProbe)
			if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%d %s", response.StatusCode, response.Header.Get("Content-Type"))
			}
			if diff := cmp.Diff(tc.want, textOf(t, response)); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProbeRequest(t *testing.T) {
	plain := probe.Request{Backend: "team-a/cb", Model: "m", Scheme: "vllm"}
	typed := plain
	typed.BackendType = "LMCache"
	const most = 4 << 10
	for name, tc := range map[string]struct {
		body string
		want probe.Request // zero: refused
		text string
	}{
		"what is required":        {aProbe, plain, ""},
		"everything":              {`{"backend":"team-a/cb","model":"m","hashScheme":"vllm","backendType":"LMCache"}`, typed, ""},
		"null for what is not":    {`{"backend":"team-a/cb","model":"m","hashScheme":"vllm","backendType":null}`, plain, ""},
		"white space":             {" " + aProbe + "\n", plain, ""},
		"4 KiB":                   {aProbe + strings.Repeat(" ", most-len(aProbe)), plain, ""},
		"more than 4 KiB":         {aProbe + strings.Repeat(" ", most-len(aProbe)+1), probe.Request{}, "http: request body too large"},
		"nothing":                 {"", probe.Request{}, "invalid JSON"},
		"a list":                  {"[]", probe.Request{}, "not a JSON object"},
		"no backend":              {`{"model":"m","hashScheme":"vllm"}`, probe.Request{}, "backend: expected a value"},
		"an empty model":          {`{"backend":"b","model":"","hashScheme":"vllm"}`, probe.Request{}, "model: expected a value"},
		"no scheme":               {`{"backend":"b","model":"m","hashScheme":null}`, probe.Request{}, "hashScheme: expected a value"},
		"a key in another case":   {`{"Backend":"b","model":"m","hashScheme":"vllm"}`, probe.Request{}, `unknown field "Backend"`},
		"an unknown key":          {`{"backend":"b","model":"m","hashScheme":"vllm","tenant":"t"}`, probe.Request{}, `unknown field "tenant"`},
		"a key twice":             {`{"backend":"b","backend":"b"}`, probe.Request{}, "backend: appears twice"},
		"a number":                {`{"backend":1}`, probe.Request{}, "backend: expected a string"},
		"something behind":        {aProbe + "]", probe.Request{}, "invalid JSON"},
		"a second request behind": {aProbe + aProbe, probe.Request{}, "invalid JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			h, requests := startProbing(t, probe.Result{}, nil)
			response := h.call("POST", "/probe", tc.body)
			if tc.want == (probe.Request{}) {
				h.wantAnswer(response, http.StatusBadRequest, "decode probe request: "+tc.text)
				if len(*requests) > 0 {
					t.Error("a refused request was probed")
				}
				return
			}
			if diff := cmp.Diff([]probe.Request{tc.want}, *requests); diff != "" || response.StatusCode != http.StatusOK {
				t.Errorf("%d, probed (-want +got):\n%s", response.StatusCode, diff)
			}
		})
	}
}

func TestProbeEchoesItsBackend(t *testing.T) {
	h, _ := startProbing(t, probe.Result{}, nil)
	var answer struct{ Backend string }
	response := h.call("POST", "/probe", `{"backend":"<\u00e9> & \"b\"","model":"m","hashScheme":"vllm"}`)
	if err := json.Unmarshal([]byte(textOf(t, response)), &answer); err != nil || answer.Backend != `<é> & "b"` {
		t.Errorf("backend %q, %v", answer.Backend, err)
	}
}

func TestProbeWhoseCallerLeft(t *testing.T) {
	h, _ := startProbing(t, probe.Result{}, context.Canceled)
	h.wantAnswer(h.call("POST", "/probe", aProbe), http.StatusServiceUnavailable, "the caller left")
}

func FuzzProbeRequest(f *testing.F) {
	f.Add([]byte(aProbe))
	f.Add([]byte(`{"backend":"\ud800","model":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		h, requests := startProbing(t, probe.Result{}, nil)
		response := h.call("POST", "/probe", string(body))
		switch {
		case response.StatusCode == http.StatusBadRequest && len(*requests) == 0:
		case response.StatusCode == http.StatusOK && len(*requests) == 1:
			if r := (*requests)[0]; r.Backend == "" || r.Model == "" || r.Scheme == "" {
				t.Errorf("probed %v", r)
			}
		default:
			t.Errorf("answer %d after %d probes", response.StatusCode, len(*requests))
		}
	})
}
