// SPDX-License-Identifier: Apache-2.0

package defaults_test

import (
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/defaults"
)

func TestSetKeepsWhatIsGiven(t *testing.T) {
	for value, want := range map[string]string{"": "fallback", "given": "given"} {
		if defaults.Set(&value, "fallback"); value != want {
			t.Errorf("got %q, want %q", value, want)
		}
	}
	negative := -time.Second
	if defaults.Set(&negative, time.Second); negative != -time.Second {
		t.Errorf("a negative value became %s", negative)
	}
}

func TestPositiveReplacesWhatCannotBe(t *testing.T) {
	for value, want := range map[time.Duration]time.Duration{-1: time.Second, 0: time.Second, 5: 5} {
		if defaults.Positive(&value, time.Second); value != want {
			t.Errorf("got %s, want %s", value, want)
		}
	}
}
