// SPDX-License-Identifier: Apache-2.0

package auth

import "testing"

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
