// SPDX-License-Identifier: Apache-2.0

package probe

// Slots returns how many slots are kept.
func (p *Prober) Slots() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.slots)
}
