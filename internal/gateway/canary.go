// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/internal/tokenize"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

const (
	// canaryTokens is how long a canary should be: above usual floors for
	// matches. Engines with less context get a shorter one.
	canaryTokens = 1280
	// canaryTimeout bounds an engine's answer.
	canaryTimeout = 30 * time.Second
	// canaryPoll is the time between looks at the index.
	canaryPoll       = 100 * time.Millisecond
	maxCanaryAnswer  = 1 << 20
	canaryLookupTime = time.Second
)

// canaryResult is what a canary showed.
type canaryResult struct {
	// state is parityOK, parityFailed or paritySkipped.
	state           string
	replica, reason string
	// unseen says of which replica, or model, nothing reaches the index.
	unseen string
}

func skipped(replica, format string, args ...any) canaryResult {
	return canaryResult{state: paritySkipped, replica: replica, reason: fmt.Sprintf(format, args...)}
}

// canary has a replica compute a prompt nobody else has, and looks for its
// blocks in the index under our keys. If they do not appear a second replica is
// tried: what one of several does not show is missing events, not other ids.
func (g *Gateway) canary(ctx context.Context, of pool, prefer string) canaryResult {
	replicas := g.canaryReplicas(of, prefer)
	if len(replicas) == 0 {
		return skipped("", "no replica is ready")
	}
	first := g.canaryAt(ctx, of, replicas[0])
	if first.state != parityFailed || len(replicas) == 1 {
		return first
	}
	second := g.canaryAt(ctx, of, replicas[1])
	if second.state != parityOK {
		return first
	}
	second.unseen = "blocks computed by replica " + first.replica + " do not reach the index; those of " + second.replica + " do"
	return second
}

// canaryReplicas returns the eligible replicas of a pool, the preferred one
// first, then by load.
func (g *Gateway) canaryReplicas(of pool, prefer string) []string {
	table := g.pools.Load()
	var replicas []string
	for _, id := range g.fleet.ByLoad(nil, &routing.Request{Now: time.Now(), Model: of.model, AnyRole: true}) {
		switch {
		case table.byReplica[id] != of.identity():
		case id == prefer:
			replicas = append([]string{id}, replicas...)
		default:
			replicas = append(replicas, id)
		}
	}
	return replicas
}

// canaryAt sends a canary to one replica.
func (g *Gateway) canaryAt(ctx context.Context, of pool, replica string) canaryResult {
	for _, form := range []struct {
		chat   bool
		tokens int
	}{{true, canaryTokens}, {true, 0}, {false, canaryTokens}, {false, 0}} {
		c, err := g.newCanary(ctx, of, form.chat, form.tokens)
		switch reason := (*tokenize.Error)(nil); {
		case errors.As(err, &reason) && (reason.Reason == tokenize.ReasonUnsupported || reason.Reason == tokenize.ReasonRejected):
			continue // a model without a chat template
		case err != nil:
			return skipped(replica, "the canary has no token ids: %v", err)
		}
		status, answer, err := g.sendCanary(ctx, c, of, replica)
		switch {
		case err != nil:
			return skipped(replica, "replica %s does not answer the canary", replica)
		case status >= 400 && status < 500:
			continue // too long, or of a form it does not take
		case status != http.StatusOK:
			return skipped(replica, "replica %s answers the canary with status %d", replica, status)
		}
		return g.judgeCanary(ctx, c, of, replica, answer)
	}
	return skipped(replica, "replica %s takes none of the canaries", replica)
}

// canary is a prompt nobody else has.
type canary struct {
	path   string
	body   []byte
	tokens int
	keys   []uint64
}

// newCanary writes a canary of at least two blocks and about as many tokens as
// asked for.
func (g *Gateway) newCanary(ctx context.Context, of pool, chat bool, tokens int) (*canary, error) {
	wanted := max(2*of.blockSize+1, tokens)
	for repeats := 1; ; repeats *= 2 {
		c := &canary{path: "/v1/completions", body: canaryBody(of.model, chat, repeats)}
		if chat {
			c.path = "/v1/chat/completions"
		}
		prompt := tokenize.Prompt{
			Chat: chat, Model: of.model, Base: of.model, Runtime: of.scheme,
			Revision: g.parity.revision(of.model), Partition: "canary",
		}
		err := jsonscan.Object(c.body, func(key, value []byte) error {
			prompt.Add(key, value)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the canary: %w", err)
		}
		result, err := g.tokenizer.Tokenize(ctx, &prompt)
		if err != nil {
			return nil, err
		}
		c.tokens = len(result.Tokens)
		if c.tokens < wanted && repeats < 1<<14 {
			continue
		}
		c.keys = result.AppendKeys(nil, fingerprint.Parent{}, of.blockSize)
		return c, nil
	}
}

// canaryText holds what tokenizers and templates get wrong first: several
// scripts, composed and combined letters, emoji, digits, runs of spaces, code.
const canaryText = "Zähle 1234567 naïve cafe\u0301s: 東京タワー, Ωμέγα, привет, שלום, हिन्दी, 👩\u200d🔬!\n\n" +
	"\tif (x != 0) { return   \"don't\"; }  // 3.14e-10 <|x|> https://example.com/a?b=c&d=%20\n"

// canaryBody is a request of its own random mark, which stands first in the
// text, so that no other prompt has its blocks.
func canaryBody(model string, chat bool, repeats int) []byte {
	mark := "canary " + strings.ToLower(rand.Text())
	text := strings.Repeat(canaryText, repeats)
	request := map[string]any{"model": model, "max_tokens": 1, "temperature": 0, "stream": false}
	if chat {
		request["messages"] = []map[string]any{
			{"role": "system", "content": mark + ". Answer briefly."},
			{"role": "user", "content": text},
		}
		request["tools"] = json.RawMessage(`[{"type":"function","function":{"name":"look_up","description":"Looks up <a> & \"b\" für é.",` +
			`"parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"integer","minimum":0}},"required":["z"]}}}]`)
	} else {
		request["prompt"] = mark + "\n" + text
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // as clients write it
	_ = encoder.Encode(request)  // texts, numbers and valid JSON always encode
	return bytes.TrimSpace(body.Bytes())
}

// sendCanary has the replica compute the canary, as load like any other.
func (g *Gateway) sendCanary(ctx context.Context, c *canary, of pool, replica string) (status int, answer []byte, err error) {
	decision, guard := g.fleet.Decide(&routing.Request{
		Now: time.Now(), Model: of.model, Target: replica, PromptTokens: c.tokens, LoadOnly: true, AnyRole: true,
	})
	if guard == nil {
		return 0, nil, errors.New("replica is not eligible")
	}
	defer func() { guard.End(time.Now(), routing.Ignored) }()
	u := g.roster.get(decision.Replica)
	if u == nil || !u.tenure.begin() {
		return 0, nil, errors.New("replica has left")
	}
	defer u.tenure.end()
	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, u.url(c.path), bytes.NewReader(u.pinned(c.body)))
	if err != nil {
		return 0, nil, fmt.Errorf("build request: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	if u.Rank != nil {
		request.Header[headerRank] = []string{strconv.Itoa(*u.Rank)}
	}
	response, err := u.transport.RoundTrip(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(response.Body, maxCanaryAnswer))
	return response.StatusCode, answer, err
}

// judgeCanary compares the engine's token count with ours, then waits for the
// blocks.
func (g *Gateway) judgeCanary(ctx context.Context, c *canary, of pool, replica string, answer []byte) canaryResult {
	var reader usageReader
	reader.Write(answer)
	if reader.last != nil && reader.last.PromptTokens > 0 && reader.last.PromptTokens != c.tokens {
		return canaryResult{state: parityFailed, replica: replica, reason: fmt.Sprintf(
			"a canary of %d tokens has %d at replica %s", c.tokens, reader.last.PromptTokens, replica)}
	}
	appear := g.parity.options.Appear
	deadline := time.Now().Add(appear)
	ticker := time.NewTicker(canaryPoll)
	defer ticker.Stop()
	var last *pb.LookupRouteResponse
	best := 0
	for {
		if found := g.lookUpCanary(ctx, c, of); found != nil {
			last = found
			for _, score := range found.GetReplicaScores() {
				if score.GetReplicaId() == replica {
					best = max(best, int(score.GetMatchedTokens()))
				}
			}
		}
		// The engine may still be filling the last block.
		if best >= (len(c.keys)-1)*of.blockSize {
			return canaryResult{state: parityOK, replica: replica}
		}
		if !time.Now().Before(deadline) {
			break
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return skipped(replica, "the gateway is shutting down")
		}
	}
	if last == nil {
		return skipped(replica, "the index does not answer")
	}
	if strings.HasPrefix(last.GetReasonCode(), "UNKNOWN_") {
		missing := skipped(replica, "the index answers %s", knownReason(last.GetReasonCode()))
		missing.unseen = "blocks of the model do not reach the index: it answers " + knownReason(last.GetReasonCode())
		return missing
	}
	reason := fmt.Sprintf("of %d blocks of a canary computed by replica %s, %d appeared in the index under our keys within %s",
		len(c.keys), replica, best/of.blockSize, appear)
	if best == 0 && reader.last != nil {
		reason += "; the number of tokens agrees, so see whether its events arrive at all"
	}
	return canaryResult{state: parityFailed, replica: replica, reason: reason}
}

// lookUpCanary returns nil if the index does not answer.
func (g *Gateway) lookUpCanary(ctx context.Context, c *canary, of pool) *pb.LookupRouteResponse {
	ctx, cancel := context.WithTimeout(ctx, canaryLookupTime)
	defer cancel()
	answer, err := g.index.lookuper.LookupRoute(ctx, lookupRequest(of, "", c.keys))
	if err != nil {
		return nil
	}
	return answer
}
