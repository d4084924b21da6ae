// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a clock that only moves when told to.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// harness is a running server with a client on loopback.
type harness struct {
	t        testing.TB
	server   *server.Server
	clock    *clock
	registry *prometheus.Registry
	conn     *grpc.ClientConn
	client   pb.InferenceCacheClient
	// stop begins the shutdown, stopped receives what Run returned.
	stop    context.CancelFunc
	stopped chan error
}

// start runs a server on free ports until the test ends.
func start(t testing.TB, change ...func(*server.Options)) *harness {
	t.Helper()
	h := &harness{t: t, clock: newClock(), registry: prometheus.NewRegistry(), stopped: make(chan error, 1)}
	options := server.Options{
		GRPCAddress:  "127.0.0.1:0",
		HTTPAddress:  "127.0.0.1:0",
		Registry:     h.registry,
		ReadyMaxWait: -1,
		Now:          h.clock.Now,
	}
	for _, c := range change {
		c(&options)
	}
	var err error
	if h.server, err = server.New(options); err != nil {
		t.Fatal(err)
	}
	if err := h.server.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	go func() { h.stopped <- h.server.Run(ctx) }()
	h.conn = h.dial()
	h.client = pb.NewInferenceCacheClient(h.conn)
	t.Cleanup(func() {
		_ = h.conn.Close() // may be closed by the test
		cancel()
		if err := <-h.stopped; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return h
}

// shutDown ends the server and waits for it.
func (h *harness) shutDown() {
	h.stop()
	err := <-h.stopped
	h.stopped <- err
}

func (h *harness) dial() *grpc.ClientConn {
	h.t.Helper()
	conn, err := grpc.NewClient(h.server.Addresses().GRPC.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		h.t.Fatal(err)
	}
	return conn
}

func (h *harness) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	h.t.Cleanup(cancel)
	return ctx
}

func (h *harness) report(updates ...*pb.CacheStateUpdate) *pb.Ack {
	h.t.Helper()
	stream, err := h.client.ReportCacheState(h.ctx())
	if err != nil {
		h.t.Fatal(err)
	}
	for _, update := range updates {
		if err := stream.Send(update); err != nil {
			h.t.Fatal(err)
		}
	}
	ack, err := stream.CloseAndRecv()
	if err != nil {
		h.t.Fatal(err)
	}
	return ack
}

func (h *harness) publish(event *pb.CacheEvent) *pb.Ack {
	h.t.Helper()
	ack, err := h.client.PublishEvent(h.ctx(), event)
	if err != nil {
		h.t.Fatal(err)
	}
	return ack
}

func (h *harness) lookup(request *pb.LookupRouteRequest) *pb.LookupRouteResponse {
	h.t.Helper()
	response, err := h.client.LookupRoute(h.ctx(), request)
	if err != nil {
		h.t.Fatal(err)
	}
	return response
}

// get fetches a path of the HTTP listener.
func (h *harness) get(path string) (int, string) {
	h.t.Helper()
	request, err := http.NewRequestWithContext(h.ctx(), http.MethodGet, "http://"+h.server.Addresses().HTTP.String()+path, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// update is what replica holds: one block for each letter.
func (h *harness) update(replica, letters string, block int32) *pb.CacheStateUpdate {
	entry := &pb.PrefixEntry{}
	for i := range len(letters) {
		entry.BlockHashes = append(entry.BlockHashes, hash(letters[i]))
		entry.BlockTokenCounts = append(entry.BlockTokenCounts, block)
	}
	return &pb.CacheStateUpdate{
		ReplicaId: replica, ModelId: "m", TenantId: "team", HashScheme: "vllm",
		Prefixes: []*pb.PrefixEntry{entry},
	}
}

// chain asks for one block for each letter.
func chain(letters string, block int32) *pb.LookupRouteRequest {
	request := &pb.LookupRouteRequest{ModelId: "m", TenantId: "team", HashScheme: "vllm"}
	for i := range len(letters) {
		request.BlockHashes = append(request.BlockHashes, hash(letters[i]))
		request.BlockTokenCounts = append(request.BlockTokenCounts, block)
	}
	return request
}

func hash(letter byte) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(letter)<<32|7)
}

// brief renders an answer as "REASON replica score/tokens, ...".
func brief(response *pb.LookupRouteResponse) string {
	parts := make([]string, len(response.GetReplicaScores()))
	for i, s := range response.GetReplicaScores() {
		parts[i] = fmt.Sprintf("%s %s/%d", s.GetReplicaId(), shortest(s.GetScore()), s.GetMatchedTokens())
	}
	return strings.TrimSpace(response.GetReasonCode() + " " + strings.Join(parts, ", "))
}

func shortest(v float32) string { return strconv.FormatFloat(float64(v), 'g', -1, 32) }
