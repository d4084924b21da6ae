// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"strings"
	"testing"
)

// FuzzParseTokens reads any file and checks that errors say nothing of it.
func FuzzParseTokens(f *testing.F) {
	f.Add("audience token\n# comment\n\n")
	f.Add("one\ttoken\r\nalone")
	f.Add(strings.Repeat("x", 1<<17) + " y")
	f.Fuzz(func(t *testing.T, text string) {
		tokens, err := parseTokens([]byte(text))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "line ") {
				t.Errorf("error %q", err)
			}
			return
		}
		lines := 0
		for _, sums := range tokens {
			lines += len(sums)
		}
		if most := strings.Count(text, "\n") + 1; lines > most {
			t.Errorf("%d tokens in %d lines", lines, most)
		}
	})
}
