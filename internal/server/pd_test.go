// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// load is a report of nothing but a replica's pressure.
func load(replica string, pressure float32) *pb.CacheStateUpdate {
	return &pb.CacheStateUpdate{
		ReplicaId: replica, ModelId: "m", TenantId: "team", Stats: &pb.ReplicaStats{Pressure: pressure, HitRate: .01},
	}
}

// split is a server with two prefill and two decode replicas. Decode replicas
// hold the blocks they received, p2 holds something else.
func split(t *testing.T, change ...func(*server.Options)) *harness {
	h := start(t, change...)
	h.server.SetExtensions(&policy.ExtensionSet{Topologies: []policy.PDTopology{
		{Namespace: "team", Name: "pd", Model: "m", Prefill: []string{"p2", "p1"}, Decode: []string{"d1", "d2"}, Transport: policy.TransportNIXL},
		{Namespace: "team", Name: "any-model", Prefill: []string{"p2"}, Decode: []string{"d9", "d8"}},
		{Namespace: "team", Name: "decode-only", Model: "m", Decode: []string{"d2"}},
		{Namespace: "other", Name: "pd", Model: "m", Prefill: []string{"x"}, Decode: []string{"y"}},
	}})
	for _, replica := range []string{"p1", "d1", "d2"} {
		update := h.update(replica, "ab", 64)
		update.Prefixes[0].PrefixHash, update.Prefixes[0].TokenCount = hash('b'), 128
		h.report(update)
	}
	h.report(h.update("p2", "x", 64), load("d1", .9), load("d2", .4))
	return h
}

func ask(ref string) *pb.LookupPDRouteRequest {
	return &pb.LookupPDRouteRequest{
		ModelId: "m", TenantId: "team", PrefixHash: hash('b'), PrefixTokenCount: 128, PdTopologyRef: ref,
	}
}

func TestLookupPDRoute(t *testing.T) {
	changed := func(change func(*pb.LookupPDRouteRequest)) *pb.LookupPDRouteRequest {
		request := ask("team/pd")
		change(request)
		return request
	}
	for name, tc := range map[string]struct {
		prepare func(*harness)
		request *pb.LookupPDRouteRequest
		want    *pb.LookupPDRouteResponse
	}{
		"the prefill replica that holds the prefix, the decode replica with less pressure": {
			nil, ask("team/pd"),
			&pb.LookupPDRouteResponse{PrefillReplicaId: "p1", DecodeReplicaId: "d2", TransportHint: "NIXL", ReasonCode: "PREFIX_MATCH"},
		},
		"a miss falls back among prefill replicas": {
			nil, changed(func(r *pb.LookupPDRouteRequest) { r.PdTopologyRef, r.PrefixHash = "team/any-model", hash('z') }),
			&pb.LookupPDRouteResponse{PrefillReplicaId: "p2", DecodeReplicaId: "d8", ReasonCode: "AFFINITY_HINT"},
		},
		"no prefill replicas": {
			nil, ask("team/decode-only"),
			&pb.LookupPDRouteResponse{DecodeReplicaId: "d2", ReasonCode: "NO_HINT"},
		},
		"decode replicas of equal pressure go by id": {
			func(h *harness) { h.report(load("d1", .4)) }, ask("team/pd"),
			&pb.LookupPDRouteResponse{PrefillReplicaId: "p1", DecodeReplicaId: "d1", TransportHint: "NIXL", ReasonCode: "PREFIX_MATCH"},
		},
		"silent decode replicas are left out": {
			func(h *harness) {
				h.report(load("d2", .4), load("d2", .4))
				h.clock.Advance(61 * time.Second)
			},
			ask("team/pd"),
			&pb.LookupPDRouteResponse{PrefillReplicaId: "p1", DecodeReplicaId: "d1", TransportHint: "NIXL", ReasonCode: "PREFIX_MATCH"},
		},
		"a stale pressure counts as none": {
			func(h *harness) {
				h.clock.Advance(31 * time.Minute)
				h.report(h.update("p1", "b", 128), load("d2", .4))
			},
			ask("team/pd"),
			&pb.LookupPDRouteResponse{PrefillReplicaId: "p1", DecodeReplicaId: "d1", TransportHint: "NIXL", ReasonCode: "PREFIX_MATCH"},
		},
		"keys under two schemes": {
			func(h *harness) {
				update := h.update("p1", "a", 64)
				update.HashScheme = "sglang"
				h.report(update)
			},
			ask("team/pd"),
			&pb.LookupPDRouteResponse{DecodeReplicaId: "d2", TransportHint: "NIXL", ReasonCode: "NO_HINT"},
		},
		"keys of no model": {
			nil, changed(func(r *pb.LookupPDRouteRequest) { r.ModelId, r.PdTopologyRef = "other", "team/any-model" }),
			&pb.LookupPDRouteResponse{DecodeReplicaId: "d8", ReasonCode: "UNKNOWN_MODEL"},
		},
		"a policy that requires chains": {
			func(h *harness) {
				on := true
				h.server.SetPolicies([]policy.Declared{{Namespace: "team", RequireChain: &on}}, nil)
			},
			ask("team/pd"),
			&pb.LookupPDRouteResponse{DecodeReplicaId: "d2", TransportHint: "NIXL", ReasonCode: "POLICY_REQUIRES_CHAIN"},
		},
		"no reference":                    {nil, ask(""), &pb.LookupPDRouteResponse{ReasonCode: "NO_HINT"}},
		"a reference nobody delivered":    {nil, ask("team/none"), &pb.LookupPDRouteResponse{ReasonCode: "UNKNOWN_PD_TOPOLOGY"}},
		"a reference without a namespace": {nil, ask("pd"), &pb.LookupPDRouteResponse{ReasonCode: "UNKNOWN_PD_TOPOLOGY"}},
		"another tenant's topology":       {nil, ask("other/pd"), &pb.LookupPDRouteResponse{ReasonCode: "UNKNOWN_PD_TOPOLOGY"}},
		"another model's topology": {
			nil, changed(func(r *pb.LookupPDRouteRequest) { r.ModelId = "n" }), &pb.LookupPDRouteResponse{ReasonCode: "UNKNOWN_PD_TOPOLOGY"},
		},
		"the reserved tenant": {
			nil, changed(func(r *pb.LookupPDRouteRequest) { r.TenantId = policy.ReservedTenant }), &pb.LookupPDRouteResponse{ReasonCode: "NO_HINT"},
		},
		"no tenant": {
			nil, changed(func(r *pb.LookupPDRouteRequest) { r.TenantId = "" }), &pb.LookupPDRouteResponse{ReasonCode: "NO_HINT"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := split(t)
			if tc.prepare != nil {
				tc.prepare(h)
			}
			got, err := h.client.LookupPDRoute(h.ctx(), tc.request)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

// A prefix on every replica singles nobody out for LookupRoute, yet the
// prefill replica that has it is the only one to offer.
func TestPrefillIsRankedAmongPrefillReplicas(t *testing.T) {
	h := split(t)
	h.report(h.update("p2", "b", 128))
	h.server.SetExtensions(&policy.ExtensionSet{Topologies: []policy.PDTopology{
		{Namespace: "team", Name: "one", Prefill: []string{"p1"}},
	}})
	h.wantAnswer(&pb.LookupRouteRequest{
		ModelId: "m", TenantId: "team", HashScheme: "vllm", PrefixHash: hash('b'), PrefixTokenCount: 128,
	}, "AFFINITY_HINT p2 0/0")
	got, err := h.client.LookupPDRoute(h.ctx(), ask("team/one"))
	if err != nil || got.GetPrefillReplicaId() != "p1" || got.GetReasonCode() != "PREFIX_MATCH" {
		t.Errorf("got %v, %v", got, err)
	}
}
