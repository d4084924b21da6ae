// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// retries is what routers usually set: a call that no server took is made
// again.
const retries = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 4, "initialBackoff": "0.05s", "maxBackoff": "0.5s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// observation is one line of the command lookups.
type observation struct {
	At      time.Time `json:"at"`
	TookMS  float64   `json:"tookMs"`
	Reason  string    `json:"reason,omitempty"`
	Replica string    `json:"replica,omitempty"`
	Error   string    `json:"error,omitempty"`
}

// lookups asks over one connection, again and again, until ctx ends.
func lookups(ctx context.Context, args []string, out io.Writer) error {
	var q question
	flags := flag.NewFlagSet("lookups", flag.ContinueOnError)
	q.addFlags(flags)
	every := flags.Duration("every", 100*time.Millisecond, "time between two lookups")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || q.server == "" || *every <= 0 {
		return errors.New("expected --server, a positive --every and no argument")
	}
	request, err := q.request()
	if err != nil {
		return err
	}
	conn, err := q.connect(q.server, grpc.WithDefaultServiceConfig(retries),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}))
	if err != nil {
		return err
	}
	defer conn.Close()
	ticker := time.NewTicker(*every)
	defer ticker.Stop()
	lines := json.NewEncoder(out)
	for {
		if err := lines.Encode(q.observe(ctx, pb.NewInferenceCacheClient(conn), request)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (q *question) observe(ctx context.Context, client pb.InferenceCacheClient, request *pb.LookupRouteRequest) observation {
	o := observation{At: time.Now()}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.timeout)
	defer cancel()
	answer, err := q.ask(ctx, client, request)
	o.TookMS = float64(time.Since(o.At).Microseconds()) / 1000
	if err != nil {
		o.Error = err.Error()
		return o
	}
	o.Reason = answer.ReasonCode
	if len(answer.ReplicaScores) > 0 {
		o.Replica = answer.ReplicaScores[0].ReplicaId
	}
	return o
}

// ask reads the token before every call: the kubelet renews it.
func (a *access) ask(ctx context.Context, client pb.InferenceCacheClient, request *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
	bearer, err := a.bearer()
	if err != nil {
		return nil, err
	}
	if bearer != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", bearer)
	}
	return client.LookupRoute(ctx, request, grpc.WaitForReady(true))
}
