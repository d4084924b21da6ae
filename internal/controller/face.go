// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/inferencecache/inference-cache/internal/credential"
	"github.com/inferencecache/inference-cache/internal/policy"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// DefaultLookupTokenFile is where a pod finds its token for lookups.
const DefaultLookupTokenFile = "/var/run/secrets/inferencecache.io/lookup-token/token"

// noHint is the only answer to a lookup of the reserved tenant.
const noHint = "NO_HINT"

// GRPCFace tests servers over gRPC, each time on a new connection: with the
// TLS and the token that other clients use.
type GRPCFace struct {
	// Address is host:port of the servers' gRPC.
	Address string
	// EachServer keeps only the port of Address and takes the host from each
	// server; default false.
	EachServer bool
	// CAFile and ServerName are those of credential.Options; default no TLS.
	CAFile, ServerName string
	// Roots are the authorities where no CAFile is given; default none.
	Roots credential.Roots
	// TokenFile is shown if it exists, over TLS or loopback only; default
	// none.
	TokenFile string
	// Logger is told of credentials that cannot be used; default none.
	Logger *slog.Logger
}

var _ Face = (*GRPCFace)(nil)

// Check asks for the health and looks up. It ends with its context.
func (f *GRPCFace) Check(ctx context.Context, server Server, model, scheme string) error {
	connection, err := f.dial(server)
	if err != nil {
		return err
	}
	defer connection.Close()
	health, err := healthpb.NewHealthClient(connection).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return fmt.Errorf("health: %w", err)
	}
	if health.Status != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("health is %s", health.Status)
	}
	answer, err := pb.NewInferenceCacheClient(connection).LookupRoute(ctx, &pb.LookupRouteRequest{
		TenantId: policy.ReservedTenant, ModelId: model, HashScheme: scheme,
	})
	if err != nil {
		return fmt.Errorf("lookup: %w", err)
	}
	if got := answer.GetReasonCode(); got != noHint {
		return fmt.Errorf("lookup: the reserved tenant got %.64q, expected %s", got, noHint)
	}
	return nil
}

func (f *GRPCFace) dial(server Server) (*grpc.ClientConn, error) {
	host, port, err := net.SplitHostPort(f.Address)
	if err != nil {
		return nil, fmt.Errorf("gRPC address of the servers: %w", err)
	}
	name, target := host, f.Address
	if f.EachServer {
		if host, _, err = net.SplitHostPort(server.Address); err != nil {
			return nil, fmt.Errorf("address of server %s: %w", server.Name, err)
		}
		target = net.JoinHostPort(host, port)
	}
	options := credential.Options{CAFile: f.CAFile, Roots: f.Roots, ServerName: f.ServerName, TokenFile: f.TokenFile, Logger: f.Logger}
	if (f.CAFile != "" || f.Roots != nil) && f.ServerName == "" {
		options.ServerName = name
	}
	if _, err := os.Stat(f.TokenFile); errors.Is(err, fs.ErrNotExist) {
		options.TokenFile = ""
	}
	client, err := credential.Open(options)
	if err == nil && client.Check(host) != nil {
		options.TokenFile = "" // never in the open
		client, err = credential.Open(options)
	}
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("dns:///"+target, client.DialOptions(host)...)
}
