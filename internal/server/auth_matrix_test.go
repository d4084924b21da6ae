// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

var updateMatrix = flag.Bool("update-matrix", false, "rewrite the matrix in docs/security.md")

const (
	securityPage = "../../docs/security.md"
	matrixBegin  = "<!-- matrix: begin -->\n"
	matrixEnd    = "<!-- matrix: end -->\n"
)

// Results of the matrix. Others are gRPC codes and HTTP statuses.
const (
	ok       = "ok"
	refused  = "UNAUTHENTICATED"
	cannot   = "UNAVAILABLE"
	barred   = "PERMISSION_DENIED"
	noEffect = "no effect"
	absent   = "as absent"
	noHint   = "NO_HINT"
)

// operation is a column of the matrix.
type operation struct {
	name   string
	writes bool
	do     func(*guarded, matrixRow) string
}

var operations = []operation{
	{"LookupRoute", false, (*guarded).lookupAs},
	{"GetCacheState", false, (*guarded).stateAs},
	{"other reads", false, (*guarded).otherReadsAs},
	{"ReportCacheState", true, (*guarded).matrixReport},
	{"CacheSync", true, (*guarded).matrixSync},
	{"PublishEvent", true, (*guarded).matrixEvent},
	{"/snapshot, /status", false, func(g *guarded, r matrixRow) string {
		return same(g.httpAs(r, http.MethodGet, "/snapshot", ""), g.httpAs(r, http.MethodGet, "/status", ""))
	}},
	{"/policy, /policy/extensions", false, func(g *guarded, r matrixRow) string {
		return same(g.httpAs(r, http.MethodPost, "/policy", `{"version":7}`),
			g.httpAs(r, http.MethodPut, "/policy/extensions", `{"version":1,"revision":"r"}`))
	}},
	{"/probe", false, func(g *guarded, r matrixRow) string {
		return g.httpAs(r, http.MethodPost, "/probe", `{"backend":"a/b","model":"m","hashScheme":"vllm"}`)
	}},
	{"health", false, (*guarded).healthAs},
}

// matrixRow is a caller of the matrix and what each operation answers it.
type matrixRow struct {
	caller          string
	token           string
	tenant, replica string // what it writes and reads
	modes           []server.AuthMode
	before          func(*guarded)
	denied          string // the reason counted for writes without effect
	want            []string
	// byRoles is set where --tenant-authz is rbac.
	byRoles bool
}

var (
	required   = []server.AuthMode{server.AuthRequired}
	permissive = []server.AuthMode{server.AuthPermissive}
	anyAuth    = []server.AuthMode{server.AuthRequired, server.AuthPermissive}
	noAuth     = []server.AuthMode{server.AuthOff}
)

func down(g *guarded) { g.cluster.change(func() { g.cluster.down = true }) }

var matrix = []matrixRow{
	{"nobody", "", "team", "pod-a", noAuth, nil, "", []string{ok, ok, ok, ok, ok, ok, "401", "401", "401", ok}, false},
	{"nobody", "", "team", "pod-a", required, nil, "", []string{refused, refused, refused, refused, refused, refused, "401", "401", "401", ok}, false},
	{"nobody, as a replica nobody owns", "", "team", "pod-a", permissive, nil, "", []string{ok, ok, ok, ok, ok, ok, "401", "401", "401", ok}, false},
	{"nobody, as a replica with credentials", "", "team", "pod-a", permissive, ownPodA, "replica", []string{ok, ok, ok, noEffect, noEffect, noEffect, "401", "401", "401", ok}, false},
	{"nobody, in a private tenant", "", "private", "pod-a", permissive, nil, "", []string{absent, absent, ok, ok, ok, ok, "401", "401", "401", ok}, false},
	{"token for the API server", "tok-default", "team", "pod-a", anyAuth, nil, "", []string{refused, refused, refused, refused, refused, refused, "401", "401", "401", ok}, false},
	{"expired token, or of a deleted pod", "tok-gone", "team", "pod-a", anyAuth, nil, "", []string{refused, refused, refused, refused, refused, refused, "401", "401", "401", ok}, false},
	{"ingest token bound to no pod", "tok-unbound", "team", "pod-a", anyAuth, nil, "", []string{refused, refused, refused, refused, refused, refused, "401", "401", "401", ok}, false},
	{"pod A's ingest token, as pod A", "tok-pod-a", "team", "pod-a", anyAuth, nil, "", []string{refused, refused, refused, ok, ok, ok, "401", "401", "401", ok}, false},
	{"pod A's ingest token, as rank 3 of pod A", "tok-pod-a", "team", "pod-a#3", anyAuth, rankOfPodA, "", []string{refused, refused, refused, ok, ok, ok, "401", "401", "401", ok}, false},
	{"pod A's ingest token, as pod B", "tok-pod-a", "team", "pod-b", anyAuth, nil, "replica", []string{refused, refused, refused, noEffect, noEffect, noEffect, "401", "401", "401", ok}, false},
	{"pod A's ingest token, in another namespace", "tok-pod-a", "private", "pod-a", anyAuth, nil, "tenant", []string{refused, refused, refused, noEffect, noEffect, noEffect, "401", "401", "401", ok}, false},
	{"namesake of pod A in another namespace", "tok-pod-a-other", "team", "pod-a", anyAuth, nil, "tenant", []string{refused, refused, refused, noEffect, noEffect, noEffect, "401", "401", "401", ok}, false},
	{"lookup token of a gateway of the tenant", "tok-gateway", "team", "pod-a", anyAuth, nil, "", []string{ok, ok, ok, refused, refused, refused, "401", "401", "401", ok}, false},
	{"lookup token of another tenant's gateway", "tok-other-gw", "team", "pod-a", anyAuth, nil, "", []string{absent, absent, ok, refused, refused, refused, "401", "401", "401", ok}, false},
	{"lookup token not in the tenant map", "tok-unmapped", "team", "pod-a", anyAuth, nil, "", []string{absent, absent, ok, refused, refused, refused, "401", "401", "401", ok}, false},
	{"lookup token of an account with the role", "tok-gateway", "team", "pod-a", anyAuth, nil, "", []string{ok, ok, ok, refused, refused, refused, "401", "401", "401", ok}, true},
	{"lookup token of an account without the role", "tok-other-gw", "team", "pod-a", anyAuth, nil, "", []string{absent, absent, ok, refused, refused, refused, "401", "401", "401", ok}, true},
	{"lookup token reviewed before, API server down", "tok-gateway", "team", "pod-a", required, lookedUpThenDown, "", []string{noHint, cannot, ok, cannot, cannot, cannot, "503", "503", "503", ok}, true},
	{"operator's token", operatorToken("tok-operator"), "team", "pod-a", anyAuth, nil, "", []string{ok, ok, ok, refused, refused, refused, "200", "401", "401", ok}, false},
	{"operator's token, by role", operatorToken("tok-by-role"), "team", "pod-a", anyAuth, nil, "", []string{ok, ok, ok, refused, refused, refused, "200", "401", "401", ok}, true},
	{"operator's token of somebody else", operatorToken("tok-no-operator"), "team", "pod-a", anyAuth, nil, "", []string{barred, barred, barred, refused, refused, refused, "403", "401", "401", ok}, false},
	{"operator's token of somebody without the role", operatorToken("tok-no-operator"), "team", "pod-a", anyAuth, nil, "", []string{barred, barred, barred, refused, refused, refused, "403", "401", "401", ok}, true},
	{"controller's read token", "tok-reader", "team", "pod-a", anyAuth, nil, "", []string{refused, refused, refused, refused, refused, refused, "200", "401", "200", ok}, false},
	{"controller's policy token", "tok-pusher", "team", "pod-a", anyAuth, nil, "", []string{refused, refused, refused, refused, refused, refused, "401", "204", "401", ok}, false},
	{"read token of another account", "tok-rogue-reader", "team", "pod-a", anyAuth, nil, "", []string{refused, refused, refused, refused, refused, refused, "403", "401", "403", ok}, false},
	{"policy token of another account", "tok-rogue-pusher", "team", "pod-a", anyAuth, nil, "", []string{refused, refused, refused, refused, refused, refused, "401", "403", "401", ok}, false},
	{"any token, API server down", "tok-pod-a", "team", "pod-a", anyAuth, down, "", []string{noHint, cannot, cannot, cannot, cannot, cannot, "503", "503", "503", ok}, false},
	{"pod A's ingest token reviewed before, API server down", "tok-pod-a", "team", "pod-a", required, ownPodAThenDown, "", []string{noHint, cannot, cannot, ok, ok, ok, "503", "503", "503", ok}, false},
}

func ownPodA(g *guarded) {
	if got := g.reportAs("tok-pod-a", g.update("pod-a", "c", 16)); got != ok {
		g.t.Fatalf("pod A: %s", got)
	}
}

func rankOfPodA(g *guarded) {
	if got := g.reportAs("tok-pod-a", g.update("pod-a#3", "c", 16)); got != ok {
		g.t.Fatalf("pod A: %s", got)
	}
}

func ownPodAThenDown(g *guarded) { ownPodA(g); down(g) }

// lookedUpThenDown makes a token known, but not what it may read of the tenant.
func lookedUpThenDown(g *guarded) {
	if got := g.lookupAs(matrixRow{token: "tok-gateway", tenant: "absent"}); got != absent {
		g.t.Fatalf("a lookup elsewhere: %s", got)
	}
	down(g)
}

// start runs a server for the row.
func (row *matrixRow) start(t testing.TB, mode server.AuthMode) *guarded {
	t.Helper()
	if !row.byRoles {
		return startGuarded(t, mode)
	}
	cluster := &apiServer{tokens: clusterTokens(), roles: clusterRoles()}
	g := startGuarded(t, mode, func(o *server.Options) { byRoles(t, o, cluster) })
	g.cluster = cluster
	return g
}

func TestSEC_01_AuthMatrix(t *testing.T) {
	for _, row := range matrix {
		for _, mode := range row.modes {
			t.Run(string(mode)+"/"+row.caller, func(t *testing.T) {
				g := row.start(t, mode)
				if row.before != nil {
					row.before(g)
				}
				for i, op := range operations {
					g.checkCell(op, row, row.want[i])
				}
			})
		}
	}
}

// checkCell holds one operation to its result, its counter and its effect on
// the index.
func (g *guarded) checkCell(op operation, row matrixRow, want string) {
	g.t.Helper()
	before, denied := g.server.Dump(), g.denied()
	if got := op.do(g, row); got != want {
		g.t.Errorf("%s: %q, want %q", op.name, got, want)
	}
	if changed := g.server.Dump() != before; changed != (op.writes && want == ok) {
		g.t.Errorf("%s: the index changed: %v", op.name, changed)
	}
	wantDenied := denied
	switch {
	case op.writes && want == noEffect:
		wantDenied[row.denied]++
	case op.writes && want == refused:
		wantDenied["unauthenticated"]++
	}
	if got := g.denied(); fmt.Sprint(got) != fmt.Sprint(wantDenied) {
		g.t.Errorf("%s: refusals %v, want %v", op.name, got, wantDenied)
	}
}

func (g *guarded) lookupAs(row matrixRow) string {
	answer, err := g.client.LookupRoute(g.as(row.token), of(row.tenant, chain("ab", 16)))
	switch {
	case err != nil:
		return codeText(err)
	case answer.GetReasonCode() == "UNKNOWN_TENANT":
		return absent
	case len(answer.GetReplicaScores()) > 0:
		return ok
	}
	return answer.GetReasonCode()
}

func (g *guarded) stateAs(row matrixRow) string {
	answer, err := g.client.GetCacheState(g.as(row.token), &pb.GetCacheStateRequest{TenantId: row.tenant, ModelId: "m"})
	switch {
	case err != nil:
		return codeText(err)
	case answer.GetSummary().GetTotalPrefixes() == 0:
		return absent
	}
	return ok
}

func (g *guarded) otherReadsAs(row matrixRow) string {
	ctx, cancel := context.WithCancel(g.as(row.token))
	defer cancel()
	_, rendered := g.client.RenderTemplate(ctx, &pb.RenderTemplateRequest{})
	events, err := g.client.StreamCacheEvents(ctx, &pb.StreamEventsRequest{TenantId: "none"})
	if err != nil {
		return codeText(err)
	}
	metrics, err := g.client.StreamMetrics(ctx, &pb.StreamMetricsRequest{Names: []string{"inferencecache_server_up"}})
	if err != nil {
		return codeText(err)
	}
	_, measured := metrics.Recv()
	header, observed := events.Header()
	if header == nil && observed == nil {
		_, observed = events.Recv()
	}
	return same(resultOf(rendered), resultOf(measured), resultOf(observed))
}

func (g *guarded) healthAs(row matrixRow) string {
	_, err := healthpb.NewHealthClient(g.conn).Check(g.as(row.token), &healthpb.HealthCheckRequest{})
	return resultOf(err)
}

func resultOf(err error) string {
	if err != nil {
		return codeText(err)
	}
	return ok
}

func (g *guarded) matrixReport(row matrixRow) string {
	update := g.update(row.replica, "z", 16)
	update.TenantId = row.tenant
	return withoutEffect(g.reportAs(row.token, update), "DROPPED")
}

func (g *guarded) matrixEvent(row matrixRow) string {
	return withoutEffect(g.publishAs(row.token, &pb.CacheEvent{
		Type: pb.CacheEvent_ALL_CLEARED, TenantId: row.tenant, ModelId: "m", ReplicaId: row.replica,
	}), "DROPPED")
}

func (g *guarded) matrixSync(row matrixRow) string {
	s := g.openSync(row.token)
	s.send(helloOf(row.tenant, row.replica, ""))
	s.snapshot(99)
	result := s.await(3)
	s.end()
	return withoutEffect(result, "unauthorized")
}

// withoutEffect names the answer of an RPC to writes that have none.
func withoutEffect(result, answer string) string {
	if result == answer {
		return noEffect
	}
	return result
}

func (g *guarded) httpAs(row matrixRow, method, path, body string) string {
	var headers []string
	if row.token != "" {
		headers = []string{"Authorization", "Bearer " + row.token}
	}
	response, _ := g.internal(method, path, body, headers...)
	return fmt.Sprint(response.StatusCode)
}

// same is the result that several operations share.
func same(results ...string) string {
	for _, result := range results {
		if result != results[0] {
			return strings.Join(results, " or ")
		}
	}
	return results[0]
}

func TestAuthMatrixIsDocumented(t *testing.T) {
	page, err := os.ReadFile(securityPage)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(page), matrixBegin)
	old, tail, ended := strings.Cut(rest, matrixEnd)
	if !found || !ended {
		t.Fatalf("%s: the marks of the matrix are missing", securityPage)
	}
	table := renderMatrix()
	if *updateMatrix {
		if err := os.WriteFile(securityPage, []byte(head+matrixBegin+table+matrixEnd+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != table {
		t.Errorf("%s is out of date: run go test ./internal/server -run %s -update-matrix", securityPage, t.Name())
	}
}

func renderMatrix() string {
	var text strings.Builder
	text.WriteString("| `--grpc-auth` | `--tenant-authz` | caller |")
	for _, op := range operations {
		text.WriteString(" " + op.name + " |")
	}
	text.WriteString("\n|" + strings.Repeat("---|", len(operations)+3) + "\n")
	for _, row := range matrix {
		modes := make([]string, len(row.modes))
		for i, mode := range row.modes {
			modes[i] = string(mode)
		}
		fmt.Fprintf(&text, "| %s | %s | %s |", strings.Join(modes, ", "), map[bool]string{false: "map", true: "rbac"}[row.byRoles], row.caller)
		for i, want := range row.want {
			if operations[i].writes && want == noEffect {
				want += " (" + row.denied + ")"
			}
			text.WriteString(" " + want + " |")
		}
		text.WriteString("\n")
	}
	return text.String()
}
