// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const twoRanks = `{"timestamp":1.5,"version":"0.5","loads":[
	{"dp_rank":0,"num_waiting_reqs":1,"num_waiting_uncached_tokens":700,"token_usage":0.25},
	{"dp_rank":1,"num_waiting_reqs":2,"num_waiting_uncached_tokens":300,"token_usage":0.75}]}`

func TestLoads(t *testing.T) {
	rank := func(n int) *int { return &n }
	cases := map[string]struct {
		answer  string
		rank    *int
		want    ReportedLoad
		wantErr bool
	}{
		"all ranks":         {answer: twoRanks, want: ReportedLoad{1000, 0.75}},
		"one rank":          {answer: twoRanks, rank: rank(0), want: ReportedLoad{700, 0.25}},
		"a rank it has not": {answer: twoRanks, rank: rank(2), wantErr: true},
		"no ranks":          {answer: `{"loads":[]}`, wantErr: true},
		"not JSON":          {answer: `<html>`, wantErr: true},
		"numbers out of all bounds": {
			answer: `{"loads":[{"num_waiting_uncached_tokens":-5,"token_usage":7},{"num_waiting_uncached_tokens":1e300}]}`,
			want:   ReportedLoad{1<<31 - 1, 1},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v1/loads" || r.URL.Query().Get("include") != "core" {
					http.NotFound(w, r)
					return
				}
				_, _ = io.WriteString(w, tc.answer)
			}))
			defer server.Close()
			got, err := Loads(t.Context(), server.Client(), server.URL, tc.rank)
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("%+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
	t.Run("an engine without the endpoint", func(t *testing.T) {
		server := httptest.NewServer(http.NotFoundHandler())
		defer server.Close()
		_, err := Loads(t.Context(), server.Client(), server.URL, nil)
		var status *StatusError
		if !errors.As(err, &status) || status.Code != http.StatusNotFound {
			t.Errorf("%v", err)
		}
	})
}

func TestAsleep(t *testing.T) {
	state := func(awake, level1, level2 string) string {
		return "# TYPE vllm:engine_sleep_state gauge\n" +
			`vllm:engine_sleep_state{sleep_state="awake"} ` + awake + "\n" +
			`vllm:engine_sleep_state{sleep_state="weights_offloaded"} ` + level1 + "\n" +
			`vllm:engine_sleep_state{sleep_state="discard_all"} ` + level2 + "\n"
	}
	cases := map[string]struct {
		page          string
		asleep, known bool
	}{
		"awake":              {page: state("1", "0", "0"), known: true},
		"asleep":             {page: state("0", "1", "0"), asleep: true, known: true},
		"asleep more deeply": {page: state("0", "0", "1"), asleep: true, known: true},
		"not told":           {page: "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			families, err := ParseFamilies(strings.NewReader(tc.page))
			if err != nil {
				t.Fatal(err)
			}
			if asleep, known := families.Asleep(); asleep != tc.asleep || known != tc.known {
				t.Errorf("asleep %v, known %v, want %v, %v", asleep, known, tc.asleep, tc.known)
			}
		})
	}
}

func FuzzDecodeLoads(f *testing.F) {
	f.Add([]byte(twoRanks), 1)
	f.Add([]byte(`{"loads":[{"dp_rank":0}]}`), 0)
	f.Fuzz(func(t *testing.T, data []byte, rank int) {
		load, err := decodeLoads(data, &rank)
		if err == nil && (load.WaitingTokens < 0 || load.Usage < 0 || load.Usage > 1) {
			t.Errorf("%+v", load)
		}
	})
}
