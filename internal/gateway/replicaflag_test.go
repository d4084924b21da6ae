// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/gateway"
)

func TestParseReplica(t *testing.T) {
	two := 2
	tests := map[string]struct {
		text      string
		want      gateway.Replica
		wantError string
	}{
		"id and URL": {text: "pod-a=http://10.0.0.1:8000", want: gateway.Replica{ID: "pod-a", URL: "http://10.0.0.1:8000"}},
		"everything": {
			text: "p#2=http://h:1,runtime=sglang,rank=2,tenant=ns,model=a,model=b,max-inflight=9",
			want: gateway.Replica{ID: "p#2", URL: "http://h:1", Runtime: "sglang", Rank: &two, Tenant: "ns",
				Models: []string{"a", "b"}, MaxInflight: 9},
		},
		"no id":             {text: "http://h:1", wantError: "expected ID=URL"},
		"an unknown option": {text: "a=http://h:1,colour=red", wantError: `unknown option "colour"`},
		"no value":          {text: "a=http://h:1,rank=", wantError: "expected KEY=VALUE"},
		"a negative rank":   {text: "a=http://h:1,rank=-1", wantError: "expected a number from 0"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := gateway.ParseReplica(tc.text)
			if tc.wantError == "" && err != nil || tc.wantError != "" && (err == nil || !strings.Contains(err.Error(), tc.wantError)) {
				t.Fatalf("error %v, want %q", err, tc.wantError)
			}
			if diff := cmp.Diff(tc.want, got); tc.wantError == "" && diff != "" {
				t.Errorf("replica (-want +got):\n%s", diff)
			}
		})
	}
}
