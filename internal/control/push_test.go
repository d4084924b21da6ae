// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/internal/control"
	"github.com/inferencecache/inference-cache/internal/policy"
)

const oneMiB = 1 << 20

// padded is a valid snapshot of a given length.
func padded(length int) string {
	const body = `{"version":7,"policies":[{"namespace":"a"}]}`
	return body + strings.Repeat(" ", length-len(body))
}

func TestPush(t *testing.T) {
	const body = `{"version":7,"policies":[{"namespace":"a"}]}`
	const revision = "X-Inference-Cache-Policy-Revision"
	for name, tc := range map[string]struct {
		body    string
		headers []string
		code    int
		text    string
		result  string
	}{
		"a snapshot":                       {body, nil, 204, "", "applied"},
		"identity encoding":                {body, []string{"Content-Encoding", "identity"}, 204, "", "applied"},
		"any content type":                 {body, []string{"Content-Type", "text/plain"}, 204, "", "applied"},
		"just under the limit":             {padded(oneMiB - 1), nil, 204, "", "applied"},
		"the limit":                        {padded(oneMiB), nil, 204, "", "applied"},
		"a byte over the limit":            {padded(oneMiB + 1), nil, 400, "decode policy snapshot: body too large", "too_large"},
		"no JSON":                          {"x", nil, 400, "decode policy snapshot: invalid JSON", "bad_json"},
		"nothing":                          {"", nil, 400, "decode policy snapshot: invalid JSON", "bad_json"},
		"an unknown field":                 {`{"version":7,"x":1}`, nil, 400, `decode policy snapshot: unknown field "x"`, "unknown_field"},
		"a version too new":                {`{"version":8}`, nil, 400, "unsupported policy snapshot version 8", "version"},
		"the revision of the body":         {`{"version":7,"policies":[]}`, []string{revision, "b1af69a7f08d9696baf715ebccc03bcb89b15103bef1adac3fa22fdbb2b94642"}, 204, "", "applied"},
		"the revision of another body":     {body, []string{revision, "b1af69a7f08d9696baf715ebccc03bcb89b15103bef1adac3fa22fdbb2b94642"}, 400, "policy revision mismatch\n", "revision"},
		"compressed":                       {"gzip:" + body, []string{"Content-Encoding", "gzip"}, 204, "", "applied"},
		"compressed, in another case":      {"gzip:" + body, []string{"Content-Encoding", " GZIP"}, 204, "", "applied"},
		"compressed, with its revision":    {`gzip:{"version":7,"policies":[]}`, []string{"Content-Encoding", "gzip", revision, "b1af69a7f08d9696baf715ebccc03bcb89b15103bef1adac3fa22fdbb2b94642"}, 204, "", "applied"},
		"compressed, over 1 MiB":           {"gzip:" + padded(oneMiB+1000), []string{"Content-Encoding", "gzip"}, 204, "", "applied"},
		"compressed, at the limit":         {"gzip:" + padded(2*oneMiB), []string{"Content-Encoding", "gzip"}, 204, "", "applied"},
		"compressed, over the limit":       {"gzip:" + padded(2*oneMiB+1), []string{"Content-Encoding", "gzip"}, 400, "decode policy snapshot: body too large: more than 2097152 bytes when decompressed", "too_large"},
		"a bomb":                           {"gzip:" + strings.Repeat(" ", 8*oneMiB), []string{"Content-Encoding", "gzip"}, 400, "decode policy snapshot: body too large", "too_large"},
		"too much that is not compressed":  {strings.Repeat("x", oneMiB+1), []string{"Content-Encoding", "gzip"}, 400, "decode policy snapshot: body too large: more than 1048576 bytes", "too_large"},
		"not compressed, though said to":   {body, []string{"Content-Encoding", "gzip"}, 400, "decode policy snapshot: decompress body", "bad_json"},
		"compressed, though not said to":   {"gzip:" + body, nil, 400, "decode policy snapshot: invalid JSON", "bad_json"},
		"compressed with something behind": {"gzip:" + body + "\x00tail", []string{"Content-Encoding", "gzip"}, 400, "decode policy snapshot: ", "bad_json"},
		"another encoding":                 {body, []string{"Content-Encoding", "br"}, 415, "decode policy snapshot: unsupported content encoding", "bad_json"},
		"two encodings":                    {"gzip:" + body, []string{"Content-Encoding", "gzip", "Content-Encoding", "gzip"}, 415, "decode policy snapshot: unsupported content encoding", "bad_json"},
	} {
		t.Run(name, func(t *testing.T) {
			h := start(t, func(o *control.Options) { o.PolicyMaxBytes = 2 * oneMiB })
			h.call("POST", "/policy", `{"version":6,"policies":[{"namespace":"before"}]}`)
			before := h.policies.View()
			sent := tc.body
			if plain, ok := strings.CutPrefix(sent, "gzip:"); ok {
				plain, tail, _ := strings.Cut(plain, "\x00")
				sent = compressed(t, []byte(plain)) + tail
			}
			h.wantAnswer(h.call("PUT", "/policy", sent, tc.headers...), tc.code, tc.text)
			if changed := h.policies.View() != before; changed != (tc.code == 204) {
				t.Errorf("answered %d and changed the policy: %v", tc.code, changed)
			}
			want := 1.0
			if tc.code == 204 {
				want = 2 // with the push before
			}
			h.wantMetric(want, "policy_pushes_total", "kind", "policy", "result", tc.result)
			h.wantMetric(want, "internal_requests_total", "endpoint", "policy", "code", strconv.Itoa(tc.code))
		})
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

func TestPushThatBreaksOff(t *testing.T) {
	h := start(t)
	body := io.MultiReader(strings.NewReader(`{"version":7}`), brokenReader{})
	h.wantAnswer(h.stream("POST", "/policy", body), http.StatusBadRequest, "decode policy snapshot: read body")
	if !h.policies.View().Origin().AppliedAt.IsZero() {
		t.Error("half a body was applied")
	}
}

func TestPushExtensions(t *testing.T) {
	h := start(t)
	for _, tc := range []struct {
		body, text string
		code       int
		result     string
	}{
		{`{"version":1,"revision":"r1","templates":[{"namespace":"a","name":"t"}],"pdTopologies":[{"namespace":"a","name":"p"}]}`, "", 204, "applied"},
		{`{"version":1,"policies":[{"namespace":"a","affinityHash":"Random"}]}`, "decode policy extensions: policies[0].affinityHash", 400, "bad_json"},
		{`{"version":2}`, "unsupported policy extensions version 2", 400, "version"},
		{`{"version":1,"y":1}`, `decode policy extensions: unknown field "y"`, 400, "unknown_field"},
		{padded(oneMiB + 1), "decode policy extensions: body too large", 400, "too_large"},
		{`{"version":1,"revision":"r1"}`, "", 204, "unchanged"},
	} {
		h.wantAnswer(h.call("POST", "/policy/extensions", tc.body), tc.code, tc.text)
		h.wantMetric(1, "policy_pushes_total", "kind", "extensions", "result", tc.result)
	}
	h.call("POST", "/policy/extensions", `{"version":1,"revision":"r2","templates":[{"namespace":"a","name":"t"}]}`)
	h.wantMetric(1, "policy_entries", "kind", "template")
	h.wantMetric(0, "policy_entries", "kind", "topology")
	h.wantMetric(float64(noon.Unix()), "policy_last_applied_timestamp_seconds", "kind", "extensions")
	h.wantMetric(0, "policy_last_applied_timestamp_seconds", "kind", "policy")
}

func snapshotOf(namespaces ...string) string {
	entries := make([]string, len(namespaces))
	for i, namespace := range namespaces {
		entries[i] = fmt.Sprintf(`{"namespace":%q}`, namespace)
	}
	return `{"version":5,"policies":[` + strings.Join(entries, ",") + `],"tenants":[{"tenantID":"q","maxIndexEntries":1}]}`
}

func TestPushMetricsAndAudit(t *testing.T) {
	h := start(t)
	first, second := snapshotOf("a", "b"), snapshotOf("b", "c", "d")
	h.call("POST", "/policy", first)
	h.wantMetric(1, "policy_revision_info", "revision", policy.Revision([]byte(first))[:12])
	h.call("POST", "/policy", first)
	h.wantMetric(1, "policy_pushes_total", "kind", "policy", "result", "unchanged")
	h.call("POST", "/policy", second)
	h.wantMetric(2, "policy_pushes_total", "kind", "policy", "result", "applied")
	h.wantMetric(1, "policy_removals_total")
	h.wantMetric(5, "policy_schema_version")
	h.wantMetric(3, "policy_entries", "kind", "policy")
	h.wantMetric(1, "policy_entries", "kind", "tenant")
	h.wantMetric(float64(len(second)), "policy_body_bytes", "kind", "policy")
	h.wantMetric(float64(noon.Unix()), "policy_last_applied_timestamp_seconds", "kind", "policy")
	h.wantMetric(1, "policy_revision_info", "revision", policy.Revision([]byte(second))[:12])
	if n := h.count("policy_revision_info"); n != 1 {
		t.Errorf("%d revisions are shown, want 1", n)
	}
	logs := h.logs.String()
	audit := "old_revision=" + policy.Revision([]byte(first)) + " new_revision=" + policy.Revision([]byte(second))
	if strings.Count(logs, "policy replaced") != 2 || !strings.Contains(logs, audit) {
		t.Errorf("no audit line %q in\n%s", audit, logs)
	}
}

func TestMassRemovalIsAppliedAndWarnedOf(t *testing.T) {
	ten := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
	for name, tc := range map[string]struct {
		before, after []string
		warned        bool
	}{
		"half of ten":            {ten, ten[:5], false},
		"more than half of ten":  {ten, ten[:4], true},
		"all of nine":            {ten[:9], nil, false},
		"all of ten":             {ten, nil, true},
		"all of ten, for others": {ten, []string{"k", "l", "m", "n", "o", "p"}, true},
		"ten more":               {nil, ten, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := start(t)
			h.call("POST", "/policy", snapshotOf(tc.before...))
			h.wantAnswer(h.call("POST", "/policy", snapshotOf(tc.after...)), http.StatusNoContent, "")
			if n := h.policies.View().Policies(); n != len(tc.after) {
				t.Errorf("%d policies in force, want %d", n, len(tc.after))
			}
			if got := strings.Contains(h.logs.String(), "level=WARN"); got != tc.warned {
				t.Errorf("warned %v, want %v:\n%s", got, tc.warned, h.logs.String())
			}
		})
	}
}
