// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxBrackets = 64
	// maxLiteral bounds numbers in a template, since some become lengths.
	maxLiteral = 1_000_000
)

// lexeme is a piece of an expression.
type lexeme struct {
	kind byte // 's' string, 'n' name, '0' number, ' ' space, else an operator
	text string
}

const (
	lexString = 's'
	lexName   = 'n'
	lexNumber = '0'
	lexSpace  = ' '
	lexSign   = '+'
)

// lex cuts an expression into pieces.
func lex(code string) ([]lexeme, error) {
	var pieces []lexeme
	for i := 0; i < len(code); {
		start, kind := i, byte(lexSign)
		switch c := code[i]; {
		case c == '\'' || c == '"':
			kind = lexString
			for i++; i < len(code) && code[i] != c; i++ {
				if code[i] == '\\' {
					i++
				}
			}
			if i++; i > len(code) {
				return nil, errors.New("a string does not end")
			}
		case c >= '0' && c <= '9':
			kind = lexNumber
			for i < len(code) && (code[i] >= '0' && code[i] <= '9' || code[i] == '_') {
				i++
			}
		case isNameRune(rune(c)):
			kind = lexName
			for i < len(code) && isNameRune(rune(code[i])) {
				i++
			}
		case strings.IndexByte(" \t\r\n", c) >= 0:
			kind = lexSpace
			i++
		case strings.IndexByte(".,:()[]{}|~+-*/%<>=!", c) >= 0:
			i++
		default:
			return nil, errors.New("unexpected character in an expression")
		}
		pieces = append(pieces, lexeme{kind, code[start:i]})
	}
	return pieces, nil
}

// cutWord cuts an expression at a word outside brackets. after is empty if
// there is none.
func cutWord(code, word string) (before, after string, err error) {
	pieces, err := lex(code)
	if err != nil {
		return "", "", err
	}
	depth, at := 0, 0
	for _, piece := range pieces {
		switch {
		case piece.kind == lexSign && strings.Contains("([{", piece.text):
			depth++
		case piece.kind == lexSign && strings.Contains(")]}", piece.text):
			depth--
		case piece.kind == lexName && piece.text == word && depth == 0:
			return strings.TrimSpace(code[:at]), strings.TrimSpace(code[at+len(word):]), nil
		}
		at += len(piece.text)
	}
	return strings.TrimSpace(code), "", nil
}

// rewrite checks an expression and returns it as the library shall read it.
func rewrite(code string) (string, error) {
	pieces, err := lex(code)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	depth := 0
	// last and before are the signs or words before the current one.
	last, before := lexeme{}, lexeme{}
	for i, piece := range pieces {
		text := piece.text
		switch piece.kind {
		case lexString:
			text, err = rewriteString(text)
		case lexNumber:
			err = checkNumber(text, last, before)
		case lexName:
			text, err = rewriteName(pieces, i, last)
		case lexSign:
			if strings.Contains("([{", text) {
				depth++
			} else if strings.Contains(")]}", text) {
				depth--
			}
			switch {
			case depth > maxBrackets:
				err = fmt.Errorf("more than %d brackets within each other", maxBrackets)
			case depth < 0:
				err = errors.New("a bracket is closed that was not opened")
			case text == "*" && last.text == "*" && i > 0 && pieces[i-1].text == "*":
				err = errors.New("powers are not supported")
			}
		}
		if err != nil {
			return "", err
		}
		if text == "}" && last.text == "}" {
			out.WriteByte(' ') // or the library takes both for the tag's end
		}
		out.WriteString(text)
		if piece.kind != lexSpace {
			last, before = piece, last
		}
	}
	if depth != 0 {
		return "", errors.New("a bracket is not closed")
	}
	return out.String(), nil
}

// checkNumber bounds whole numbers; digits after a point do not count.
func checkNumber(text string, last, before lexeme) error {
	if last.text == "." && before.kind == lexNumber {
		return nil
	}
	if number, err := strconv.Atoi(text); err != nil || number > maxLiteral {
		return fmt.Errorf("a number above %d", maxLiteral)
	}
	return nil
}

func rewriteName(pieces []lexeme, i int, last lexeme) (string, error) {
	name := pieces[i].text
	called := i+1 < len(pieces) && pieces[i+1].text == "("
	switch {
	case strings.HasPrefix(name, hookPrefix) || strings.HasPrefix(name, "__"):
		return "", fmt.Errorf("%.32q: reserved name", name)
	case last.text == "." && called && slices.Contains(mutators, name):
		return "", fmt.Errorf("%q changes a value in place, which engines forbid", name)
	case last.text == "|" && name == "tojson":
		return hookJSON, nil
	case last.text == "|" && name == "string":
		return hookString, nil
	default:
		return name, nil
	}
}

// rewriteString decodes a Python string literal and encodes it with escapes
// the library knows.
func rewriteString(literal string) (string, error) {
	quote, inner := literal[:1], literal[1:len(literal)-1]
	var out strings.Builder
	out.WriteString(quote)
	for i := 0; i < len(inner); {
		if inner[i] != '\\' {
			out.WriteByte(inner[i])
			i++
			continue
		}
		text, size, err := unescape(inner[i:])
		if err != nil {
			return "", err
		}
		i += size
		for _, c := range []byte(text) {
			if c == '\\' || c == quote[0] {
				out.WriteByte('\\')
			}
			out.WriteByte(c)
		}
	}
	out.WriteString(quote)
	return out.String(), nil
}

// unescape reads one escape sequence.
func unescape(text string) (value string, size int, err error) {
	simple := map[byte]string{
		'n': "\n", 't': "\t", 'r': "\r", '\\': "\\", '\'': "'", '"': "\"", '\n': "",
		'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v", '0': "\x00",
	}
	if value, ok := simple[text[1]]; ok {
		return value, 2, nil
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[text[1]]
	if digits == 0 {
		return text[:2], 2, nil // Python keeps unknown ones
	}
	if len(text) < 2+digits {
		return "", 0, errors.New("a broken escape in a string")
	}
	number, err := strconv.ParseUint(text[2:2+digits], 16, 32)
	if err != nil || !utf8.ValidRune(rune(number)) {
		return "", 0, errors.New("a broken escape in a string")
	}
	return string(rune(number)), 2 + digits, nil
}
