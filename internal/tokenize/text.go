// SPDX-License-Identifier: Apache-2.0

package tokenize

// Text returns the raw member that holds the prompt itself, and those that
// shape how it becomes token ids; nil members are absent. Nothing may be
// changed.
func (p *Prompt) Text() (text []byte, others [][]byte) {
	at := fieldPrompt
	if p.Chat {
		at = fieldMessages
	}
	for i, field := range p.fields {
		if i != at {
			others = append(others, field)
		}
	}
	return p.fields[at], append(others, p.inputIDs)
}
