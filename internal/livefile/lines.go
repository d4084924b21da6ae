// SPDX-License-Identifier: Apache-2.0

package livefile

import (
	"fmt"
	"strings"
)

// EachLine calls use with the words of every line; empty lines and those that
// start with # are passed over. Errors name the line and never quote it.
func EachLine(text []byte, use func(number int, words []string) error) error {
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if err := use(number, words); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	return nil
}
