// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/inferencecache/inference-cache/internal/policy"
)

// A push that removes more than half of at least massRemovalMin policies is
// worth a warning.
const massRemovalMin = 10

var errRevision = errors.New("policy revision mismatch")

// kind is what sets one pushed body apart from the other.
type kind struct {
	name kindName
	// prefix starts the text that refuses a body which cannot be read.
	prefix string
	// apply decodes a body and puts it in force.
	apply func(body []byte, r *http.Request) (unchanged bool, err error)
}

// servePush takes a body in. A body that is refused changes nothing.
func (h *Handler) servePush(k kind) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		unchanged, err := h.push(k, w, r)
		if err == nil {
			h.metrics.pushed(k.name, accepted(unchanged))
			w.WriteHeader(http.StatusNoContent)
			return
		}
		result, code := refusal(err)
		h.metrics.pushed(k.name, result)
		h.options.Logger.Warn("push refused", "kind", string(k.name), "result", string(result), "error", err)
		refuse(w, code, err.Error())
	}
}

func (h *Handler) push(k kind, w http.ResponseWriter, r *http.Request) (unchanged bool, err error) {
	body, compressed, err := readBody(w, r)
	if err != nil {
		return false, fmt.Errorf("%s: %w", k.prefix, err)
	}
	h.applying.Lock()
	defer h.applying.Unlock()
	if compressed {
		if body, err = inflate(body, h.options.PolicyMaxBytes); err != nil {
			return false, fmt.Errorf("%s: %w", k.prefix, err)
		}
	}
	return k.apply(body, r)
}

func accepted(unchanged bool) pushResult {
	if unchanged {
		return resultUnchanged
	}
	return resultApplied
}

// refusal returns how a refused push is counted and answered.
func refusal(err error) (pushResult, int) {
	switch {
	case errors.Is(err, errTooLarge):
		return resultTooLarge, http.StatusBadRequest
	case errors.Is(err, errEncoding):
		return resultBadJSON, http.StatusUnsupportedMediaType
	case errors.Is(err, errRevision):
		return resultRevision, http.StatusBadRequest
	case errors.Is(err, policy.ErrVersion):
		return resultVersion, http.StatusBadRequest
	case errors.Is(err, policy.ErrUnknownField):
		return resultUnknownField, http.StatusBadRequest
	default:
		return resultBadJSON, http.StatusBadRequest
	}
}

func (h *Handler) policyKind() kind {
	return kind{name: kindPolicy, prefix: "decode policy snapshot", apply: h.applyPolicy}
}

func (h *Handler) applyPolicy(body []byte, r *http.Request) (unchanged bool, err error) {
	if sent := r.Header.Get(headerPolicyRevision); sent != "" && sent != policy.Revision(body) {
		return false, errRevision
	}
	snapshot, err := policy.DecodeSnapshot(body)
	if err != nil {
		return false, err
	}
	snapshot.AppliedAt = h.options.Now()
	before, after := h.options.Policies.Replace(snapshot)
	h.logPolicy(before, after)
	h.metrics.policyApplied(before, after)
	return before.Origin().Revision == snapshot.Revision, nil
}

// logPolicy leaves the line that an audit looks for.
func (h *Handler) logPolicy(before, after *policy.View) {
	from, to := before.Origin(), after.Origin()
	if from.Revision == to.Revision {
		h.options.Logger.Debug("policy pushed again", "revision", to.Revision)
		return
	}
	removed := before.Removed(after)
	log := h.options.Logger.Info
	message := "policy replaced"
	if before.Policies() >= massRemovalMin && 2*removed > before.Policies() {
		log, message = h.options.Logger.Warn, "policy replaced: most policies were removed"
	}
	log(message, "old_revision", from.Revision, "new_revision", to.Revision, "version", to.Version,
		"policies_before", before.Policies(), "policies", after.Policies(), "removed", removed, "tenants", after.Quotas())
}

func (h *Handler) extensionsKind() kind {
	return kind{name: kindExtensions, prefix: "decode policy extensions", apply: h.applyExtensions}
}

func (h *Handler) applyExtensions(body []byte, _ *http.Request) (unchanged bool, err error) {
	extensions, err := policy.DecodeExtensions(body)
	if err != nil {
		return false, err
	}
	extensions.AppliedAt = h.options.Now()
	before, after := h.options.Policies.ReplaceExtensions(extensions)
	from, to := before.ExtensionsOrigin(), after.ExtensionsOrigin()
	unchanged = from.Revision != "" && from.Revision == to.Revision
	if !unchanged {
		h.options.Logger.Info("policy extensions replaced", "old_revision", from.Revision, "new_revision", to.Revision,
			"templates", len(after.Templates()), "topologies", len(after.Topologies()))
	}
	h.metrics.extensionsApplied(after)
	return unchanged, nil
}
