// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/control"
	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const (
	audienceController = "inferencecache.io/controller"
	audiencePolicy     = "inferencecache.io/policy"
	controllerAccount  = "system:serviceaccount:ic:controller"
	operatorAccount    = "system:serviceaccount:ops:alice"
)

// operatorToken names its audience, as tokens of a cluster do.
func operatorToken(name string) string {
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"aud":["` + auth.AudienceOperator + `"]}`))
	return name + "." + claims + ".signature"
}

// issued is a token as its issuer knows it.
type issued struct{ audience, account, pod, uid string }

// apiServer reviews the tokens it issued; all others are refused.
type apiServer struct {
	mu     sync.Mutex
	tokens map[string]issued
	down   bool
	// roles are who may see what, as "account resource namespace".
	roles    map[string]bool
	accesses int // reviews of access
}

func (a *apiServer) ReviewAccess(_ context.Context, w auth.Wish) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.accesses++
	if a.down {
		return false, errDown
	}
	return a.roles[w.Subject.User+" "+w.Resource+" "+w.Namespace], nil
}

var errDown = errors.New("connection refused")

func (a *apiServer) Review(_ context.Context, token, audience string) (auth.Review, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t, ok := a.tokens[token]
	switch {
	case a.down:
		return auth.Review{}, errDown
	case !ok:
		return auth.Review{Reason: "invalid bearer token " + token}, nil
	case t.audience == "":
		// A server that is not aware of audiences vouches for its own.
		return auth.Review{Authenticated: true, Username: t.account}, nil
	case t.audience != audience:
		return auth.Review{Reason: "token audiences [" + t.audience + "] is invalid for the target audiences [" + audience + "]"}, nil
	}
	return auth.Review{
		Authenticated: true, Username: t.account, Pod: t.pod, PodUID: t.uid, Audiences: []string{audience},
	}, nil
}

func (a *apiServer) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// clusterTokens are what the accounts of the tests hold.
func clusterTokens() map[string]issued {
	return map[string]issued{
		"tok-pod-a":                      {server.AudienceIngest, "system:serviceaccount:team:engine", "pod-a", "uid-a"},
		"tok-pod-a-new":                  {server.AudienceIngest, "system:serviceaccount:team:engine", "pod-a", "uid-a"},
		"tok-pod-b":                      {server.AudienceIngest, "system:serviceaccount:team:engine", "pod-b", "uid-b"},
		"tok-pod-a-other":                {server.AudienceIngest, "system:serviceaccount:other:engine", "pod-a", "uid-x"},
		"tok-unbound":                    {server.AudienceIngest, "system:serviceaccount:team:engine", "", ""},
		"tok-default":                    {"", "system:serviceaccount:team:engine", "pod-a", "uid-a"},
		"tok-gateway":                    {server.AudienceLookup, "system:serviceaccount:gw:team", "gw-1", "uid-g"},
		"tok-other-gw":                   {server.AudienceLookup, "system:serviceaccount:gw:other", "gw-2", "uid-h"},
		"tok-unmapped":                   {server.AudienceLookup, "system:serviceaccount:gw:nobody", "gw-3", "uid-i"},
		operatorToken("tok-operator"):    {auth.AudienceOperator, operatorAccount, "", ""},
		operatorToken("tok-by-role"):     {auth.AudienceOperator, "system:serviceaccount:ops:carol", "", ""},
		operatorToken("tok-no-operator"): {auth.AudienceOperator, "system:serviceaccount:gw:nobody", "", ""},
		"tok-reader":                     {audienceController, controllerAccount, "c", "uid-c"},
		"tok-pusher":                     {audiencePolicy, controllerAccount, "c", "uid-c"},
		"tok-rogue-reader":               {audienceController, "system:serviceaccount:ic:rogue", "r", "uid-r"},
		"tok-rogue-pusher":               {audiencePolicy, "system:serviceaccount:ic:rogue", "r", "uid-r"},
	}
}

// clusterRoles are those of --tenant-authz=rbac.
func clusterRoles() map[string]bool {
	return map[string]bool{
		"system:serviceaccount:gw:team lookups team":   true,
		"system:serviceaccount:gw:team lookups absent": true,
		"system:serviceaccount:gw:other lookups else":  true,
		"system:serviceaccount:ops:carol operators ":   true,
	}
}

const tenantMap = `system:serviceaccount:gw:team team,absent
system:serviceaccount:gw:other else
`

// guarded is a server that authenticates, with what judges its callers.
type guarded struct {
	*harness
	cluster *apiServer
	logs    *lockedBuffer
}

// lockedBuffer takes logs from several goroutines.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// startGuarded runs a server in which team/pod-a and team/pod-b hold blocks.
func startGuarded(t testing.TB, mode server.AuthMode, change ...func(*server.Options)) *guarded {
	t.Helper()
	g := &guarded{cluster: &apiServer{tokens: clusterTokens(), roles: clusterRoles()}, logs: new(lockedBuffer)}
	tenants := filepath.Join(t.TempDir(), "tenants")
	if err := os.WriteFile(tenants, []byte(tenantMap), 0o600); err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(g.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	guard := func(o *server.Options) {
		o.Logger = logger
		o.Auth = server.AuthOptions{Mode: mode, Reviewer: g.cluster, TenantMapFile: tenants, PrivateTenants: []string{"private"}}
		o.Internal = server.InternalOptions{Address: "127.0.0.1:0"}
		admitBy(t, o, g.cluster, nil)
	}
	g.harness = start(t, append([]func(*server.Options){guard}, change...)...)
	for _, replica := range []string{"pod-a", "pod-b"} {
		for _, tenant := range []string{"team", "private"} {
			update := g.update(replica, "ab", 16)
			update.TenantId = tenant
			if result := g.server.Ingest().Update(t.Context(), update); !result.Applied {
				t.Fatalf("seeding %s/%s: %+v", tenant, replica, result)
			}
		}
	}
	return g
}

// admitBy makes a cluster judge operators, by access if that is not nil, and
// the callers of the internal listener.
func admitBy(t testing.TB, o *server.Options, cluster auth.Reviewer, access *auth.Access) {
	reviews := func(endpoint, audience string) *auth.Reviews {
		r := auth.NewReviews(auth.ReviewOptions{
			Reviewer: cluster, Audience: audience, Username: controllerAccount, Endpoint: endpoint, Logger: o.Logger,
		})
		t.Cleanup(r.Close)
		return r
	}
	operators := auth.NewOperators(auth.OperatorOptions{
		Reviewer: cluster, Subjects: []string{operatorAccount}, Access: access, Logger: o.Logger,
	})
	t.Cleanup(operators.Close)
	o.Auth.Reviewer, o.Auth.Operators = cluster, operators
	o.Internal.Gates = control.Gates{
		Snapshot: operators.Beside(reviews(auth.EndpointSnapshot, audienceController)),
		Policy:   reviews(auth.EndpointPolicy, audiencePolicy),
		Probe:    reviews(auth.EndpointProbe, audienceController),
	}
}

// byRoles makes a cluster decide about tenants and operators, in place of the
// tenant map.
func byRoles(t testing.TB, o *server.Options, cluster interface {
	auth.Reviewer
	auth.AccessReviewer
}) {
	access := auth.NewAccess(auth.AccessOptions{Reviewer: cluster, Logger: o.Logger, Now: o.Now})
	t.Cleanup(access.Close)
	admitBy(t, o, cluster, access)
	o.Auth.Access, o.Auth.TenantMapFile = access, ""
}

// as is the context of calls that show a token; "" shows none.
func (g *guarded) as(token string) context.Context {
	if token == "" {
		return g.ctx()
	}
	return metadata.AppendToOutgoingContext(g.ctx(), "authorization", "Bearer "+token)
}

// reportAs sends an update and returns the Ack's code or the error's.
func (g *guarded) reportAs(token string, update *pb.CacheStateUpdate) string {
	g.t.Helper()
	stream, err := g.client.ReportCacheState(g.as(token))
	if err != nil {
		g.t.Fatal(err)
	}
	if err := stream.Send(update); err != nil && !errors.Is(err, io.EOF) {
		g.t.Fatal(err)
	}
	ack, err := stream.CloseAndRecv()
	return ackText(ack, err)
}

func (g *guarded) publishAs(token string, event *pb.CacheEvent) string {
	ack, err := g.client.PublishEvent(g.as(token), event)
	return ackText(ack, err)
}

func ackText(ack *pb.Ack, err error) string {
	switch {
	case err != nil:
		return codeText(err)
	case ack.GetReasonCode() == "":
		return "ok"
	}
	return ack.GetReasonCode()
}

// codeText is the gRPC code as the protocol spells it.
func codeText(err error) string {
	var text strings.Builder
	for i, r := range status.Code(err).String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			text.WriteByte('_')
		}
		text.WriteRune(r)
	}
	return strings.ToUpper(text.String())
}

// syncSession is a CacheSync stream of a test.
type syncSession struct {
	t        testing.TB
	stream   pb.CacheSync_SyncClient
	sequence uint64
}

func (g *guarded) openSync(token string) *syncSession {
	g.t.Helper()
	stream, err := pb.NewCacheSyncClient(g.conn).Sync(g.as(token))
	if err != nil {
		g.t.Fatal(err)
	}
	return &syncSession{t: g.t, stream: stream}
}

func helloOf(tenant, replica, uid string) *pb.PublisherFrame {
	return &pb.PublisherFrame{Frame: &pb.PublisherFrame_Hello{Hello: &pb.SyncHello{
		ProtocolVersion: 1, TenantId: tenant, ModelId: "m", HashScheme: "vllm", ReplicaId: replica, BlockSize: 16,
		Incarnation: &pb.SyncIncarnation{PodUid: uid, Epoch: 1, StartedUs: 1},
	}}}
}

// send gives data frames the next sequence. The server may have ended the
// stream.
func (s *syncSession) send(frames ...*pb.PublisherFrame) {
	s.t.Helper()
	for _, frame := range frames {
		switch frame.GetFrame().(type) {
		case *pb.PublisherFrame_SnapshotBegin, *pb.PublisherFrame_SnapshotChunk,
			*pb.PublisherFrame_SnapshotEnd, *pb.PublisherFrame_Delta:
			s.sequence++
		}
		if frame.Sequence == 0 {
			frame.Sequence = s.sequence
		}
		if err := s.stream.Send(frame); err != nil && !errors.Is(err, io.EOF) {
			s.t.Fatal(err)
		}
	}
}

// snapshot sends one key as all that the replica holds.
func (s *syncSession) snapshot(key uint64) {
	s.t.Helper()
	run := &pb.StoredRun{Keys: []uint64{key}, FirstTokenCount: 16, BlockTokenCount: 16}
	s.send(
		&pb.PublisherFrame{Frame: &pb.PublisherFrame_SnapshotBegin{SnapshotBegin: &pb.SnapshotBegin{ExpectedBlocks: 1}}},
		&pb.PublisherFrame{Frame: &pb.PublisherFrame_SnapshotChunk{SnapshotChunk: &pb.SnapshotChunk{Stored: []*pb.StoredRun{run}}}},
		&pb.PublisherFrame{Frame: &pb.PublisherFrame_SnapshotEnd{SnapshotEnd: &pb.SnapshotEnd{Blocks: 1}}},
	)
}

// await reads until a sequence is acknowledged: "ok", why the session was
// rejected, or the code that ended the stream.
func (s *syncSession) await(sequence uint64) string {
	s.t.Helper()
	for {
		frame, err := s.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return codes.OK.String()
		case err != nil:
			return codeText(err)
		case frame.GetReject() != nil:
			return frame.GetReject().GetReason()
		case frame.GetAck().GetSequence() >= sequence && frame.GetAck() != nil:
			return "ok"
		}
	}
}

// end closes the stream and waits until the server has left it.
func (s *syncSession) end() {
	s.t.Helper()
	if err := s.stream.CloseSend(); err != nil {
		s.t.Fatal(err)
	}
	for {
		if _, err := s.stream.Recv(); err != nil {
			return
		}
	}
}

// denied are the refusals counted so far, by reason.
func (g *guarded) denied() map[string]float64 {
	counts := map[string]float64{}
	for _, reason := range []string{"unauthenticated", "tenant", "replica", "scope"} {
		if v := g.metric("inferencecache_ingest_denied_total", "reason", reason); v > 0 {
			counts[reason] = v
		}
	}
	return counts
}

// metric reads a counter or gauge; labels come in pairs.
func (g *guarded) metric(name string, labels ...string) float64 {
	g.t.Helper()
	families, err := g.registry.Gather()
	if err != nil {
		g.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			var have []string
			for _, label := range metric.GetLabel() {
				have = append(have, label.GetName(), label.GetValue())
			}
			if slices.Equal(have, labels) {
				return metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			}
		}
	}
	g.t.Fatalf("no metric %s %v", name, labels)
	return 0
}

// eventually waits for what another goroutine is about to do.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
