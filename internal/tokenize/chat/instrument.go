// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// instrument weaves hooks into a template: each loop, assignment, macro and
// output passes by the budget. Text and string literals are written so that
// the library cannot read them but as Jinja with trim_blocks and lstrip_blocks
// does. What it does not know it refuses.
func instrument(source string) (string, error) {
	if len(source) > maxTemplateBytes || !utf8.ValidString(source) {
		return "", fmt.Errorf("%w: at most %d bytes of UTF-8 are expected", ErrTemplate, maxTemplateBytes)
	}
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	w := weaver{source: strings.TrimSuffix(source, "\n"), lineStart: true}
	for w.at < len(w.source) {
		if err := w.next(); err != nil {
			line := 1 + strings.Count(w.source[:w.tag], "\n")
			return "", fmt.Errorf("%w: line %d: %w", ErrTemplate, line, err)
		}
	}
	return w.out.String(), nil
}

// weaver is the state of one instrument.
type weaver struct {
	source string
	out    strings.Builder
	// at is how far the source was read, tag where the current tag begins.
	at, tag int
	// lineStart says whether a line begins at at.
	lineStart bool
}

// next treats the text up to the next tag, and the tag.
func (w *weaver) next() error {
	rest := w.source[w.at:]
	open := nextTag(rest)
	if open < 0 {
		w.text(rest)
		w.at = len(w.source)
		return nil
	}
	w.tag = w.at + open
	kind := rest[open+1]
	end := map[byte]string{'{': "}}", '%': "%}", '#': "#}"}[kind]
	inner, size, err := tagContent(rest[open+2:], end)
	if kind == '#' {
		inner, _, _ = strings.Cut(rest[open+2:], end)
		size, err = len(inner)+len(end), nil
		if open+2+size > len(rest) {
			err = errors.New("a comment does not end")
		}
	}
	if err != nil {
		return err
	}
	t := newTag(kind, inner)
	w.text(w.leftTrimmed(rest[:open], &t))
	w.at = w.tag + 2 + size
	if t.kind == '%' && t.code == "raw" {
		return w.raw(&t)
	}
	w.trimRight(&t)
	switch kind {
	case '#':
		return nil
	case '{':
		code, err := rewrite(t.code)
		w.out.WriteString("{{ " + hookOut + "(" + code + ") }}")
		return err
	default:
		return w.statement(&t)
	}
}

// nextTag returns where a tag begins, -1 if none does.
func nextTag(text string) int {
	for at := 0; ; at++ {
		open := strings.IndexByte(text[at:], '{')
		if open < 0 || at+open+1 == len(text) {
			return -1
		}
		at += open
		if strings.IndexByte("{%#", text[at+1]) >= 0 {
			return at
		}
	}
}

// leftTrimmed is text before a tag without the whitespace that the tag takes.
func (w *weaver) leftTrimmed(text string, t *tag) string {
	if t.left == "-" {
		return strings.TrimRightFunc(text, unicode.IsSpace)
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if t.left == "+" || t.kind == '{' || line == 0 && !w.lineStart ||
		strings.TrimFunc(text[line:], unicode.IsSpace) != "" {
		return text
	}
	return text[:line]
}

// trimRight skips the whitespace after a tag that the tag takes.
func (w *weaver) trimRight(t *tag) {
	rest, before := w.source[w.at:], w.at
	switch {
	case t.right == "-":
		w.at += len(rest) - len(strings.TrimLeftFunc(rest, unicode.IsSpace))
	case t.right == "" && t.kind != '{' && strings.HasPrefix(rest, "\n"):
		w.at++
	}
	w.lineStart = w.at > before && w.source[w.at-1] == '\n'
}

// text writes text that is no tag, as a literal.
func (w *weaver) text(text string) {
	if text != "" {
		literal := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text)
		w.out.WriteString("{{ " + hookOut + `("` + literal + `") }}`)
	}
}

// tagContent returns what is inside a tag, and its length with the end mark.
// Marks inside strings or dicts do not count.
func tagContent(text, end string) (inner string, size int, err error) {
	quote, depth := byte(0), 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quote != 0 && c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == '{':
			depth++
		case strings.HasPrefix(text[i:], end) && depth == 0:
			return text[:i], i + len(end), nil
		case c == '}':
			depth--
		}
	}
	return "", 0, errors.New("a tag does not end")
}

// tag is one tag, without its marks.
type tag struct {
	kind        byte
	left, right string // whitespace control
	code        string
}

func newTag(kind byte, inner string) tag {
	t := tag{kind: kind, code: inner}
	for _, mark := range []string{"-", "+"} {
		if code, ok := strings.CutPrefix(t.code, mark); ok && t.left == "" {
			t.left, t.code = mark, code
		}
		if code, ok := strings.CutSuffix(t.code, mark); ok && t.right == "" {
			t.right, t.code = mark, code
		}
	}
	t.code = strings.TrimSpace(t.code)
	return t
}

func (w *weaver) write(code string) { w.out.WriteString("{% " + code + " %}") }

// statement treats a block tag.
func (w *weaver) statement(t *tag) error {
	keyword, rest := t.code, ""
	if at := strings.IndexFunc(t.code, func(r rune) bool { return !isNameRune(r) }); at >= 0 {
		keyword, rest = t.code[:at], strings.TrimSpace(t.code[at:])
	}
	switch keyword {
	case "if", "elif", "call":
		code, err := rewrite(rest)
		w.write(keyword + " " + code)
		return err
	case "filter":
		code, err := rewrite("|" + rest)
		w.write(keyword + " " + strings.TrimPrefix(code, "|"))
		return err
	case "for":
		return w.loop(rest)
	case "set":
		return w.assignment(rest)
	case "macro":
		code, err := rewrite(rest)
		w.write("macro " + code)
		w.write("set " + hookIgnore + " = " + hookCall + "()")
		return err
	case "endmacro":
		w.write("set " + hookIgnore + " = " + hookReturn + "()")
		w.write(keyword)
		return nil
	case "else", "endif", "endfor", "endset", "endcall", "endfilter", "break", "continue":
		w.write(keyword)
		return nil
	case "generation", "endgeneration": // marks for training
		return nil
	default:
		return fmt.Errorf("unknown statement %.32q", keyword)
	}
}

var endRaw = regexp.MustCompile(`\{%([-+]?)\s*endraw\s*([-+]?)%\}`)

// raw writes a raw block as text.
func (w *weaver) raw(begin *tag) error {
	if begin.right == "-" {
		w.trimRight(begin)
	}
	rest := w.source[w.at:]
	end := endRaw.FindStringSubmatchIndex(rest)
	if end == nil {
		return errors.New("a raw block does not end")
	}
	t := tag{kind: '%', left: rest[end[2]:end[3]], right: rest[end[4]:end[5]]}
	w.lineStart = false
	w.text(w.leftTrimmed(rest[:end[0]], &t))
	w.at += end[1]
	w.trimRight(&t)
	return nil
}

func (w *weaver) loop(rest string) error {
	variables, iterable, err := cutWord(rest, "in")
	if err != nil {
		return err
	}
	if iterable == "" {
		return errors.New("for without in")
	}
	iterable, condition, err := cutWord(iterable, "if")
	if err != nil {
		return err
	}
	for _, part := range []string{iterable, condition} {
		if _, after, err := cutWord(part+" ", "recursive"); err != nil || after != "" || strings.HasSuffix(part, " recursive") {
			return errors.New("recursive loops are not supported")
		}
	}
	code, err := rewrite(iterable)
	if err != nil {
		return err
	}
	code = "for " + variables + " in " + hookLoop + "(" + code + ")"
	if condition != "" {
		condition, err = rewrite(condition)
		code += " if " + condition
	}
	w.write(code)
	return err
}

func (w *weaver) assignment(rest string) error {
	target, value, found := strings.Cut(rest, "=")
	target = strings.TrimSpace(target)
	if strings.ContainsFunc(target, func(r rune) bool { return !isNameRune(r) && r != '.' }) || target == "" ||
		strings.HasPrefix(target, hookPrefix) {
		return fmt.Errorf("set %.32q: one name, or a member of a namespace, is expected", target)
	}
	if !found {
		w.write("set " + target)
		return nil
	}
	hook := hookSet
	if strings.Contains(target, ".") {
		hook = hookPut
	}
	code, err := rewrite(value)
	w.write("set " + target + " = " + hook + "(" + code + ")")
	return err
}

func isNameRune(r rune) bool {
	return r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

// mutators change lists and dicts in place. Engines render in a sandbox that
// forbids them.
var mutators = []string{"append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update"}
