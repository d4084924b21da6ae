// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"context"
	"regexp"
	"strings"
)

// Render returns the text of a request. Errors are ErrUnsupported, those of
// Template.Render, and ctx's.
func (c *Conversation) Render(ctx context.Context, dialect Dialect, request *Request) (string, error) {
	variables, err := c.variables(dialect, request)
	if err != nil {
		return "", err
	}
	return c.template.Render(ctx, variables)
}

var (
	forStatement = regexp.MustCompile(`\{%[-+]?\s*for\s+([A-Za-z_]\w*)\s+in\s+(.*?)[-+]?%\}`)
	setStatement = regexp.MustCompile(`\{%[-+]?\s*set\s+([A-Za-z_]\w*)\s*=\s*(.*?)[-+]?%\}`)
)

// takesParts says whether a template loops over the content of messages, so
// that engines hand content over as a list of parts and not as text.
func takesParts(source string) bool {
	lists := map[string]bool{"messages": true}
	for _, set := range setStatement.FindAllStringSubmatch(source, -1) {
		if name, member := subject(set[2]); lists[name] && member == "" {
			lists[set[1]] = true
		}
	}
	items := map[string]bool{}
	loops := forStatement.FindAllStringSubmatch(source, -1)
	for _, loop := range loops {
		if name, member := subject(loop[2]); lists[name] && member == "" {
			items[loop[1]] = true
		}
	}
	for _, loop := range loops {
		if name, member := subject(loop[2]); items[name] && member == "content" {
			return true
		}
	}
	return false
}

var subjectPattern = regexp.MustCompile(
	`^\(*\s*([A-Za-z_]\w*)\s*(?:\.\s*([A-Za-z_]\w*)|\[\s*['"]([A-Za-z_]\w*)['"]\s*\])?\s*(\[[^\]'"]*\])?\s*(?:\||\)|if\b|$)`)

// subject returns the variable an expression begins with and the member of it
// that is meant.
func subject(expression string) (name, member string) {
	found := subjectPattern.FindStringSubmatch(strings.TrimSpace(expression))
	if found == nil {
		return "", ""
	}
	return found[1], found[2] + found[3]
}
