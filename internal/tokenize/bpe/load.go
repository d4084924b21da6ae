// SPDX-License-Identifier: Apache-2.0

package bpe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Limits of a tokenizer file. The largest known ones have about 270,000
// tokens, 520,000 merges and 35 MB.
const (
	maxFileBytes    = 256 << 20
	maxTokens       = 4 << 20
	maxMerges       = 8 << 20
	maxTokenBytes   = 4 << 10
	maxAddedTokens  = 64 << 10
	maxSectionBytes = 4 << 20
)

// ErrFile marks a tokenizer file that cannot be used.
var ErrFile = errors.New("unusable tokenizer file")

// refuse names the member, what is wrong with it, and what was expected.
func refuse(path, found, expected string) error {
	return fmt.Errorf("%w: %s: %s, expected %s", ErrFile, path, found, expected)
}

func isNull(raw json.RawMessage) bool {
	return len(raw) == 0 || bytes.Equal(bytes.TrimSpace(raw), []byte("null"))
}

func unmarshal(path string, raw json.RawMessage, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	return nil
}

// Load reads a tokenizer.json. Vocabulary and merges are read as they come, so
// that memory follows the result, not the text. Errors are ErrFile, or those
// of r.
func Load(r io.Reader) (*Tokenizer, error) {
	limited := &io.LimitedReader{R: r, N: maxFileBytes + 1}
	l := &loader{decoder: json.NewDecoder(limited), sections: map[string]json.RawMessage{}}
	err := l.object("", l.topLevel)
	if err == nil {
		if _, trailing := l.decoder.Token(); !errors.Is(trailing, io.EOF) {
			err = refuse("end of file", "more data", "nothing")
		}
	}
	switch {
	case limited.N <= 0:
		return nil, refuse("file", "too large", fmt.Sprintf("at most %d bytes", maxFileBytes))
	case err != nil:
		return nil, err
	}
	return l.build()
}

// loader gathers what a file says.
type loader struct {
	decoder *json.Decoder
	// sections are the small members of the file, and those of its model
	// behind "model.".
	sections   map[string]json.RawMessage
	vocabulary map[string]uint32
	merges     []filePair
}

type filePair struct{ left, right string }

// broken wraps an error of the decoder.
func (l *loader) broken(path string, err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %s near byte %d: %w", ErrFile, path, l.decoder.InputOffset(), err)
}

func (l *loader) token(path string) (json.Token, error) {
	token, err := l.decoder.Token()
	if err != nil {
		return nil, l.broken(path, err)
	}
	return token, nil
}

func (l *loader) open(path string, delimiter json.Delim) error {
	token, err := l.token(path)
	if err == nil && token != delimiter {
		err = refuse(path, "another type", map[json.Delim]string{'{': "an object", '[': "an array"}[delimiter])
	}
	return err
}

// object calls member for each key of the object that comes next.
func (l *loader) object(path string, member func(key string) error) error {
	name := path
	if name == "" {
		name = "file"
	}
	if err := l.open(name, '{'); err != nil {
		return err
	}
	for l.decoder.More() {
		key, err := l.token(name)
		if err != nil {
			return err
		}
		text, ok := key.(string)
		if !ok {
			return refuse(name, "no member name", "a string")
		}
		if err := member(text); err != nil {
			return err
		}
	}
	_, err := l.token(name)
	return err
}

func (l *loader) topLevel(key string) error {
	switch key {
	case "model":
		return l.object("model", l.modelMember)
	case "version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder":
		return l.section(key)
	default:
		return refuse(fmt.Sprintf("%.64q", key), "unknown member", "none but those of a tokenizer file")
	}
}

func (l *loader) modelMember(key string) error {
	switch key {
	case "vocab":
		return l.readVocabulary()
	case "merges":
		return l.readMerges()
	default:
		return l.section("model." + key)
	}
}

func (l *loader) section(name string) error {
	var raw json.RawMessage
	if err := l.decoder.Decode(&raw); err != nil {
		return l.broken(name, err)
	}
	if len(raw) > maxSectionBytes {
		return refuse(name, "too large", fmt.Sprintf("at most %d bytes", maxSectionBytes))
	}
	if len(l.sections) >= 64 {
		return refuse(fmt.Sprintf("%.64q", name), "too many members", "at most 64")
	}
	l.sections[name] = raw
	return nil
}

func (l *loader) readVocabulary() error {
	l.vocabulary = map[string]uint32{}
	return l.object("model.vocab", func(key string) error {
		value, err := l.token("model.vocab")
		if err != nil {
			return err
		}
		number, ok := value.(float64)
		if !ok || number < 0 || number >= maxTokens || number != math.Trunc(number) {
			return refuse(fmt.Sprintf("model.vocab[%.64q]", key), "no id", fmt.Sprintf("a whole number below %d", maxTokens))
		}
		if len(key) > maxTokenBytes || len(l.vocabulary) >= maxTokens {
			return refuse("model.vocab", "too large", fmt.Sprintf("at most %d tokens of %d bytes", maxTokens, maxTokenBytes))
		}
		l.vocabulary[key] = uint32(number)
		return nil
	})
}

// readMerges reads pairs, written as two strings or as one with a space.
func (l *loader) readMerges() error {
	const path = "model.merges"
	if err := l.open(path, '['); err != nil {
		return err
	}
	l.merges = nil
	for l.decoder.More() {
		if len(l.merges) >= maxMerges {
			return refuse(path, "too many", fmt.Sprintf("at most %d", maxMerges))
		}
		found, err := l.readMerge()
		if err != nil {
			return err
		}
		l.merges = append(l.merges, found)
	}
	_, err := l.token(path)
	return err
}

func (l *loader) readMerge() (filePair, error) {
	const path = "model.merges"
	wrong := func(found string) error {
		return refuse(fmt.Sprintf("%s[%d]", path, len(l.merges)), found, "two strings, or one with a space between two parts")
	}
	token, err := l.token(path)
	if err != nil {
		return filePair{}, err
	}
	if text, ok := token.(string); ok {
		left, right, ok := cutPair(text)
		if !ok {
			return filePair{}, wrong("not two parts")
		}
		return filePair{left, right}, nil
	}
	var parts [2]string
	if token != json.Delim('[') {
		return filePair{}, wrong("another type")
	}
	for i := range parts {
		token, err := l.token(path)
		if err != nil {
			return filePair{}, err
		}
		text, ok := token.(string)
		if !ok {
			return filePair{}, wrong("another type")
		}
		parts[i] = text
	}
	if end, err := l.token(path); err != nil || end != json.Delim(']') {
		return filePair{}, wrong("another length")
	}
	return filePair{parts[0], parts[1]}, nil
}

// cutPair cuts at the only space.
func cutPair(text string) (left, right string, ok bool) {
	at := slices.Index([]byte(text), ' ')
	if at < 0 || slices.Contains([]byte(text[at+1:]), ' ') {
		return "", "", false
	}
	return text[:at], text[at+1:], true
}
