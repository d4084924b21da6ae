// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
	"github.com/inferencecache/inference-cache/internal/probe"
)

// maxProbeBytes bounds a probe request.
const maxProbeBytes = 4 << 10

type probeAnswer struct {
	Backend string         `json:"backend"`
	Ingest  probe.Outcome  `json:"ingest"`
	Routing probe.Outcome  `json:"routing"`
	T2      probe.Outcome  `json:"t2"`
	Errors  []probeProblem `json:"errors,omitempty"`
}

type probeProblem struct {
	Stage   probe.Stage `json:"stage"`
	Message string      `json:"message"`
}

func (h *Handler) serveProbe(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxProbeBytes))
	if err != nil {
		refuse(w, http.StatusBadRequest, "decode probe request: "+err.Error())
		return
	}
	request, err := decodeProbe(body)
	if err != nil {
		refuse(w, http.StatusBadRequest, "decode probe request: "+err.Error())
		return
	}
	result, err := h.options.Prober.Run(r.Context(), request)
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, "the caller left")
		return
	}
	// The probe may have waited for others longer than an answer may take.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	answer := probeAnswer{Backend: request.Backend, Ingest: result.Ingest, Routing: result.Routing, T2: result.Tier2}
	for _, p := range result.Problems {
		answer.Errors = append(answer.Errors, probeProblem{p.Stage, p.Message})
	}
	text, err := json.Marshal(answer)
	if err != nil {
		h.failed(w, "render probe result", err)
		return
	}
	writeJSON(w, text)
}

// decodeProbe reads a request as strictly as a policy is read.
func decodeProbe(body []byte) (probe.Request, error) {
	var request probe.Request
	members := map[string]*string{
		"backend": &request.Backend, "model": &request.Model, "hashScheme": &request.Scheme, "backendType": &request.BackendType,
	}
	var seen []string
	err := jsonscan.Object(body, func(key, value []byte) error {
		name := string(key)
		member, known := members[name]
		switch {
		case !known:
			return fmt.Errorf("unknown field %.64q", name)
		case slices.Contains(seen, name):
			return fmt.Errorf("%s: appears twice", name)
		}
		seen = append(seen, name)
		if string(value) == "null" {
			return nil
		}
		text, ok := jsonscan.String(value)
		if !ok {
			return fmt.Errorf("%s: expected a string", name)
		}
		*member = text
		return nil
	})
	if err != nil {
		return probe.Request{}, err
	}
	for _, required := range []string{"backend", "model", "hashScheme"} {
		if *members[required] == "" {
			return probe.Request{}, errors.New(required + ": expected a value")
		}
	}
	return request, nil
}
