// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

// maxDepth bounds values within values.
const maxDepth = 64

var (
	errJSON  = errors.New("no JSON value that a template can take")
	errDepth = errors.New("nested too deeply")
)

// decode turns JSON into a value; members keep their order.
func decode(raw []byte) (jinja.Value, error) { return decodeAt(bytes.TrimSpace(raw), 0) }

func decodeAt(raw []byte, depth int) (jinja.Value, error) {
	if depth > maxDepth {
		return jinja.Undefined(), errDepth
	}
	if len(raw) == 0 {
		return jinja.Undefined(), errJSON
	}
	switch raw[0] {
	case '{':
		dict := jinja.NewDict()
		err := jsonscan.Object(raw, func(key, value []byte) error {
			member, err := decodeAt(value, depth+1)
			dict.AsDict().Set(string(key), member)
			return err
		})
		return dict, err
	case '[':
		var items []jinja.Value
		err := jsonscan.Array(raw, func(value []byte) error {
			item, err := decodeAt(value, depth+1)
			items = append(items, item)
			return err
		})
		return jinja.NewList(items), err
	case '"':
		text, ok := jsonscan.String(raw)
		if !ok {
			return jinja.Undefined(), errJSON
		}
		return jinja.NewString(text), nil
	case 't', 'f':
		return jinja.NewBool(raw[0] == 't'), nil
	case 'n':
		return jinja.None(), nil
	default:
		return decodeNumber(string(raw))
	}
}

// decodeNumber keeps whole numbers whole, as Python does. Those beyond 64 bits
// are refused rather than rounded.
func decodeNumber(text string) (jinja.Value, error) {
	if !strings.ContainsAny(text, ".eE") {
		whole, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return jinja.Undefined(), errJSON
		}
		return jinja.NewInt(whole), nil
	}
	number, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(number, 0) {
		return jinja.Undefined(), errJSON
	}
	return jinja.NewFloat(number), nil
}

// jsonStyle is how a value is written.
type jsonStyle struct {
	item, key string
	indent    string // empty for one line
	ascii     bool
	sorted    bool
}

// toJSON is the filter tojson as engines define it: Python's json.dumps with
// ensure_ascii, indent, separators and sort_keys.
func (b *budget) toJSON(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	names := [...]string{"", "ensure_ascii", "indent", "separators", "sort_keys"}
	for i := 1; i < min(len(args), len(names)); i++ {
		if _, both := named[names[i]]; both {
			return jinja.Undefined(), b.end(ErrRender)
		}
	}
	option := func(i int) jinja.Value {
		if i < len(args) {
			return args[i]
		}
		return named[names[i]]
	}
	if len(args) == 0 || len(args) > len(names) {
		return jinja.Undefined(), b.end(ErrRender)
	}
	style := jsonStyle{item: ", ", key: ": ", ascii: option(1).IsTruthy(), sorted: option(4).IsTruthy()}
	switch indent := option(2); {
	case indent.IsInt():
		style.indent = "\n" + strings.Repeat(" ", int(min(max(indent.AsInt(), 0), 64)))
		style.item = ","
	case indent.IsString():
		style.indent, style.item = "\n"+indent.AsString(), ","
	}
	if separators := option(3); separators.IsList() {
		items := separators.AsList().Items
		if len(items) != 2 || !items[0].IsString() || !items[1].IsString() {
			return jinja.Undefined(), b.end(ErrRender)
		}
		style.item, style.key = items[0].AsString(), items[1].AsString()
	}
	w := jsonWriter{style: style, limit: b.options.MaxOutputBytes}
	if err := w.value(args[0], 0); err != nil {
		return jinja.Undefined(), b.end(ErrRender)
	}
	if w.out.Len() > w.limit {
		return jinja.Undefined(), b.end(ErrBudget)
	}
	return jinja.NewString(w.out.String()), b.step(1)
}

// jsonWriter stops writing soon after its limit.
type jsonWriter struct {
	style jsonStyle
	out   strings.Builder
	limit int
}

func (w *jsonWriter) value(value jinja.Value, depth int) error {
	switch {
	case depth > maxDepth:
		return errDepth
	case w.out.Len() > w.limit:
		return nil
	case value.IsNone():
		w.out.WriteString("null")
	case value.IsBool():
		w.out.WriteString(strconv.FormatBool(value.AsBool()))
	case value.IsInt():
		w.out.WriteString(strconv.FormatInt(value.AsInt(), 10))
	case value.IsFloat():
		w.out.WriteString(floatText(value.AsFloat()))
	case value.IsString():
		w.text(value.AsString())
	case value.IsList():
		return w.list(value.AsList().Items, depth)
	case value.IsDict():
		return w.dict(value.AsDict(), depth)
	default:
		return errJSON // Python cannot write it either
	}
	return nil
}

func (w *jsonWriter) newline(depth int) {
	if w.style.indent != "" {
		w.out.WriteByte('\n')
		for range depth {
			w.out.WriteString(w.style.indent[1:])
		}
	}
}

func (w *jsonWriter) list(items []jinja.Value, depth int) error {
	if len(items) == 0 {
		w.out.WriteString("[]")
		return nil
	}
	w.out.WriteByte('[')
	for i, item := range items {
		if i > 0 {
			w.out.WriteString(w.style.item)
		}
		w.newline(depth + 1)
		if err := w.value(item, depth+1); err != nil {
			return err
		}
	}
	w.newline(depth)
	w.out.WriteByte(']')
	return nil
}

func (w *jsonWriter) dict(dict *jinja.Dict, depth int) error {
	keys := dict.OrderedKeys()
	if len(keys) == 0 {
		w.out.WriteString("{}")
		return nil
	}
	if w.style.sorted {
		keys = slices.Sorted(slices.Values(keys))
	}
	w.out.WriteByte('{')
	for i, key := range keys {
		if i > 0 {
			w.out.WriteString(w.style.item)
		}
		w.newline(depth + 1)
		w.text(key)
		w.out.WriteString(w.style.key)
		member, _ := dict.Get(key)
		if err := w.value(member, depth+1); err != nil {
			return err
		}
	}
	w.newline(depth)
	w.out.WriteByte('}')
	return nil
}

// text writes a string with the escapes of Python.
func (w *jsonWriter) text(text string) {
	const hex = "0123456789abcdef"
	unit := func(u uint16) {
		w.out.WriteString(`\u`)
		for shift := 12; shift >= 0; shift -= 4 {
			w.out.WriteByte(hex[u>>shift&15])
		}
	}
	w.out.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			w.out.WriteByte('\\')
			w.out.WriteRune(r)
		case r == '\n':
			w.out.WriteString(`\n`)
		case r == '\r':
			w.out.WriteString(`\r`)
		case r == '\t':
			w.out.WriteString(`\t`)
		case r == '\b':
			w.out.WriteString(`\b`)
		case r == '\f':
			w.out.WriteString(`\f`)
		case r < ' ':
			unit(uint16(r))
		case r < utf8.RuneSelf && r != 0x7f || !w.style.ascii:
			w.out.WriteRune(r)
		case r >= 0x10000:
			unit(uint16(0xd800 + (r-0x10000)>>10))
			unit(uint16(0xdc00 + (r-0x10000)&0x3ff))
		default:
			unit(uint16(r))
		}
	}
	w.out.WriteByte('"')
}

// floatText writes a number as Python's repr does.
func floatText(number float64) string {
	if exponent := math.Abs(number); number != 0 && (exponent < 1e-4 || exponent >= 1e16) {
		return strconv.FormatFloat(number, 'e', -1, 64)
	}
	text := strconv.FormatFloat(number, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// strftime writes a time; false means that a directive is not known.
func strftime(format string, at time.Time) (string, bool) {
	layouts := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM",
		'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon", 'j': "002", 'Z': "MST", 'z': "-0700",
		'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04",
	}
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			out.WriteByte(format[i])
			continue
		}
		if i++; i == len(format) {
			return "", false
		}
		pad := true
		if format[i] == '-' && i+1 < len(format) {
			pad = false
			i++
		}
		layout, ok := layouts[format[i]]
		switch {
		case format[i] == '%':
			out.WriteByte('%')
		case !ok:
			return "", false
		case pad:
			out.WriteString(at.Format(layout))
		default: // the last digit stays
			text := at.Format(layout)
			out.WriteString(strings.TrimLeft(text[:len(text)-1], "0") + text[len(text)-1:])
		}
	}
	return out.String(), true
}
