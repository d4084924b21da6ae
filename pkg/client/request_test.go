// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/inferencecache/inference-cache/pkg/client"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func TestLookupSendsTheRequest(t *testing.T) {
	chain := client.ChainFromTokens(tokensUpTo(32), 16, "")
	base := func(change func(*client.Request)) client.Request {
		request := client.Request{Tenant: "team-a", Model: "llama", HashScheme: "vllm"}
		change(&request)
		return request
	}
	wire := func(change func(*pb.LookupRouteRequest)) *pb.LookupRouteRequest {
		message := &pb.LookupRouteRequest{TenantId: "team-a", ModelId: "llama", HashScheme: "vllm"}
		change(message)
		return message
	}
	ttft := func(d time.Duration, millis int32) (client.Request, *pb.LookupRouteRequest) {
		return base(func(r *client.Request) { r.TTFT = d }),
			wire(func(m *pb.LookupRouteRequest) { m.Slo = &pb.SLO{TtftMs: millis} })
	}
	type row struct {
		request client.Request
		want    *pb.LookupRouteRequest
	}
	rows := map[string]row{
		"a chain of an adapter": {
			base(func(r *client.Request) { r.Chain, r.Adapter = chain, "sql" }),
			wire(func(m *pb.LookupRouteRequest) {
				m.AdapterId = "sql"
				m.BlockHashes = [][]byte{{0xea, 0x06, 0xfc, 0x71, 0xa5, 0xee, 0x6e, 0x88}, {0xad, 0x01, 0x83, 0x5a, 0x37, 0xdd, 0x29, 0x4c}}
				m.BlockTokenCounts = []int32{16, 16}
			}),
		},
		"an exact prefix": {
			base(func(r *client.Request) { r.PrefixHash, r.PrefixTokens = []byte("p"), 100 }),
			wire(func(m *pb.LookupRouteRequest) { m.PrefixHash, m.PrefixTokenCount = []byte("p"), 100 }),
		},
		"tokens": {
			base(func(r *client.Request) { r.TokenIDs = []uint32{7, 8} }),
			wire(func(m *pb.LookupRouteRequest) { m.TokenIds = []uint32{7, 8} }),
		},
		"text": {
			base(func(r *client.Request) { r.PromptText = "hello" }),
			wire(func(m *pb.LookupRouteRequest) { m.PromptText = "hello" }),
		},
	}
	for name, objective := range map[string]struct {
		ttft   time.Duration
		millis int32
	}{
		"an objective is sent in whole milliseconds":     {199*time.Millisecond + 999*time.Microsecond, 199},
		"an objective below a millisecond stays one":     {time.Microsecond, 1},
		"an objective beyond 32 bits is the largest one": {math.MaxInt64, math.MaxInt32},
	} {
		request, want := ttft(objective.ttft, objective.millis)
		rows[name] = row{request, want}
	}
	for name, tc := range rows {
		t.Run(name, func(t *testing.T) {
			got := make(chan *pb.LookupRouteRequest, 1)
			conn := connect(t, &fakeIndex{lookup: func(_ context.Context, in *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
				got <- in
				return &pb.LookupRouteResponse{}, nil
			}})
			result := client.New(conn, client.Options{Timeout: patient, Logger: silent}).Lookup(t.Context(), tc.request)
			if result.Err != nil {
				t.Fatal(result.Err)
			}
			if diff := cmp.Diff(tc.want, <-got, protocmp.Transform()); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLookupOfARequestWithoutAnAnswer(t *testing.T) {
	long := strings.Repeat("x", 257)
	for name, tc := range map[string]struct {
		change func(*client.Request)
		want   string
	}{
		"no tenant":              {func(r *client.Request) { r.Tenant = "" }, "tenant is empty"},
		"no model":               {func(r *client.Request) { r.Model = "" }, "model is empty"},
		"no hash scheme":         {func(r *client.Request) { r.HashScheme = "" }, "hash scheme is empty"},
		"a tenant too long":      {func(r *client.Request) { r.Tenant = long }, "tenant is longer than 256 bytes"},
		"a model too long":       {func(r *client.Request) { r.Model = long }, "model is longer than 256 bytes"},
		"a hash scheme too long": {func(r *client.Request) { r.HashScheme = long }, "hash scheme is longer than 256 bytes"},
		"an adapter too long":    {func(r *client.Request) { r.Adapter = long }, "adapter is longer than 256 bytes"},
		"a count missing":        {func(r *client.Request) { r.Chain.TokenCounts = r.Chain.TokenCounts[:1] }, "chain has not one token count for each hash"},
	} {
		t.Run(name, func(t *testing.T) {
			var logged logBuffer
			conn := direct(func(context.Context, *pb.LookupRouteRequest, *pb.LookupRouteResponse) error {
				t.Error("the request was sent")
				return nil
			})
			c := client.New(conn, client.Options{Logger: logged.logger()})
			request := question()
			tc.change(&request)
			got := c.Lookup(t.Context(), request)
			if got.Reason != client.InvalidRequest || !errors.Is(got.Err, client.ErrInvalidRequest) || !strings.Contains(got.Err.Error(), tc.want) {
				t.Errorf("reason %s, error %v, want %q", got.Reason, got.Err, tc.want)
			}
			if line := logged.take(); !strings.Contains(line, tc.want) || strings.Contains(line, long) {
				t.Errorf("logged %q", line)
			}
			c.Lookup(t.Context(), request)
			if line := logged.take(); line != "" {
				t.Errorf("logged again: %q", line)
			}
		})
	}
}

func TestParseTTFT(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"200": 200 * time.Millisecond, " 1 ": time.Millisecond, "2147483647": math.MaxInt32 * time.Millisecond,
		"": 0, "0": 0, "-1": 0, "1.5": 0, "200ms": 0, "2147483648": 0, "0x10": 0, "1_000": 0, "+5": 0,
	} {
		if got, ok := client.ParseTTFT(value); got != want || ok != (want > 0) {
			t.Errorf("ParseTTFT(%q) = %s, %v, want %s", value, got, ok, want)
		}
	}
}

func FuzzParseTTFT(f *testing.F) {
	f.Add("200")
	f.Add("99999999999999999999")
	f.Fuzz(func(t *testing.T, value string) {
		ttft, ok := client.ParseTTFT(value)
		inRange := ttft >= time.Millisecond && ttft <= math.MaxInt32*time.Millisecond
		if ok != inRange {
			t.Errorf("ParseTTFT(%q) = %s, %v", value, ttft, ok)
		}
	})
}
