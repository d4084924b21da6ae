// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/trace"
)

func TestCheckAddress(t *testing.T) {
	for address, allowed := range map[string]bool{
		"10.0.0.1:8000":               true,
		"127.0.0.1:8000":              true,
		"[::1]:8000":                  true,
		"[2001:db8::1]:8000":          true,
		"169.254.169.254:80":          false,
		"[::ffff:169.254.169.254]:80": false,
		"[fe80::1%eth0]:80":           false,
		"192.0.0.192:80":              false,
		"100.100.100.200:80":          false,
		"[fd00:ec2::254]:80":          false,
		"224.0.0.1:80":                false,
		"0.0.0.0:80":                  false,
		"[::]:80":                     false,
		"name:80":                     false,
		"2130706433:80":               false,
		"0x7f000001:80":               false,
	} {
		if err := checkAddress(address); (err == nil) != allowed {
			t.Errorf("%s: %v, want allowed %v", address, err, allowed)
		} else if err != nil && !errors.Is(err, errForbiddenAddress) {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestDialChecksTheResolvedAddress(t *testing.T) {
	transport := newTransport(ProtocolHTTP1, "169.254.169.254:80", nil)
	defer transport.CloseIdleConnections()
	request := httptest.NewRequest(http.MethodGet, "http://169.254.169.254/latest", nil)
	if _, err := transport.RoundTrip(request); !errors.Is(err, errForbiddenAddress) {
		t.Errorf("error %v, want errForbiddenAddress", err)
	}
}

func TestRetryBudgetShare(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	var budget retryBudget
	for range 100 {
		budget.request(now)
	}
	granted := 0
	for budget.takeRetry(now) {
		granted++
	}
	if granted != 20 {
		t.Errorf("%d retries for 100 requests, want 20", granted)
	}
	if !budget.takeRetry(now.Add(budgetSeconds * time.Second)) {
		t.Error("the budget does not recover")
	}
}

func TestLimiter(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := newLimiter(time.Minute, 2)
	var got []bool
	for _, step := range []struct {
		key   string
		after time.Duration
	}{{"a", 0}, {"a", time.Second}, {"b", time.Second}, {"c", time.Second}, {"a", time.Minute}, {"c", 2 * time.Minute}} {
		got = append(got, l.allow(step.key, now.Add(step.after)))
	}
	if diff := gocmp.Diff([]bool{true, false, true, false, true, true}, got); diff != "" {
		t.Errorf("allowed (-want +got):\n%s", diff)
	}
}

func TestUsageReader(t *testing.T) {
	tests := map[string]struct {
		answer string
		want   string
	}{
		"a whole answer":          {`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}`, "3 2 1"},
		"with spaces":             {`{ "usage" : { "prompt_tokens" : 3 } }`, "3 0 -"},
		"the last of a stream":    {"data: {\"usage\":{\"prompt_tokens\":1}}\n\ndata: {\"usage\":{\"prompt_tokens\":2}}\n\n", "2 0 -"},
		"null details":            {`{"usage":{"prompt_tokens":3,"prompt_tokens_details":null}}`, "3 0 -"},
		"null is no usage":        {`{"usage":null}`, "none"},
		"a text that looks alike": {`{"text":"\"usage\":{\"prompt_tokens\":9}"}`, "none"},
		"a value of that name":    {`{"a":"usage","b":{"prompt_tokens":9}}`, "none"},
		"braces in strings":       {`{"usage":{"x":"}\"}","prompt_tokens":4}}`, "4 0 -"},
		"after a false start":     {`{"a":"usage","usage":{"prompt_tokens":5}}`, "5 0 -"},
		"negative numbers":        {`{"usage":{"prompt_tokens":-5}}`, "none"},
		"never ending":            {`{"usage":{"x":"` + strings.Repeat("y", 2*maxUsageBytes) + `"}}`, "none"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 2, 3, 5, 7, 11, len(tc.answer)} {
				if got := readUsage(tc.answer, size); got != tc.want {
					t.Errorf("in pieces of %d: %s, want %s", size, got, tc.want)
				}
			}
		})
	}
}

func readUsage(answer string, size int) string {
	var r usageReader
	for len(answer) > 0 {
		n := min(size, len(answer))
		r.Write([]byte(answer[:n]))
		answer = answer[n:]
	}
	if r.last == nil {
		return "none"
	}
	cached := "-"
	if n, ok := r.last.cachedTokens(); ok {
		cached = fmt.Sprint(n)
	}
	return fmt.Sprintf("%d %d %s", r.last.PromptTokens, r.last.CompletionTokens, cached)
}

// FuzzUsageReader checks that the size of the pieces makes no difference.
func FuzzUsageReader(f *testing.F) {
	f.Add(`{"usage":{"prompt_tokens":3}}`, 1)
	f.Add(`""usage":"usage":{"a":{}}`, 3)
	f.Fuzz(func(t *testing.T, answer string, size int) {
		if size < 1 || size > 64 {
			return
		}
		if whole, pieces := readUsage(answer, max(len(answer), 1)), readUsage(answer, size); whole != pieces {
			t.Fatalf("whole: %s, in pieces of %d: %s", whole, size, pieces)
		}
	})
}

func FuzzDecodeModels(f *testing.F) {
	f.Add([]byte(`{"data":[{"id":"m"},{"id":"a","parent":"m"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		models, err := decodeModels(data)
		if err == nil && len(models) > maxModels {
			t.Fatal(len(models))
		}
		serves(models)
	})
}

// FuzzRootID checks that every id is short, printable and the client's own or a
// new one.
func FuzzRootID(f *testing.F) {
	f.Add("mine", "")
	f.Add("a\tb", "other")
	f.Add(strings.Repeat("\u00fc", 70), "")
	f.Add("\xff", "x")
	f.Fuzz(func(t *testing.T, first, second string) {
		g := &Gateway{}
		root := g.rootIDOf(http.Header{headerRequestID: {first}, "X-Correlation-Id": {second}}, "cmpl-")
		generated := root.source == trace.RootGenerated
		if len(root.id) == 0 || len(root.id) > trace.MaxRootIDBytes || !utf8.ValidString(root.id) || strings.ContainsFunc(root.id, unicode.IsControl) {
			t.Fatalf("id %q", root.id)
		}
		if generated && !strings.HasPrefix(root.id, "cmpl-") || !generated && !strings.HasPrefix(cmp.Or(first, second), root.id) {
			t.Fatalf("id %q of %q and %q is neither", root.id, first, second)
		}
		if !generated && root.truncated != (root.id != cmp.Or(first, second)) {
			t.Fatalf("id %q of %d bytes: truncated %v", root.id, len(first), root.truncated)
		}
	})
}

// FuzzTraceQuery checks that no query asks for more than is kept.
func FuzzTraceQuery(f *testing.F) {
	f.Add("last=5&id=root")
	f.Add("last=-1")
	f.Add("last=99999999999999999999;x")
	f.Fuzz(func(t *testing.T, text string) {
		query, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		if last, _, fault := traceQuery(query); fault == nil && (last < 1 || last > maxTraced) {
			t.Fatalf("%q asks for %d", text, last)
		}
	})
}
