// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// Values that must not reach the metrics page in any form.
const (
	canaryPrompt = "canary-prompt-4711"
	canaryBearer = "canary-bearer-4711"
	canaryHeader = "canary-header-4711"
	canaryPath   = "canary-path-4711"
)

// Callers that make up names, paths, methods and headers add a bounded number
// of series, and nothing of what must stay secret.
func TestHostileCallersAddFewSeries(t *testing.T) {
	f := startBusyFleet(t)
	index := f.dialIndex()
	f.attack(index, 0, 200)
	before := f.seriesByName()
	f.attack(index, 200, 1200)
	after := f.seriesByName()
	for name, series := range after {
		for one := range series {
			if !before[name][one] && !strings.HasPrefix(name, "go_") {
				t.Errorf("a thousand more hostile calls added %s%s", name, one)
			}
		}
	}
	_, page := f.get("/metrics")
	for _, canary := range []string{canaryPrompt, canaryBearer, canaryHeader, canaryPath} {
		if strings.Contains(page, canary) {
			t.Errorf("the metrics page holds %q", canary)
		}
	}
	for line := range strings.Lines(page) {
		if strings.Contains(line, strings.Repeat("x", 129)) {
			t.Errorf("a series holds more than 128 bytes of a caller's text: %.80s", line)
		}
	}
	if !strings.Contains(page, `model="__other__"`) {
		t.Error("no lookup was counted under the shared name")
	}
}

// dialIndex is a client of the index contract.
func (f *fleet) dialIndex() pb.InferenceCacheClient {
	f.t.Helper()
	conn, err := grpc.NewClient(f.up.Addresses().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	return pb.NewInferenceCacheClient(conn)
}

// attack makes hostile calls number first to last.
func (f *fleet) attack(index pb.InferenceCacheClient, first, last int) {
	f.t.Helper()
	ctx := context.WithoutCancel(f.t.Context())
	for i := first; i < last; i++ {
		name := fmt.Sprintf("hostile-%d-%s", i, strings.Repeat("x", i%200))
		_, err := index.LookupRoute(ctx, &pb.LookupRouteRequest{
			ModelId: name, TenantId: name, HashScheme: name, AdapterId: name, PrefixHash: []byte(canaryPrompt), PrefixTokenCount: 64,
		})
		if err != nil {
			f.t.Fatal(err)
		}
		if i%10 == 0 {
			f.attackGateway(name, i)
		}
	}
}

func (f *fleet) attackGateway(name string, i int) {
	f.t.Helper()
	methods := []string{http.MethodPost, http.MethodGet, http.MethodDelete, "CANARY"}
	paths := []string{"/v1/completions", "/v1/chat/completions", "/v1/models/" + canaryPath + name, "/" + canaryPath + name}
	body := fmt.Sprintf(`{"model":%q,"prompt":%q,%q:1}`, name, canaryPrompt, name)
	for at, path := range paths {
		request, err := http.NewRequest(methods[(i/10+at)%len(methods)], "http://"+f.up.Addresses().Gateway+path, strings.NewReader(body))
		if err != nil {
			f.t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+canaryBearer)
		request.Header.Set("X-Inference-Cache-"+canaryHeader, name)
		request.Header.Set("X-Request-Id", canaryHeader+name)
		response, err := f.client.Do(request)
		if err != nil {
			f.t.Fatal(err)
		}
		_ = response.Body.Close() // whatever it says
	}
}

// seriesByName returns the label sets of each family.
func (f *fleet) seriesByName() map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for _, family := range f.gather() {
		sets := map[string]bool{}
		for _, series := range family.GetMetric() {
			var labels []string
			for _, label := range series.GetLabel() {
				labels = append(labels, label.GetName()+"="+label.GetValue())
			}
			slices.Sort(labels)
			sets[fmt.Sprint(labels)] = true
		}
		all[family.GetName()] = sets
	}
	return all
}
