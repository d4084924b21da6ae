// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"slices"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// Feature is an image, or another input that is no text, at its place among
// the token ids.
type Feature struct {
	// ID names its content.
	ID string
	// Offset is the index of its first token, Length the number of tokens.
	Offset, Length int
}

// AppendKeys appends the block keys of the result to dst. Blocks that a
// feature touches are told apart by what it is.
func (r *Result) AppendKeys(dst []uint64, parent fingerprint.Parent, blockSize int) []uint64 {
	tokens := r.Tokens
	if len(r.Features) == 0 || blockSize <= 0 {
		return fingerprint.Append(dst, parent, tokens, blockSize)
	}
	features := r.Features
	for start := 0; start+blockSize <= len(tokens); start += blockSize {
		var touching []fingerprint.Identifier
		end := start + blockSize
		for len(features) > 0 && features[0].Offset+features[0].Length <= start {
			features = features[1:]
		}
		for _, feature := range features {
			if feature.Offset >= end {
				break
			}
			touching = append(touching, fingerprint.Identifier{ID: feature.ID, Offset: int64(feature.Offset - start)})
		}
		key := fingerprint.Next(fingerprint.MultimodalParent(parent, touching), fingerprint.Content(tokens[start:end]))
		dst = append(dst, key)
		parent = fingerprint.Child(key)
	}
	return dst
}

const (
	maxFeatures       = 4096
	maxIdentifierSize = 4096
)

// decodeRendered reads an answer of a render endpoint: an object with the ids,
// or a list whose first such object counts.
func decodeRendered(answer []byte) (Result, error) {
	found, err := findRendered(answer, 0)
	switch {
	case err != nil:
		return Result{}, malformed(err)
	case found == nil:
		return Result{}, malformed(errNoIDs)
	}
	return *found, nil
}

// maxRenderedDepth bounds lists within lists.
const maxRenderedDepth = 4

func findRendered(raw []byte, depth int) (*Result, error) {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0 || depth > maxRenderedDepth:
		return nil, nil
	case raw[0] == '[':
		var found *Result
		err := jsonscan.Array(raw, func(element []byte) (err error) {
			if found == nil && (element[0] == '{' || element[0] == '[') {
				found, err = findRendered(element, depth+1)
			}
			return err
		})
		return found, err
	case raw[0] != '{':
		return nil, nil
	}
	return readRendered(raw)
}

func readRendered(raw []byte) (*Result, error) {
	var ids, features []byte
	err := jsonscan.Object(raw, func(key, value []byte) error {
		switch string(key) {
		case "token_ids", "prompt_token_ids":
			ids = value
		case "features":
			features = value
		}
		return nil
	})
	if err != nil || len(ids) == 0 || ids[0] != '[' {
		return nil, err
	}
	result := &Result{}
	if result.Tokens, err = jsonscan.Uint32s(nil, ids); err != nil {
		return nil, err
	}
	result.Features, err = readFeatures(features, len(result.Tokens))
	return result, err
}

// readFeatures reads mm_hashes and mm_placeholders: lists by modality, in
// parallel.
func readFeatures(raw []byte, tokens int) ([]Feature, error) {
	if len(raw) == 0 || raw[0] != '{' {
		return nil, nil
	}
	hashes, places := map[string][]string{}, map[string][]Feature{}
	err := jsonscan.Object(raw, func(key, value []byte) error {
		switch {
		case string(key) == "mm_hashes" && value[0] == '{':
			return jsonscan.Object(value, func(modality, list []byte) error {
				texts, err := readStrings(list)
				hashes[string(modality)] = texts
				return err
			})
		case string(key) == "mm_placeholders" && value[0] == '{':
			return jsonscan.Object(value, func(modality, list []byte) error {
				found, err := readPlaces(list)
				places[string(modality)] = found
				return err
			})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var features []Feature
	for modality, ids := range hashes {
		if len(ids) != len(places[modality]) {
			return nil, errFeatures
		}
		for i, place := range places[modality] {
			if place.ID = ids[i]; place.Offset < 0 || place.Length < 1 || place.Offset+place.Length > tokens || place.ID == "" {
				return nil, errFeatures
			}
			features = append(features, place)
		}
	}
	if len(features) > maxFeatures || len(hashes) != len(places) {
		return nil, errFeatures
	}
	slices.SortFunc(features, func(a, b Feature) int { return a.Offset - b.Offset })
	return features, nil
}

func readStrings(list []byte) ([]string, error) {
	var out []string
	err := jsonscan.Array(list, func(value []byte) error {
		text, ok := jsonscan.String(value)
		if !ok || len(text) > maxIdentifierSize || len(out) >= maxFeatures {
			return errFeatures
		}
		out = append(out, text)
		return nil
	})
	return out, err
}

func readPlaces(list []byte) ([]Feature, error) {
	var out []Feature
	err := jsonscan.Array(list, func(value []byte) error {
		var place Feature
		if len(out) >= maxFeatures {
			return errFeatures
		}
		err := jsonscan.Object(value, func(key, value []byte) error {
			switch string(key) {
			case "offset":
				return readNumber(value, &place.Offset)
			case "length":
				return readNumber(value, &place.Length)
			}
			return nil
		})
		out = append(out, place)
		return err
	})
	return out, err
}

func readNumber(value []byte, into *int) error {
	numbers, err := jsonscan.Uint32s(nil, append(append([]byte{'['}, value...), ']'))
	if err != nil || len(numbers) != 1 {
		return errFeatures
	}
	*into = int(numbers[0])
	return nil
}

// holdsMore says whether messages hold content that is no text.
func (p *Prompt) holdsMore() bool {
	messages := p.fields[fieldMessages]
	if !p.Chat || len(messages) == 0 || messages[0] != '[' {
		return false
	}
	more := false
	_ = jsonscan.Array(messages, func(message []byte) error {
		if message[0] != '{' {
			return nil
		}
		return jsonscan.Object(message, func(key, value []byte) error {
			if string(key) != "content" || value[0] != '[' {
				return nil
			}
			return jsonscan.Array(value, func(part []byte) error {
				more = more || !isTextPart(part)
				return nil
			})
		})
	})
	return more
}

func isTextPart(part []byte) bool {
	if part[0] != '{' {
		return part[0] == '"'
	}
	text := false
	_ = jsonscan.Object(part, func(key, value []byte) error {
		if string(key) == "type" {
			kind, _ := jsonscan.String(value)
			text = kind == "text" || kind == "refusal" || kind == "thinking"
		}
		return nil
	})
	return text
}
