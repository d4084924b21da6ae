// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"sync"
)

// collector keeps the warnings of the API server.
type collector struct {
	mu    sync.Mutex
	texts []string // guarded by mu
}

// HandleWarningHeaderWithContext is called by the client for each warning.
func (c *collector) HandleWarningHeaderWithContext(_ context.Context, code int, _, text string) {
	if code != 299 || text == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.texts = append(c.texts, text)
}

func (c *collector) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	texts := c.texts
	c.texts = nil
	return texts
}
