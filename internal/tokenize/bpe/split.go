// SPDX-License-Identifier: Apache-2.0

package bpe

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/dlclark/regexp2/v2"
)

const (
	// maxPatternBytes bounds a regular expression.
	maxPatternBytes = 16 << 10
	// matchTimeout bounds one match, since patterns may backtrack. The clock
	// behind it is coarse: a busy machine must not make it strike.
	matchTimeout = time.Second
	// gptPattern is how byte-level tokenizers split when they do so
	// themselves.
	gptPattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
)

// splitter cuts text into parts that are encoded on their own.
type splitter interface {
	split(ctx context.Context, text string, part func(string) error) error
}

// finder yields the matches of a pattern as byte ranges, in order.
type finder func(ctx context.Context, text string, match func(start, end int) error) error

type splitterFile struct {
	Type             string            `json:"type"`
	Pretokenizers    []json.RawMessage `json:"pretokenizers"`
	Pattern          pattern           `json:"pattern"`
	Behavior         string            `json:"behavior"`
	Invert           bool              `json:"invert"`
	AddPrefixSpace   *bool             `json:"add_prefix_space"`
	UseRegex         *bool             `json:"use_regex"`
	IndividualDigits bool              `json:"individual_digits"`
}

// byteLevelMark is the splitter that stands for the byte-level step, which
// must be the last one.
type byteLevelMark struct{ prefixSpace, useRegex bool }

func (byteLevelMark) split(_ context.Context, text string, part func(string) error) error {
	return part(text)
}

// parseSplitter reads the pre-tokenizer at path.
func parseSplitter(path string, raw json.RawMessage, depth int) ([]splitter, error) {
	if isNull(raw) {
		return nil, nil
	}
	var file splitterFile
	if err := unmarshal(path, raw, &file); err != nil {
		return nil, err
	}
	switch file.Type {
	case "Sequence":
		return parseSequence(path+".pretokenizers", file.Pretokenizers, depth, parseSplitter)
	case "ByteLevel":
		mark := byteLevelMark{prefixSpace: true, useRegex: true}
		if file.AddPrefixSpace != nil {
			mark.prefixSpace = *file.AddPrefixSpace
		}
		if file.UseRegex != nil {
			mark.useRegex = *file.UseRegex
		}
		return []splitter{mark}, nil
	case "Digits":
		behavior := contiguous
		if file.IndividualDigits {
			behavior = isolated
		}
		return []splitter{&cutter{find: findDigits, behavior: behavior}}, nil
	case "Split":
		return parseSplit(path, &file)
	default:
		return nil, refuse(path+".type", fmt.Sprintf("%.64q", file.Type), "ByteLevel, Digits, Split or Sequence")
	}
}

func parseSplit(path string, file *splitterFile) ([]splitter, error) {
	behavior, ok := map[string]behavior{
		"Isolated": isolated, "Removed": removed, "MergedWithPrevious": mergedWithPrevious,
		"MergedWithNext": mergedWithNext, "Contiguous": contiguous,
	}[file.Behavior]
	if !ok {
		return nil, refuse(path+".behavior", fmt.Sprintf("%.64q", file.Behavior),
			"Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous")
	}
	c := &cutter{behavior: behavior, invert: file.Invert}
	switch {
	case file.Pattern.Regex != nil:
		find, err := regexFinder(path+".pattern.Regex", *file.Pattern.Regex)
		if err != nil {
			return nil, err
		}
		c.find = find
	case file.Pattern.String != nil && *file.Pattern.String != "":
		c.find = findText(*file.Pattern.String)
	default:
		return nil, refuse(path+".pattern", "empty", "a String or a Regex")
	}
	return []splitter{c}, nil
}

// regexFinder compiles a pattern.
func regexFinder(path, expression string) (finder, error) {
	if len(expression) > maxPatternBytes {
		return nil, refuse(path, "too long", fmt.Sprintf("at most %d bytes", maxPatternBytes))
	}
	if find, known := wordFinder(expression); known {
		return find, nil
	}
	compiled, err := regexp2.Compile(expression)
	if err != nil {
		return nil, refuse(path, "no regular expression: "+err.Error(), "one that can be compiled")
	}
	compiled.MatchTimeout = matchTimeout
	return func(ctx context.Context, text string, match func(start, end int) error) error {
		return findRegex(ctx, compiled, text, match)
	}, nil
}

func findRegex(ctx context.Context, compiled *regexp2.Regexp, text string, match func(start, end int) error) error {
	runes := []rune(text)
	at, offset, matches := 0, 0, 0 // position in runes and in bytes
	advance := func(to int) {
		for ; at < to; at++ {
			offset += runeBytesOf(runes[at])
		}
	}
	var failed error
	err := compiled.FindRunesMatches(runes, 0, func(view regexp2.MatchView) bool {
		index, length, _ := view.GroupRange(0)
		if matches++; matches%checkEvery == 0 && ctx.Err() != nil {
			failed = ctx.Err()
			return false
		}
		if length == 0 {
			return true
		}
		advance(index)
		start := offset
		advance(index + length)
		failed = match(start, offset)
		return failed == nil
	})
	if failed == nil && err != nil {
		failed = fmt.Errorf("%w: its split pattern takes too long", ErrInput)
	}
	return failed
}

// runeBytesOf is utf8.RuneLen for runes of valid text.
func runeBytesOf(r rune) int {
	switch {
	case r < 0x80:
		return 1
	case r < 0x800:
		return 2
	case r < 0x10000:
		return 3
	default:
		return 4
	}
}

func findText(sought string) finder {
	return func(_ context.Context, text string, match func(start, end int) error) error {
		for at := 0; ; {
			found := strings.Index(text[at:], sought)
			if found < 0 {
				return nil
			}
			start := at + found
			at = start + len(sought)
			if err := match(start, at); err != nil {
				return err
			}
		}
	}
}

func findDigits(_ context.Context, text string, match func(start, end int) error) error {
	for at, r := range text {
		if unicode.IsNumber(r) {
			if err := match(at, at+runeBytesOf(r)); err != nil {
				return err
			}
		}
	}
	return nil
}

// behavior says what happens to the matches of a pattern.
type behavior uint8

const (
	isolated behavior = iota
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous
)

// cutter splits at the matches of a pattern, or between them if inverted.
type cutter struct {
	find     finder
	behavior behavior
	invert   bool
}

func (c *cutter) split(ctx context.Context, text string, part func(string) error) error {
	pieces := joiner{text: text, behavior: c.behavior, part: part}
	at := 0
	err := c.find(ctx, text, func(start, end int) error {
		if at < start {
			if err := pieces.add(at, start, c.invert); err != nil {
				return err
			}
		}
		at = end
		return pieces.add(start, end, !c.invert)
	})
	if err != nil {
		return err
	}
	if at < len(text) {
		if err := pieces.add(at, len(text), c.invert); err != nil {
			return err
		}
	}
	return pieces.flush()
}

// joiner joins neighbouring pieces as a behavior wants it. It holds one piece
// back.
type joiner struct {
	text     string
	behavior behavior
	part     func(string) error

	held, isMatch bool
	start, end    int
}

func (j *joiner) add(start, end int, isMatch bool) error {
	if j.behavior == removed && isMatch {
		return nil
	}
	if j.held && j.joins(isMatch) {
		j.end, j.isMatch = end, isMatch
		return nil
	}
	if err := j.flush(); err != nil {
		return err
	}
	j.held, j.start, j.end, j.isMatch = true, start, end, isMatch
	return nil
}

// joins says whether a piece continues the one held back.
func (j *joiner) joins(isMatch bool) bool {
	switch j.behavior {
	case mergedWithPrevious:
		return isMatch && !j.isMatch
	case mergedWithNext:
		return !isMatch && j.isMatch
	case contiguous:
		return isMatch == j.isMatch
	default:
		return false
	}
}

func (j *joiner) flush() error {
	if !j.held {
		return nil
	}
	j.held = false
	return j.part(j.text[j.start:j.end])
}

// prefixSpace puts a space before text that does not begin with one.
type prefixSpace struct{}

func (prefixSpace) split(_ context.Context, text string, part func(string) error) error {
	if text[0] != ' ' {
		text = " " + text
	}
	return part(text)
}
