// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"
)

// complaints are what is wrong with servers. Those with the same trouble share
// a text, so that a message names as many as it can hold.
type complaints struct {
	texts   []string
	servers map[string][]string // by text
}

func (c *complaints) add(server, text string) {
	if c.servers == nil {
		c.servers = make(map[string][]string)
	}
	if c.servers[text] == nil {
		c.texts = append(c.texts, text)
	}
	c.servers[text] = append(c.servers[text], server)
}

func (c *complaints) any() bool { return len(c.texts) > 0 }

// minShare is how many bytes say what is wrong with a server.
const minShare = 60

// message gives each text a share of the bytes, so that no long one hides who
// else is in trouble, and counts the servers that it has no room for.
func (c *complaints) message(bytes int) string {
	const separator = "; "
	shown := c.texts[:min(len(c.texts), bytes/minShare)]
	left, more := bytes, ""
	if others := c.texts[len(shown):]; len(others) > 0 {
		count := 0
		for _, text := range others {
			count += len(c.servers[text])
		}
		more = fmt.Sprintf("%sand %d more", separator, count)
		left -= len(more)
	}
	var parts []string
	for i, text := range shown {
		share := (left - len(separator)*(len(shown)-i-1)) / (len(shown) - i)
		part := clip(joined(c.servers[text], share/2)+": "+text, share)
		left -= len(part) + len(separator)
		parts = append(parts, part)
	}
	return strings.Join(parts, separator) + more
}

// joined names the first servers, and how many more there are.
func joined(servers []string, bytes int) string {
	text := servers[0]
	for i, server := range servers[1:] {
		more := fmt.Sprintf(" and %d more", len(servers)-i-1)
		if len(text)+len(server)+len(", ")+len(more) > bytes {
			return text + more
		}
		text += ", " + server
	}
	return text
}
