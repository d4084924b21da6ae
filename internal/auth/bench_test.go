// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/gate"
)

// What a call pays for a token that is remembered.
func BenchmarkRememberedToken(b *testing.B) {
	token := strings.Repeat("x", 1200)
	reviews := auth.NewReviews(auth.ReviewOptions{
		Reviewer: &reviewer{reviews: map[string]auth.Review{token: good(controller)}}, Audience: audience, MaxAdmitted: 4096,
	})
	b.Cleanup(reviews.Close)
	ctx := b.Context()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, verdict := reviews.Authenticate(ctx, "192.0.2.1", token); verdict != gate.OK {
				b.Error(verdict)
				return
			}
		}
	})
}
