// SPDX-License-Identifier: Apache-2.0

package template

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/inferencecache/inference-cache/internal/policy"
)

// Limits.
const (
	// MaxBodyBytes is the longest body.
	MaxBodyBytes = policy.MaxTemplateBytes
	// MaxTextBytes is the longest rendered text.
	MaxTextBytes = 1 << 20
)

// What can be wrong with a template.
var (
	ErrBodyEmpty      = errors.New("the body is empty")
	ErrBodyTooLarge   = fmt.Errorf("the body is longer than %d bytes", MaxBodyBytes)
	ErrBadText        = errors.New("the body is not valid UTF-8")
	ErrBadPlaceholder = errors.New("bad placeholder: expected {{name}}")
	ErrUndeclaredSlot = errors.New("a placeholder names no slot")
	ErrBadSlot        = errors.New("bad slot")
)

// What can be wrong with the variables of one rendering.
var (
	ErrMissingVariable    = errors.New("a required slot has no variable")
	ErrUndeclaredVariable = errors.New("a variable names no slot")
	ErrTextTooLong        = fmt.Errorf("the text would be longer than %d bytes", MaxTextBytes)
)

// Template is a template that can be rendered. It never changes.
type Template struct {
	revision string
	slots    map[string]bool // whether a value is required
	parts    []part
	literals int // bytes of all literals
}

// part is literal text followed by a slot's value; the last part has no slot.
type part struct{ literal, slot string }

// Compile checks a template and prepares it for rendering. Placeholders of the
// forms {{.name}} and {{ name }} are taken for {{name}}.
func Compile(source policy.Template) (*Template, error) {
	switch {
	case source.Body == "":
		return nil, ErrBodyEmpty
	case len(source.Body) > MaxBodyBytes:
		return nil, ErrBodyTooLarge
	case !utf8.ValidString(source.Body):
		return nil, ErrBadText
	}
	t := &Template{slots: make(map[string]bool, len(source.Slots))}
	for _, slot := range source.Slots {
		if err := t.declare(slot); err != nil {
			return nil, err
		}
	}
	if err := t.split(source.Body); err != nil {
		return nil, err
	}
	t.revision = revision(t.body(), source.Slots)
	return t, nil
}

func (t *Template) declare(slot policy.Slot) error {
	_, twice := t.slots[slot.Name]
	switch {
	case !validName(slot.Name):
		return fmt.Errorf("%w %.64q: expected a name of letters, digits, _ and -", ErrBadSlot, slot.Name)
	case twice:
		return fmt.Errorf("%w %q: declared twice", ErrBadSlot, slot.Name)
	case slot.Type != policy.SlotStable && slot.Type != policy.SlotMutable:
		return fmt.Errorf("%w %q: type %.64q, expected %s or %s", ErrBadSlot, slot.Name, slot.Type, policy.SlotStable, policy.SlotMutable)
	}
	t.slots[slot.Name] = slot.Required
	return nil
}

// split cuts the body at its placeholders.
func (t *Template) split(body string) error {
	for offset := 0; ; {
		literal, rest, found := strings.Cut(body[offset:], "{{")
		t.literals += len(literal)
		if !found {
			t.parts = append(t.parts, part{literal: literal})
			return nil
		}
		at := offset + len(literal)
		inside, _, closed := strings.Cut(rest, "}}")
		name := strings.TrimPrefix(strings.TrimSpace(inside), ".")
		if !closed || !validName(name) {
			return fmt.Errorf("%w at byte %d of the body", ErrBadPlaceholder, at)
		}
		if _, declared := t.slots[name]; !declared {
			return fmt.Errorf("%w: %q at byte %d of the body", ErrUndeclaredSlot, name, at)
		}
		t.parts = append(t.parts, part{literal, name})
		offset = at + len("{{") + len(inside) + len("}}")
	}
}

const maxNameBytes = 128

// validName takes what a resource may call a slot.
func validName(name string) bool {
	if name == "" || len(name) > maxNameBytes {
		return false
	}
	for i, c := range []byte(name) {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c != '-' && (c < '0' || c > '9')) {
			return false
		}
	}
	return true
}

// body returns the body with its placeholders in their plain form.
func (t *Template) body() string {
	var body strings.Builder
	for _, p := range t.parts {
		body.WriteString(p.literal)
		if p.slot != "" {
			body.WriteString("{{" + p.slot + "}}")
		}
	}
	return body.String()
}

// revision is the first 16 hex digits of the SHA-256 of the body, a zero byte
// and the sorted lines "name:type:required" of the slots.
func revision(body string, slots []policy.Slot) string {
	lines := make([]string, len(slots))
	for i, slot := range slots {
		lines[i] = slot.Name + ":" + string(slot.Type) + ":" + strconv.FormatBool(slot.Required) + "\n"
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(body + "\x00" + strings.Join(lines, "")))
	return hex.EncodeToString(sum[:8])
}

// Revision names the content of the template: 16 hex digits.
func (t *Template) Revision() string { return t.revision }

// Placeholders names the slots that the body uses, in the order of the text.
func (t *Template) Placeholders() []string {
	var names []string
	for _, p := range t.parts {
		if p.slot != "" {
			names = append(names, p.slot)
		}
	}
	return names
}

// Render returns the text for some variables. A slot that is not required and
// has no variable is empty. Values are taken as they are: placeholders in them
// mean nothing.
func (t *Template) Render(variables map[string]string) (string, error) {
	for name := range variables {
		if _, declared := t.slots[name]; !declared {
			return "", ErrUndeclaredVariable
		}
	}
	for name, required := range t.slots {
		if _, given := variables[name]; required && !given {
			return "", ErrMissingVariable
		}
	}
	length := t.literals
	for _, p := range t.parts {
		if length += len(variables[p.slot]); length > MaxTextBytes {
			return "", ErrTextTooLong
		}
	}
	var text strings.Builder
	text.Grow(length)
	for _, p := range t.parts {
		text.WriteString(p.literal)
		text.WriteString(variables[p.slot])
	}
	return text.String(), nil
}
