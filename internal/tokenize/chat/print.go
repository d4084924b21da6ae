// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"strconv"
	"strings"
	"unicode"

	"github.com/ardanlabs/jinja"
)

// printed is a value as Python's str writes it.
func (b *budget) printed(value jinja.Value) (string, error) {
	switch {
	case value.IsString():
		return value.AsString(), nil
	case value.IsUndefined(), value.IsCallable():
		return "", nil
	}
	p := printer{limit: b.options.MaxOutputBytes}
	if !p.value(value, 0) {
		return "", b.end(ErrRender)
	}
	if p.out.Len() > p.limit {
		return "", b.end(ErrBudget)
	}
	return p.out.String(), nil
}

// printer writes values as Python's repr does. It stops soon after its limit.
type printer struct {
	out   strings.Builder
	limit int
}

// value is false for what is nested too deeply.
func (p *printer) value(value jinja.Value, depth int) bool {
	switch {
	case depth > maxDepth:
		return false
	case p.out.Len() > p.limit:
	case value.IsNone():
		p.out.WriteString("None")
	case value.IsBool():
		p.out.WriteString(map[bool]string{true: "True", false: "False"}[value.AsBool()])
	case value.IsInt():
		p.out.WriteString(strconv.FormatInt(value.AsInt(), 10))
	case value.IsFloat():
		p.out.WriteString(floatText(value.AsFloat()))
	case value.IsString():
		p.text(value.AsString())
	case value.IsList():
		p.out.WriteByte('[')
		for i, item := range value.AsList().Items {
			if i > 0 {
				p.out.WriteString(", ")
			}
			if !p.value(item, depth+1) {
				return false
			}
		}
		p.out.WriteByte(']')
	case value.IsDict():
		p.out.WriteByte('{')
		for i, key := range value.AsDict().OrderedKeys() {
			if i > 0 {
				p.out.WriteString(", ")
			}
			p.text(key)
			p.out.WriteString(": ")
			member, _ := value.AsDict().Get(key)
			if !p.value(member, depth+1) {
				return false
			}
		}
		p.out.WriteByte('}')
	default:
		p.out.WriteString("Undefined")
	}
	return true
}

// text writes a string with quotes, single ones where possible.
func (p *printer) text(text string) {
	quote := '\''
	if strings.Contains(text, "'") && !strings.Contains(text, `"`) {
		quote = '"'
	}
	p.out.WriteRune(quote)
	for _, r := range text {
		switch {
		case r == quote || r == '\\':
			p.out.WriteByte('\\')
			p.out.WriteRune(r)
		case r == '\n':
			p.out.WriteString(`\n`)
		case r == '\r':
			p.out.WriteString(`\r`)
		case r == '\t':
			p.out.WriteString(`\t`)
		case r == ' ' || unicode.IsPrint(r):
			p.out.WriteRune(r)
		case r < 0x100:
			p.escape('x', 2, r)
		case r < 0x10000:
			p.escape('u', 4, r)
		default:
			p.escape('U', 8, r)
		}
	}
	p.out.WriteRune(quote)
}

func (p *printer) escape(kind byte, digits int, r rune) {
	hex := strconv.FormatInt(int64(r), 16)
	p.out.WriteString(`\` + string(kind) + strings.Repeat("0", digits-len(hex)) + hex)
}
