// SPDX-License-Identifier: Apache-2.0

//go:build scale

package scale

import (
	"encoding/binary"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inferencecache/inference-cache/internal/webhook"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// register has the API server ask the controller on this machine.
func (b *bed) register(t *testing.T, port string) {
	t.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: installNamespace, Name: webhook.ServiceName}}
	service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}
	must(t, b.Client.Create(t.Context(), service))
	n, err := strconv.Atoi(port)
	must(t, err)
	at := int32(n)
	registered := webhook.Registration(webhook.RegistrationOptions{Namespace: installNamespace})
	for i := range registered.Mutating.Webhooks {
		registered.Mutating.Webhooks[i].ClientConfig.Service.Port = &at
	}
	for i := range registered.Validating.Webhooks {
		registered.Validating.Webhooks[i].ClientConfig.Service.Port = &at
	}
	must(t, b.Client.Create(t.Context(), registered.Mutating))
	must(t, b.Client.Create(t.Context(), registered.Validating))
}

// reportEngines has every engine report a block that it has not had.
func (m *measurement) reportEngines(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient(m.server.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	stream, err := pb.NewInferenceCacheClient(conn).ReportCacheState(t.Context())
	must(t, err)
	block := uint64(time.Now().UnixNano()) //nolint:gosec // an identity
	for i := range engines {
		namespace, _, _ := engineOf(i)
		must(t, stream.Send(&pb.CacheStateUpdate{
			TenantId: space(namespace), ModelId: "m", HashScheme: "vllm", ReplicaId: engineName(i),
			Prefixes: []*pb.PrefixEntry{{PrefixHash: binary.BigEndian.AppendUint64(nil, block+uint64(i)), TokenCount: 128}},
			Stats:    &pb.ReplicaStats{CacheMemoryBytes: 1 << 30, HitRate: 0.5, Pressure: 0.5},
		}))
	}
	ack, err := stream.CloseAndRecv()
	must(t, err)
	if ack.GetReasonCode() != "" {
		t.Fatalf("the server refuses a report: %v", ack)
	}
}
