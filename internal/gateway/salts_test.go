// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A salt is bound to its tenant: no client salt gives another tenant's.
func TestDeriveSalt(t *testing.T) {
	key := []byte("0123456789abcdef")
	seen := map[string][2]string{}
	for _, pair := range [][2]string{{"a", ""}, {"a", "x"}, {"b", ""}, {"b", "x"}, {"ax", ""}, {"a", "\x00"}} {
		salt := deriveSalt(key, pair[0], pair[1])
		if other, known := seen[salt]; known {
			t.Errorf("%q and %q share a salt", pair, other)
		}
		seen[salt] = pair
	}
	// HMAC-SHA256("0123456789abcdef", "team-a" 0x00 "s"), computed elsewhere.
	const want = "ZSve0O4tJA8hGjw3hU_LN7fLiSaZCjkTqmr5tWC6bQY"
	if got := deriveSalt(key, "team-a", "s"); got != want {
		t.Errorf("salt %q, want %q", got, want)
	}
	if deriveSalt([]byte("another secret of it"), "team-a", "s") == want {
		t.Error("the key does not matter")
	}
}

// Whatever the object: afterwards it has one salt, the given one, and all its
// other members.
func FuzzWithSalt(f *testing.F) {
	for _, seed := range []string{
		`{}`, ` { } `, `{"a":1}`, `{"cache_salt":"x"}`, `{"cache_salt":1,"a":{"cache_salt":"y"},"cache_salt":null}`,
		`{"cache\u005fsalt":"}"}`, `{"a":"}","b":[1,2,{}]}` + "\n", `[]`, `{`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var before map[string]json.RawMessage
		salted, err := withSalt(body, "the-salt")
		if json.Unmarshal(body, &before) != nil || before == nil {
			if err == nil {
				t.Fatalf("%q was taken for an object", body)
			}
			return
		}
		if err != nil {
			return // nested too deeply
		}
		var after map[string]json.RawMessage
		if err := json.Unmarshal(salted, &after); err != nil {
			t.Fatalf("%q became %q: %v", body, salted, err)
		}
		want := maps.Clone(before)
		want["cache_salt"] = json.RawMessage(`"the-salt"`)
		if diff := cmp.Diff(want, after); diff != "" {
			t.Fatalf("%q (-want +got):\n%s", body, diff)
		}
	})
}
