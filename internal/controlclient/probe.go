// SPDX-License-Identifier: Apache-2.0

package controlclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// ErrOtherBackend is returned for an answer about another backend.
var ErrOtherBackend = errors.New("the server answered for another backend")

// ProbeRequest says what to test.
type ProbeRequest struct {
	// Backend is <namespace>/<name> of the CacheBackend.
	Backend     string `json:"backend"`
	Model       string `json:"model"`
	HashScheme  string `json:"hashScheme"`
	BackendType string `json:"backendType,omitempty"`
}

// StageOutcome is how a stage of the self-test ended.
type StageOutcome string

// Stage outcomes; every other value counts as a failure.
const (
	StageOK      StageOutcome = "ok"
	StageFailed  StageOutcome = "failed"
	StageSkipped StageOutcome = "skipped"
)

// ProbeResult is the outcome of every stage.
type ProbeResult struct {
	Backend string       `json:"backend"`
	Ingest  StageOutcome `json:"ingest"`
	Routing StageOutcome `json:"routing"`
	T2      StageOutcome `json:"t2"`
	Errors  []struct {
		Stage   string `json:"stage"`
		Message string `json:"message"`
	} `json:"errors"`
}

// Message returns the first message about a stage, or "".
func (r *ProbeResult) Message(stage string) string {
	for _, e := range r.Errors {
		if e.Stage == stage {
			return e.Message
		}
	}
	return ""
}

// Probe runs the self-test. A token that cannot be read is an error, and so is
// an answer about another backend.
func (c *Client) Probe(ctx context.Context, probe ProbeRequest) (*ProbeResult, Identity, error) {
	body, err := json.Marshal(probe)
	if err != nil {
		return nil, Identity{}, fmt.Errorf("probe: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.options.URLs.Probe, bytes.NewReader(body))
	if err != nil {
		return nil, Identity{}, fmt.Errorf("probe: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	token, err := readToken(c.options.ControllerTokenFile)
	if err != nil {
		return nil, Identity{}, fmt.Errorf("probe: %w", err)
	}
	answer, identity, err := c.call(request, token, http.StatusOK)
	if err != nil {
		return nil, identity, err
	}
	result := new(ProbeResult)
	if err := json.Unmarshal(answer, result); err != nil {
		return nil, identity, failed("decode probe result", err, token)
	}
	if result.Backend != probe.Backend {
		return nil, identity, fmt.Errorf("%w: %.128q, asked was %q", ErrOtherBackend, result.Backend, probe.Backend)
	}
	return result, identity, nil
}
