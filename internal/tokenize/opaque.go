// SPDX-License-Identifier: Apache-2.0

package tokenize

// SetOpaque says that only the engine knows the prompt's token ids.
func (p *Prompt) SetOpaque() { p.opaque = true }
