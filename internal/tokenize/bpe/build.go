// SPDX-License-Identifier: Apache-2.0

package bpe

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// modelFile is the model's small members.
type modelFile struct {
	typ, unknown, prefix, suffix *string
	dropout                      *float64
	fuse, fallback, whole        bool
}

// build checks what was read and makes a tokenizer of it.
func (l *loader) build() (*Tokenizer, error) {
	t := &Tokenizer{added: map[string]uint32{}}
	file, err := l.modelFile()
	if err != nil {
		return nil, err
	}
	if t.normalizer, err = parseNormalizer("normalizer", l.sections["normalizer"], 0); err != nil {
		return nil, err
	}
	if t.splitters, err = parseSplitter("pre_tokenizer", l.sections["pre_tokenizer"], 0); err != nil {
		return nil, err
	}
	if err := t.takeByteLevel(); err != nil {
		return nil, err
	}
	if err := l.buildModel(t, &file); err != nil {
		return nil, err
	}
	if err := l.buildAdded(t); err != nil {
		return nil, err
	}
	if err := l.buildPostProcessor(t); err != nil {
		return nil, err
	}
	if err := checkDecoder("decoder", l.sections["decoder"], 0); err != nil {
		return nil, err
	}
	return t, nil
}

func (l *loader) modelFile() (file modelFile, err error) {
	members := map[string]any{
		"type": &file.typ, "unk_token": &file.unknown, "continuing_subword_prefix": &file.prefix,
		"end_of_word_suffix": &file.suffix, "dropout": &file.dropout, "fuse_unk": &file.fuse,
		"byte_fallback": &file.fallback, "ignore_merges": &file.whole,
	}
	for name, raw := range l.sections {
		key, inModel := strings.CutPrefix(name, "model.")
		if !inModel {
			continue
		}
		into, known := members[key]
		if !known {
			return file, refuse(fmt.Sprintf("model.%.64q", key), "unknown member", "none but those of a BPE model")
		}
		if err := unmarshal(name, raw, into); err != nil {
			return file, err
		}
	}
	switch {
	case file.typ == nil || *file.typ != "BPE":
		found := "missing"
		if file.typ != nil {
			found = fmt.Sprintf("%.64q", *file.typ)
		}
		return file, refuse("model.type", found, "BPE")
	case file.dropout != nil && *file.dropout != 0:
		return file, refuse("model.dropout", "set", "null")
	case file.prefix != nil && *file.prefix != "":
		return file, refuse("model.continuing_subword_prefix", "set", "null or empty")
	case file.suffix != nil && *file.suffix != "":
		return file, refuse("model.end_of_word_suffix", "set", "null or empty")
	case l.vocabulary == nil:
		return file, refuse("model.vocab", "missing", "an object")
	case l.merges == nil:
		l.merges = []filePair{}
	}
	return file, nil
}

// takeByteLevel turns the byte-level mark into what it stands for.
func (t *Tokenizer) takeByteLevel() error {
	at := slices.IndexFunc(t.splitters, func(s splitter) bool { _, is := s.(byteLevelMark); return is })
	if at < 0 {
		return nil
	}
	if at != len(t.splitters)-1 {
		return refuse("pre_tokenizer", "ByteLevel is not the last step", "it last")
	}
	mark, _ := t.splitters[at].(byteLevelMark)
	t.byteLevel = true
	t.splitters = t.splitters[:at]
	if mark.prefixSpace {
		t.splitters = append(t.splitters, prefixSpace{})
	}
	if mark.useRegex {
		find, err := regexFinder("pre_tokenizer.use_regex", gptPattern)
		if err != nil {
			return err
		}
		t.splitters = append(t.splitters, &cutter{find: find})
	}
	return nil
}

func (l *loader) buildModel(t *Tokenizer, file *modelFile) error {
	m := &t.model
	m.byteLevel, m.whole, m.fuse, m.fallback, m.unknown = t.byteLevel, file.whole, file.fuse, file.fallback, none
	inverse := runeBytes()
	key := func(token string) (string, bool) {
		if !t.byteLevel {
			return token, true
		}
		return rawToken(inverse, token)
	}
	m.vocabulary = make(map[string]uint32, len(l.vocabulary))
	for token, id := range l.vocabulary {
		t.size = max(t.size, int(id)+1)
		if raw, reachable := key(token); reachable {
			m.vocabulary[raw] = id
		}
	}
	if file.unknown != nil {
		id, ok := l.vocabulary[*file.unknown]
		if !ok {
			return refuse("model.unk_token", "not in the vocabulary", "a token of it")
		}
		m.unknown = id
	}
	if err := m.setBytes(l.vocabulary); err != nil {
		return err
	}
	m.merges = make(map[uint64]merge, len(l.merges))
	for rank, p := range l.merges {
		left, okLeft := l.vocabulary[p.left]
		right, okRight := l.vocabulary[p.right]
		joined, okJoined := l.vocabulary[p.left+p.right]
		if !okLeft || !okRight || !okJoined {
			return refuse(fmt.Sprintf("model.merges[%d]", rank), "not in the vocabulary", "both parts and what they become in it")
		}
		m.merges[pair(left, right)] = merge{rank: uint32(rank), id: joined}
	}
	m.findSingle(t.size)
	return nil
}

// findSingle finds the tokens that need no merging. Only byte-level pieces are
// words; those of others are whole texts, which no token is.
func (m *model) findSingle(size int) {
	if !m.byteLevel || m.whole {
		return
	}
	single := make([]bool, size)
	var s scratch
	for token, id := range m.vocabulary {
		if token == "" {
			continue
		}
		s.ids = m.initial(s.ids[:0], token)
		if len(s.ids) <= quadratic {
			merged := m.mergeShort(&s)
			single[id] = len(merged) == 1 && merged[0] == id
		}
	}
	m.single = single
}

// setBytes finds the ids of single bytes.
func (m *model) setBytes(vocabulary map[string]uint32) error {
	if m.fallback && m.byteLevel {
		return refuse("model.byte_fallback", "set for a byte-level tokenizer", "false")
	}
	for b := range 256 {
		m.bytes[b], m.fallen[b] = none, none
		if id, ok := m.vocabulary[string([]byte{byte(b)})]; ok && m.byteLevel {
			m.bytes[b] = id
		}
		if !m.fallback {
			continue
		}
		name := fmt.Sprintf("<0x%02X>", b)
		id, ok := vocabulary[name]
		if !ok {
			return refuse("model.byte_fallback", name+" is not in the vocabulary", "tokens for all bytes")
		}
		m.fallen[b] = id
	}
	return nil
}

func (l *loader) buildAdded(t *Tokenizer) error {
	var tokens []addedToken
	if raw := l.sections["added_tokens"]; !isNull(raw) {
		if err := unmarshal("added_tokens", raw, &tokens); err != nil {
			return err
		}
	}
	if len(tokens) > maxAddedTokens {
		return refuse("added_tokens", "too many", fmt.Sprintf("at most %d", maxAddedTokens))
	}
	var raw, normalized []addedToken
	for i, token := range tokens {
		path := fmt.Sprintf("added_tokens[%d]", i)
		switch id, known := l.vocabulary[token.Content]; {
		case token.Content == "" || len(token.Content) > maxTokenBytes:
			return refuse(path+".content", "empty or too long", fmt.Sprintf("1 to %d bytes", maxTokenBytes))
		case token.ID >= maxTokens:
			return refuse(path+".id", "too large", fmt.Sprintf("an id below %d", maxTokens))
		case known && id != token.ID:
			return refuse(path+".id", fmt.Sprint(token.ID), fmt.Sprintf("%d as in the vocabulary", id))
		}
		t.added[token.Content] = token.ID
		t.size = max(t.size, int(token.ID)+1)
		if !token.Normalized {
			raw = append(raw, token)
			continue
		}
		for _, n := range t.normalizer {
			token.Content = n(token.Content)
		}
		normalized = append(normalized, token)
	}
	t.raw, t.normalized = newAddedTokens(raw), newAddedTokens(normalized)
	return nil
}

type postProcessorFile struct {
	Type          string                   `json:"type"`
	Processors    []json.RawMessage        `json:"processors"`
	Single        []map[string]templateTag `json:"single"`
	SpecialTokens map[string]struct {
		IDs []uint32 `json:"ids"`
	} `json:"special_tokens"`
}

type templateTag struct {
	ID string `json:"id"`
}

func (l *loader) buildPostProcessor(t *Tokenizer) error {
	_, err := t.parsePostProcessor("post_processor", l.sections["post_processor"], 0)
	return err
}

func (t *Tokenizer) parsePostProcessor(path string, raw json.RawMessage, depth int) ([]struct{}, error) {
	if isNull(raw) {
		return nil, nil
	}
	var file postProcessorFile
	if err := unmarshal(path, raw, &file); err != nil {
		return nil, err
	}
	switch file.Type {
	case "Sequence":
		return parseSequence(path+".processors", file.Processors, depth, t.parsePostProcessor)
	case "ByteLevel": // only moves offsets
		return nil, nil
	case "TemplateProcessing":
		return nil, t.takeTemplate(path, &file)
	default:
		return nil, refuse(path+".type", fmt.Sprintf("%.64q", file.Type), "ByteLevel, TemplateProcessing or Sequence")
	}
}

// takeTemplate reads which tokens come before and after a single text.
func (t *Tokenizer) takeTemplate(path string, file *postProcessorFile) error {
	var sides [2][]uint32
	side := 0
	for i, piece := range file.Single {
		at := fmt.Sprintf("%s.single[%d]", path, i)
		if _, isText := piece["Sequence"]; isText && side == 0 {
			side = 1
			continue
		}
		tag, isToken := piece["SpecialToken"]
		if !isToken {
			return refuse(at, "no special token", "SpecialToken, or one Sequence")
		}
		token, known := file.SpecialTokens[tag.ID]
		if !known {
			return refuse(at, "unknown special token", "one of special_tokens")
		}
		sides[side] = append(sides[side], token.IDs...)
	}
	if side == 0 {
		return refuse(path+".single", "without the text", "one Sequence")
	}
	t.before, t.after = append(sides[0], t.before...), append(t.after, sides[1]...)
	return nil
}

// checkDecoder refuses decoders that hint at a kind of model unknown here.
func checkDecoder(path string, raw json.RawMessage, depth int) error {
	if isNull(raw) {
		return nil
	}
	var file struct {
		Type     string            `json:"type"`
		Decoders []json.RawMessage `json:"decoders"`
	}
	if err := unmarshal(path, raw, &file); err != nil {
		return err
	}
	switch file.Type {
	case "ByteLevel", "ByteFallback", "Fuse", "Replace", "Strip":
		return nil
	case "Sequence":
		_, err := parseSequence(path+".decoders", file.Decoders, depth,
			func(path string, raw json.RawMessage, depth int) ([]struct{}, error) {
				return nil, checkDecoder(path, raw, depth)
			})
		return err
	default:
		return refuse(path+".type", fmt.Sprintf("%.64q", file.Type), "ByteLevel, ByteFallback, Fuse, Replace, Strip or Sequence")
	}
}
