// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"strings"
	"testing"
)

func FuzzDecodeReview(f *testing.F) {
	f.Add([]byte(`{"kind":"TokenReview","status":{"authenticated":true,"user":{"username":"u","extra":{"k":["v"]}},"audiences":["a"]}}`))
	f.Add([]byte(`{"kind":"Status"}`))
	f.Add([]byte(`{"status":null,"kind":"TokenReview"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		status, err := decodeReview(text)
		if err != nil && (status.Authenticated || status.User.Username != "") {
			t.Errorf("an unreadable answer authenticates: %+v", status)
		}
	})
}

func FuzzDecodeAccess(f *testing.F) {
	f.Add([]byte(`{"kind":"SubjectAccessReview","status":{"allowed":true,"denied":false}}`))
	f.Add([]byte(`{"kind":"Status","status":"Failure"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if allowed, err := decodeAccess(text); err != nil && allowed {
			t.Error("an unreadable answer allows")
		}
	})
}

// FuzzAudienceOfToken reads any token. What it says of the audience must be in
// the token's middle part.
func FuzzAudienceOfToken(f *testing.F) {
	f.Add("e30.eyJhdWQiOlsiYSJdfQ.x")
	f.Add("e30.eyJhdWQiOiJhIn0.x")
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		if names(token, "a") && !names("."+strings.Split(token, ".")[1]+".", "a") {
			t.Errorf("another part of %q decides", token)
		}
	})
}
