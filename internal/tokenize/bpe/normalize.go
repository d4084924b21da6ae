// SPDX-License-Identifier: Apache-2.0

package bpe

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// normalizer changes text before it is split.
type normalizer func(text string) string

// maxNesting bounds sequences within sequences.
const maxNesting = 8

// pattern is what a replacement or a split looks for: a text, or a regular
// expression.
type pattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

type normalizerFile struct {
	Type        string            `json:"type"`
	Normalizers []json.RawMessage `json:"normalizers"`
	Prepend     *string           `json:"prepend"`
	Pattern     pattern           `json:"pattern"`
	Content     *string           `json:"content"`
}

// parseNormalizer reads the member at path.
func parseNormalizer(path string, raw json.RawMessage, depth int) ([]normalizer, error) {
	if isNull(raw) {
		return nil, nil
	}
	var file normalizerFile
	if err := unmarshal(path, raw, &file); err != nil {
		return nil, err
	}
	forms := map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}
	switch file.Type {
	case "Sequence":
		return parseSequence(path+".normalizers", file.Normalizers, depth, parseNormalizer)
	case "NFC", "NFD", "NFKC", "NFKD":
		return []normalizer{forms[file.Type].String}, nil
	case "Prepend":
		if file.Prepend == nil {
			return nil, refuse(path+".prepend", "missing", "a string")
		}
		prefix := *file.Prepend
		return []normalizer{func(text string) string {
			if text == "" {
				return text
			}
			return prefix + text
		}}, nil
	case "Replace":
		if file.Pattern.String == nil || *file.Pattern.String == "" {
			return nil, refuse(path+".pattern", "not a text", "a String that is not empty")
		}
		if file.Content == nil {
			return nil, refuse(path+".content", "missing", "a string")
		}
		return []normalizer{strings.NewReplacer(*file.Pattern.String, *file.Content).Replace}, nil
	default:
		return nil, refuse(path+".type", fmt.Sprintf("%.64q", file.Type),
			"NFC, NFD, NFKC, NFKD, Prepend, Replace or Sequence")
	}
}

// parseSequence reads a list of parts and joins what each gives.
func parseSequence[T any](path string, parts []json.RawMessage, depth int,
	parse func(string, json.RawMessage, int) ([]T, error),
) ([]T, error) {
	if depth >= maxNesting {
		return nil, refuse(path, "nested too deeply", fmt.Sprintf("at most %d levels", maxNesting))
	}
	var all []T
	for i, part := range parts {
		some, err := parse(fmt.Sprintf("%s[%d]", path, i), part, depth+1)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return slices.Clip(all), nil
}
