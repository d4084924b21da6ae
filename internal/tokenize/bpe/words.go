// SPDX-License-Identifier: Apache-2.0

package bpe

import (
	"context"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The pattern most byte-level models split by, up to the digits they take at
// once.
const (
	wordsBefore = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|`
	wordsAfter  = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// wordFinder returns a finder for the pattern above, several times as fast as
// the regular expression. False means that it is another pattern.
func wordFinder(expression string) (finder, bool) {
	digits, ok := strings.CutPrefix(expression, wordsBefore)
	if ok {
		digits, ok = strings.CutSuffix(digits, wordsAfter)
	}
	most, known := map[string]int{`\p{N}`: 1, `\p{N}{1,3}`: 3}[digits]
	if !ok || !known {
		return nil, false
	}
	return func(ctx context.Context, text string, match func(start, end int) error) error {
		for at, pieces := 0, 0; at < len(text); pieces++ {
			if pieces%checkEvery == checkEvery-1 && ctx.Err() != nil {
				return ctx.Err()
			}
			end := nextWord(text, at, most)
			if err := match(at, end); err != nil {
				return err
			}
			at = end
		}
		return nil
	}, true
}

// class is what the pattern tells apart.
type class uint8

const (
	other class = iota
	letter
	number
	space   // but for line ends
	lineEnd // \r and \n
	nothing // behind the text
)

// classAt returns the class of the character at a place, and its length.
func classAt(text string, at int) (class, int) {
	if at >= len(text) {
		return nothing, 0
	}
	if c := text[at]; c < utf8.RuneSelf {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			return letter, 1
		case c >= '0' && c <= '9':
			return number, 1
		case c == '\r', c == '\n':
			return lineEnd, 1
		case c == ' ', c == '\t', c == '\v', c == '\f':
			return space, 1
		default:
			return other, 1
		}
	}
	r, size := utf8.DecodeRuneInString(text[at:])
	switch {
	case unicode.IsLetter(r):
		return letter, size
	case unicode.IsNumber(r):
		return number, size
	case unicode.IsSpace(r):
		return space, size
	default:
		return other, size
	}
}

// nextWord returns the end of the match at a place.
func nextWord(text string, at, digits int) int {
	first, size := classAt(text, at)
	if text[at] == '\'' {
		if length := contraction(text[at+1:]); length > 0 {
			return at + 1 + length
		}
	}
	switch second, _ := classAt(text, at+size); {
	case first == letter:
		return run(text, at, letter)
	case second == letter && first != number && first != lineEnd:
		return run(text, at+size, letter)
	case first == number:
		for ; digits > 0 && first == number; digits-- {
			at += size
			first, size = classAt(text, at)
		}
		return at
	case first == other:
		return run(text, run(text, at, other), lineEnd)
	case text[at] == ' ' && second == other:
		return run(text, run(text, at+1, other), lineEnd)
	default:
		return spaces(text, at)
	}
}

// run returns where characters of a class end.
func run(text string, at int, of class) int {
	for {
		found, size := classAt(text, at)
		if found != of {
			return at
		}
		at += size
	}
}

// spaces returns how far white space is one piece: to its last line end, to the
// end of the text, or up to the character before the next word.
func spaces(text string, at int) int {
	start, last, lastLine := at, at, -1
	for {
		found, size := classAt(text, at)
		switch found {
		case lineEnd:
			lastLine = at + size
		case space:
		default:
			switch {
			case lastLine >= 0:
				return lastLine
			case found != nothing && last > start:
				return last
			default:
				return at
			}
		}
		last = at
		at += size
	}
}

// contraction returns the length of the English ending that text begins with,
// 0 for none.
func contraction(text string) int {
	if text == "" {
		return 0
	}
	second := byte(0)
	if len(text) > 1 {
		second = text[1] | 0x20
	}
	switch c := text[0] | 0x20; {
	case text[0] >= utf8.RuneSelf:
		if strings.HasPrefix(text, "\u017f") { // folds to s
			return len("\u017f")
		}
		return 0
	case c == 's' || c == 't' || c == 'm' || c == 'd':
		return 1
	case (c == 'r' || c == 'v') && second == 'e', c == 'l' && second == 'l':
		return 2
	default:
		return 0
	}
}
