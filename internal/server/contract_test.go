// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

var rewrite = flag.Bool("rewrite", false, "write golden files and script outputs anew")

// golden compares text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// TestContractDescriptor pins every name, number and type of the contract.
func TestContractDescriptor(t *testing.T) {
	var text strings.Builder
	file := pb.File_inferencecache_v1alpha1_inferencecache_proto
	fmt.Fprintf(&text, "package %s\n", file.Package())
	for i := range file.Services().Len() {
		describeService(&text, file.Services().Get(i))
	}
	for i := range file.Enums().Len() {
		describeEnum(&text, file.Enums().Get(i))
	}
	for i := range file.Messages().Len() {
		describeMessage(&text, file.Messages().Get(i))
	}
	golden(t, "contract.txt", text.String())
}

func describeService(text *strings.Builder, service protoreflect.ServiceDescriptor) {
	fmt.Fprintf(text, "service %s\n", service.FullName())
	stream := map[bool]string{true: "stream "}
	for i := range service.Methods().Len() {
		m := service.Methods().Get(i)
		fmt.Fprintf(text, "  %s (%s%s) returns (%s%s)\n", m.Name(),
			stream[m.IsStreamingClient()], m.Input().Name(), stream[m.IsStreamingServer()], m.Output().Name())
	}
}

func describeEnum(text *strings.Builder, enum protoreflect.EnumDescriptor) {
	fmt.Fprintf(text, "enum %s\n", enum.FullName())
	for i := range enum.Values().Len() {
		fmt.Fprintf(text, "  %d %s\n", enum.Values().Get(i).Number(), enum.Values().Get(i).Name())
	}
}

func describeMessage(text *strings.Builder, message protoreflect.MessageDescriptor) {
	if message.IsMapEntry() {
		return
	}
	fmt.Fprintf(text, "message %s\n", message.FullName())
	for i := range message.Fields().Len() {
		f := message.Fields().Get(i)
		fmt.Fprintf(text, "  %d %s %s\n", f.Number(), f.Name(), fieldType(f))
	}
	for i := range message.Enums().Len() {
		describeEnum(text, message.Enums().Get(i))
	}
	for i := range message.Messages().Len() {
		describeMessage(text, message.Messages().Get(i))
	}
}

func fieldType(f protoreflect.FieldDescriptor) string {
	if f.IsMap() {
		return fmt.Sprintf("map<%s, %s>", f.MapKey().Kind(), f.MapValue().Kind())
	}
	kind := f.Kind().String()
	if f.Message() != nil {
		kind = string(f.Message().Name())
	}
	if f.Enum() != nil {
		kind = string(f.Enum().FullName().Name())
	}
	if f.IsList() {
		kind = "repeated " + kind
	}
	return kind
}

func TestGetCacheState(t *testing.T) {
	h := start(t)
	stats := &pb.ReplicaStats{
		ReplicaId: "not trusted", CacheMemoryBytes: 7, HitRate: .5, Pressure: .25, ClientVersion: "v1", T2HitTokens: 3, T2QueryTokens: 4,
	}
	for _, replica := range []string{"b", "a"} {
		update := h.update(replica, "abcd", 64)
		update.Stats = stats
		h.report(update)
	}
	h.report(h.update("without stats", "xy", 64))
	reserved := h.update("p", "z", 64)
	reserved.TenantId = policy.ReservedTenant
	if ack := h.report(reserved); !ack.GetAccepted() {
		t.Errorf("report to the reserved tenant: %v", ack)
	}

	row := func(replica string) *pb.ReplicaStats {
		return &pb.ReplicaStats{
			ReplicaId: replica, CacheMemoryBytes: 7, HitRate: .5, Pressure: .25, ClientVersion: "v1", T2HitTokens: 3, T2QueryTokens: 4,
		}
	}
	for name, tc := range map[string]struct {
		tenant, model string
		want          *pb.GetCacheStateResponse
	}{
		"known": {"team", "m", &pb.GetCacheStateResponse{
			Replicas: []*pb.ReplicaStats{row("a"), row("b")}, Summary: &pb.CacheSummary{TotalPrefixes: 6},
		}},
		"unknown":         {"team", "x", &pb.GetCacheStateResponse{Summary: &pb.CacheSummary{}}},
		"reserved tenant": {policy.ReservedTenant, "m", &pb.GetCacheStateResponse{Summary: &pb.CacheSummary{}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := h.client.GetCacheState(h.ctx(), &pb.GetCacheStateRequest{TenantId: tc.tenant, ModelId: tc.model})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAnswersWithoutTemplatesAndTopologies is how a server answers that was
// never given any: as if it knew of neither.
func TestAnswersWithoutTemplatesAndTopologies(t *testing.T) {
	h := start(t)
	rendered, err := h.client.RenderTemplate(h.ctx(), &pb.RenderTemplateRequest{TemplateRef: "team/x", TenantId: "team"})
	if diff := cmp.Diff(&pb.RenderTemplateResponse{ReasonCode: "OK"}, rendered, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("RenderTemplate: %v\n%s", err, diff)
	}
	route, err := h.client.LookupPDRoute(h.ctx(), &pb.LookupPDRouteRequest{TenantId: "team", PdTopologyRef: "team/x"})
	if diff := cmp.Diff(&pb.LookupPDRouteResponse{ReasonCode: "NO_HINT"}, route, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("LookupPDRoute: %v\n%s", err, diff)
	}
}

func TestLookupRouteAnswerOnTheWire(t *testing.T) {
	h := start(t, func(o *server.Options) {
		o.Tokenizer = tokenizerFunc(func(context.Context) ([]uint32, error) { return sequence(1, 40), nil })
	})
	update := tokenUpdate("w", "lora", sequence(1, 32), 16)
	update.Prefixes[0].Tier = pb.CacheTier_CACHE_TIER_T2
	h.report(update)
	h.server.SetPolicies([]policy.Declared{{Namespace: "team"}}, nil)
	request := &pb.LookupRouteRequest{TenantId: "team", ModelId: "m", HashScheme: "vllm", AdapterId: "lora", PromptText: "hi"}
	want := &pb.LookupRouteResponse{
		ReplicaScores: []*pb.ReplicaScore{{
			ReplicaId: "w", Score: 32, MatchedTokens: 32, EstimatedCacheHitProb: 1, Tier: pb.CacheTier_CACHE_TIER_T2,
		}},
		ReasonCode: "PREFIX_MATCH", AdapterId: "lora", TokenIds: sequence(1, 40),
	}
	if diff := cmp.Diff(want, h.lookup(request), protocmp.Transform()); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	inProcess, err := h.server.LookupRoute(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, inProcess, protocmp.Transform()); diff != "" {
		t.Errorf("answer in process (-want +got):\n%s", diff)
	}
}

// TestScripts runs testdata/*.script: commands, a line of dashes, the expected
// output, an empty line. -rewrite replaces the output.
//
//	report REPLICA LETTERS [block=64] [age=1m] [tier=2] [adapter=x] [tenant=t] [model=m] [scheme=s]
//	exact REPLICA LETTER tokens=100 [...]
//	stats REPLICA [hit=.5] [pressure=.25] [age=1m]
//	evict REPLICA LETTER, clear REPLICA
//	policy [matched=64] [prefix=0] [floor=0.1] [hot=false] [affinity=false] [chain=true]
//	advance 30s, sweep
//	lookup chain=LETTERS|exact=LETTER|tokens=N [block=64] [count=100] [ttft=50] [adapter=x] [...]
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.script")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".script"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{harness: start(t)}
	blocks := strings.Split(strings.TrimSpace(string(text)), "\n\n")
	for i, block := range blocks {
		commands, _, _ := strings.Cut(block, "\n----")
		var out strings.Builder
		for line := range strings.Lines(commands) {
			line = strings.TrimSpace(line)
			if line != "" && !strings.HasPrefix(line, "#") {
				out.WriteString(s.run(line))
			}
		}
		blocks[i] = commands
		if out.Len() > 0 {
			blocks[i] += "\n----\n" + strings.TrimSpace(out.String())
		}
	}
	golden(t, filepath.Base(file), strings.Join(blocks, "\n\n")+"\n")
}
