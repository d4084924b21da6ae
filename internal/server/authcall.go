// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/x509"
	"net"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/ingest"
	"github.com/inferencecache/inference-cache/internal/lookup"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// audienceOf returns the audience a method asks for, "" for those open to all.
func audienceOf(fullMethod string) string {
	switch fullMethod {
	case pb.InferenceCache_ReportCacheState_FullMethodName,
		pb.InferenceCache_PublishEvent_FullMethodName,
		pb.CacheSync_Sync_FullMethodName:
		return AudienceIngest
	}
	if strings.HasPrefix(fullMethod, "/"+healthpb.Health_ServiceDesc.ServiceName+"/") {
		return ""
	}
	return AudienceLookup
}

// caller is who makes a call. The zero value shows no credentials.
type caller struct {
	identity auth.Identity
	known    bool
	// asked is a tenant that access was reviewed for, mayRead what came out.
	asked   string
	mayRead bool
}

type callerKey struct{}

// callerOf returns who makes the call of a context. Contexts that belong to no
// remote call are trusted: they come from this process.
func callerOf(ctx context.Context) (who caller, trusted bool) {
	if who, ok := ctx.Value(callerKey{}).(caller); ok {
		return who, false
	}
	_, remote := peer.FromContext(ctx)
	return caller{}, !remote
}

// credential is what a caller shows.
type credential struct {
	// header is the value of the authorization metadata key, if shown.
	header string
	shown  bool
	leaf   *x509.Certificate // verified, or nil
	source string
	// private is set when nobody on the network can read along.
	private bool
}

func credentialOf(ctx context.Context) credential {
	var c credential
	if values := metadata.ValueFromIncomingContext(ctx, "authorization"); len(values) > 0 {
		c.shown = true
		if len(values) == 1 {
			c.header = values[0]
		}
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return c
	}
	c.source, c.private = sourceOf(p.Addr)
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		c.private = true
		if chains := info.State.VerifiedChains; len(chains) > 0 {
			c.leaf = chains[0][0]
		}
	}
	return c
}

// sourceOf returns the host of a peer and whether it is this machine.
func sourceOf(addr net.Addr) (host string, loopback bool) {
	if addr == nil {
		return "", false
	}
	address, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return addr.String(), addr.Network() == "unix"
	}
	return address.Addr().String(), address.Addr().Unmap().IsLoopback()
}

// Refusals of calls.
var (
	errNoCredentials = status.Error(codes.Unauthenticated, "no credentials: expected authorization: Bearer <token>")
	errBadToken      = status.Error(codes.Unauthenticated, "the token is not good here")
	errOpenTransport = status.Error(codes.Unauthenticated, "bearer tokens are taken over TLS or loopback only")
	errBadCert       = status.Error(codes.Unauthenticated, "the client certificate names nobody, or is out of date")
	errNoProducer    = status.Error(codes.Unauthenticated, "the credentials belong to no pod, so nothing may be written with them")
	errNoOperator    = status.Error(codes.PermissionDenied, "the token is for operators, and its bearer is none")
	errCannotTell    = status.Error(codes.Unavailable, "the credentials cannot be checked now")

	errCannotTellAccess = status.Error(codes.Unavailable, "what the caller may read cannot be checked now")
)

// identify returns who shows a credential for an audience.
func (g *callGuard) identify(ctx context.Context, c credential, audience string) (caller, error) {
	who, err := g.judge(ctx, c, audience)
	switch {
	case err != nil:
		return caller{}, err
	case audience == AudienceIngest && who.known && !who.identity.Producer():
		return caller{}, errNoProducer
	}
	return who, nil
}

func (g *callGuard) judge(ctx context.Context, c credential, audience string) (caller, error) {
	switch {
	case c.shown:
		return g.judgeToken(ctx, c, audience)
	case c.leaf != nil:
		identity, ok := auth.CertificateIdentity(c.leaf.URIs)
		if !ok || g.now().After(c.leaf.NotAfter) {
			return caller{}, errBadCert
		}
		return caller{identity: identity, known: true}, nil
	case g.options.Mode == AuthPermissive:
		return caller{}, nil
	}
	return caller{}, errNoCredentials
}

func (g *callGuard) judgeToken(ctx context.Context, c credential, audience string) (caller, error) {
	token, ok := gate.ParseBearer(c.header)
	switch {
	case !ok:
		return caller{}, errBadToken
	case !c.private && !g.options.InsecureTokens:
		return caller{}, errOpenTransport
	}
	identity, verdict := auth.Identity{}, gate.Unauthenticated
	if tokens := g.tokens[audience]; tokens != nil {
		identity, verdict = tokens.Authenticate(ctx, c.source, token)
	}
	if verdict == gate.Unauthenticated && audience == AudienceLookup && g.options.Operators.Claims(token) {
		identity, verdict = g.options.Operators.Authenticate(ctx, c.source, token)
	}
	switch verdict {
	case gate.OK:
		return caller{identity: identity, known: true}, nil
	case gate.Error:
		return caller{}, errCannotTell
	case gate.Forbidden:
		return caller{}, errNoOperator
	default:
		return caller{}, errBadToken
	}
}

// admit identifies the caller of a method and counts what it finds.
func (g *callGuard) admit(ctx context.Context, c credential, audience string) (caller, error) {
	who, err := g.identify(ctx, c, audience)
	switch {
	case err != nil && audience == AudienceIngest && status.Code(err) == codes.Unauthenticated:
		g.denied(ingest.DenyUnauthenticated)
	case err == nil && !who.known:
		g.anonymous.Inc()
	}
	return who, err
}

// unary is a server interceptor.
func (g *callGuard) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	audience := audienceOf(info.FullMethod)
	if audience == "" {
		return next(ctx, request)
	}
	who, err := g.admit(ctx, credentialOf(ctx), audience)
	if err == nil && audience == AudienceLookup {
		err = g.reviewAccess(ctx, &who, request)
	}
	if err != nil {
		if answer := withoutReview(info.FullMethod, err); answer != nil {
			return answer, nil
		}
		return nil, err
	}
	return next(context.WithValue(ctx, callerKey{}, who), request)
}

// withoutReview answers a lookup whose caller cannot be checked now: serving
// goes on without hints.
func withoutReview(method string, err error) any {
	if status.Code(err) != codes.Unavailable {
		return nil
	}
	switch method {
	case pb.InferenceCache_LookupRoute_FullMethodName:
		return &pb.LookupRouteResponse{ReasonCode: string(lookup.NoHint)}
	case pb.InferenceCache_LookupPDRoute_FullMethodName:
		return &pb.LookupPDRouteResponse{ReasonCode: string(lookup.NoHint)}
	}
	return nil
}

// stream is a server interceptor.
func (g *callGuard) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	audience := audienceOf(info.FullMethod)
	if audience == "" {
		return next(server, stream)
	}
	shown := credentialOf(stream.Context())
	who, err := g.admit(stream.Context(), shown, audience)
	if err != nil {
		return err
	}
	return next(server, &guardedStream{
		ServerStream: stream,
		ctx:          context.WithValue(stream.Context(), callerKey{}, who),
		guard:        g,
		audience:     audience,
		who:          who,
		credential:   shown,
		reviewAt:     g.now().Add(g.options.ReviewInterval),
	})
}

// guardedStream looks at the caller's credentials again from time to time,
// before a message takes effect or is sent. Fields are owned by the receiving
// goroutine of streams that write, and by the sending one of those that read
// once they have their request.
type guardedStream struct {
	grpc.ServerStream
	ctx      context.Context
	guard    *callGuard
	audience string

	who        caller
	credential credential
	reviewAt   time.Time
	hello      *pb.SyncHello // of a sync stream, once received
}

// Context implements grpc.ServerStream.
func (s *guardedStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s *guardedStream) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	if frame, ok := message.(*pb.PublisherFrame); ok {
		if err := s.look(frame); err != nil {
			return err
		}
	}
	if s.guard.now().Before(s.reviewAt) {
		return nil
	}
	return s.review()
}

// SendMsg implements grpc.ServerStream.
func (s *guardedStream) SendMsg(message any) error {
	if s.audience == AudienceLookup && !s.guard.now().Before(s.reviewAt) {
		if err := s.review(); err != nil {
			return err
		}
	}
	return s.ServerStream.SendMsg(message)
}

// look notes what a frame says of its sender.
func (s *guardedStream) look(frame *pb.PublisherFrame) error {
	switch f := frame.GetFrame().(type) {
	case *pb.PublisherFrame_Hello:
		if s.hello == nil {
			s.hello = f.Hello
		}
		return nil // Authorize decides
	case *pb.PublisherFrame_TokenRenewal:
		if !s.who.known {
			return nil
		}
		s.credential.header, s.credential.shown = f.TokenRenewal.GetAuthorization(), true
		f.TokenRenewal.Authorization = ""
		return s.review()
	}
	if !s.who.known && s.hello != nil && s.guard.producers.owns(s.hello.GetTenantId(), s.hello.GetReplicaId(), s.guard.now()) {
		return status.Error(codes.PermissionDenied, "the replica belongs to a publisher with credentials")
	}
	return nil
}

// review judges the credential shown last. Its bearer must still be who opened
// the stream.
func (s *guardedStream) review() error {
	g := s.guard
	who, err := g.identify(s.ctx, s.credential, s.audience)
	switch {
	case err != nil:
		return err
	case who.known != s.who.known || !who.identity.Same(s.who.identity):
		return status.Error(codes.Unauthenticated, "the credentials are those of another caller than before")
	}
	s.reviewAt = g.now().Add(g.options.ReviewInterval)
	if who.known && s.hello != nil {
		g.refuses(who, ingest.Write{
			Tenant: s.hello.GetTenantId(), Model: s.hello.GetModelId(),
			Scheme: s.hello.GetHashScheme(), Replica: s.hello.GetReplicaId(),
		})
	}
	return nil
}
