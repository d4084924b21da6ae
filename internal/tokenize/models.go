// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/inferencecache/inference-cache/internal/tokenize/bpe"
	"github.com/inferencecache/inference-cache/internal/tokenize/chat"
)

// Model is the tokenizer of a model, read from its files.
type Model struct {
	// Revision changes with the files.
	Revision string

	tokenizer *bpe.Tokenizer
	// conversation is nil without a chat template.
	conversation *chat.Conversation
}

// Models holds tokenizers by the name of their base model. It does not change
// after LoadModels.
type Models struct {
	byName map[string]*Model
	// only serves every name if it is not nil.
	only *Model
}

// ErrModel marks model files that cannot be used.
var ErrModel = errors.New("tokenizer files")

// LoadModels reads folders, given as DIR for the only model or NAME=DIR.
func LoadModels(folders []string) (*Models, error) {
	models := &Models{byName: map[string]*Model{}}
	for _, folder := range folders {
		name, dir, named := strings.Cut(folder, "=")
		if !named {
			name, dir = "", folder
		}
		if _, twice := models.byName[name]; twice || !named && models.only != nil {
			return nil, fmt.Errorf("%w: model %q is given twice", ErrModel, name)
		}
		model, err := LoadModel(dir)
		if err != nil {
			return nil, err
		}
		if named {
			models.byName[name] = model
		} else {
			models.only = model
		}
	}
	if models.only != nil && len(folders) > 1 {
		return nil, fmt.Errorf("%w: several folders are given: expected MODEL=DIR for each", ErrModel)
	}
	return models, nil
}

// of returns the tokenizer of a prompt, nil if there is none.
func (m *Models) of(prompt *Prompt) *Model {
	if m.only != nil {
		return m.only
	}
	if model := m.byName[prompt.Base]; model != nil {
		return model
	}
	return m.byName[prompt.Model]
}

// Render implements Renderer.
func (m *Models) Render(ctx context.Context, prompt *Prompt) (string, error) {
	model := m.of(prompt)
	if model == nil {
		return "", unsupported()
	}
	fields, _, err := prompt.callFields()
	if err != nil {
		return "", err
	}
	return model.render(ctx, prompt, &fields)
}

var _ Renderer = (*Models)(nil)

// maxConfigBytes bounds the small files of a model.
const maxConfigBytes = 8 << 20

// LoadModel reads a model's folder: tokenizer.json, and tokenizer_config.json
// and chat_template.jinja where they are. Errors say which file and what.
func LoadModel(dir string) (*Model, error) {
	sum := sha256.New()
	tokenizer, err := loadTokenizer(filepath.Join(dir, "tokenizer.json"), sum)
	if err != nil {
		return nil, err
	}
	model := &Model{tokenizer: tokenizer}
	raw, err := readSmall(filepath.Join(dir, "tokenizer_config.json"), sum)
	if err != nil {
		return nil, err
	}
	var config modelConfig
	if raw != nil {
		if err := json.Unmarshal(raw, &config); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrModel, filepath.Join(dir, "tokenizer_config.json"), err)
		}
	}
	if err := config.surround(tokenizer); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrModel, dir, err)
	}
	template, err := config.template(dir, sum)
	if err != nil {
		return nil, err
	}
	if template != "" {
		model.conversation, err = chat.NewConversation(template, config.variables(raw), chat.Options{})
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrModel, dir, err)
		}
	}
	model.Revision = hex.EncodeToString(sum.Sum(nil)[:8])
	return model, nil
}

func loadTokenizer(path string, sum hash.Hash) (*bpe.Tokenizer, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrModel, err)
	}
	defer file.Close()
	tokenizer, err := bpe.Load(io.TeeReader(bufio.NewReaderSize(file, 1<<20), sum))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrModel, path, err)
	}
	return tokenizer, nil
}

// readSmall returns nil for a file that is not there.
func readSmall(path string, sum hash.Hash) ([]byte, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrModel, err)
	}
	defer file.Close()
	raw, err := io.ReadAll(io.LimitReader(file, maxConfigBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrModel, err)
	case len(raw) > maxConfigBytes:
		return nil, fmt.Errorf("%w: %s: more than %d bytes", ErrModel, path, maxConfigBytes)
	}
	sum.Write([]byte{0})
	sum.Write(raw)
	return raw, nil
}

// modelConfig is what tokenizer_config.json says that matters here.
type modelConfig struct {
	Class        string          `json:"tokenizer_class"`
	ChatTemplate json.RawMessage `json:"chat_template"`
	AddBOS       *bool           `json:"add_bos_token"`
	AddEOS       *bool           `json:"add_eos_token"`
	BOS          tokenText       `json:"bos_token"`
	EOS          tokenText       `json:"eos_token"`
}

// tokenText is a token, given as text or as an object with content.
type tokenText string

// UnmarshalJSON implements json.Unmarshaler.
func (t *tokenText) UnmarshalJSON(raw []byte) error {
	var text *string
	if json.Unmarshal(raw, &text) == nil {
		if text != nil {
			*t = tokenText(*text)
		}
		return nil
	}
	var object struct {
		Content string `json:"content"`
	}
	err := json.Unmarshal(raw, &object)
	*t = tokenText(object.Content)
	return err
}

// surroundingClasses put begin and end tokens around a text as the
// configuration says, whatever the post-processor in tokenizer.json does.
var surroundingClasses = []string{
	"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast",
	"GemmaTokenizer", "GemmaTokenizerFast", "CohereTokenizer", "CohereTokenizerFast",
}

func (c *modelConfig) surround(tokenizer *bpe.Tokenizer) error {
	if !slices.Contains(surroundingClasses, c.Class) || c.AddBOS == nil && c.AddEOS == nil {
		return nil
	}
	var sides [2][]uint32
	for i, side := range []struct {
		add     bool
		content tokenText
	}{{c.AddBOS == nil || *c.AddBOS, c.BOS}, {c.AddEOS != nil && *c.AddEOS, c.EOS}} {
		if !side.add {
			continue
		}
		id, ok := tokenizer.Added(string(side.content))
		if !ok {
			return fmt.Errorf("token %.64q is to be added to texts and is no added token", string(side.content))
		}
		sides[i] = []uint32{id}
	}
	tokenizer.Surround(sides[0], sides[1])
	return nil
}

// template returns the source of the chat template, empty if there is none. A
// file of its own beats the configuration.
func (c *modelConfig) template(dir string, sum hash.Hash) (string, error) {
	raw, err := readSmall(filepath.Join(dir, "chat_template.jinja"), sum)
	if err != nil || raw != nil {
		return string(raw), err
	}
	if len(c.ChatTemplate) == 0 || string(c.ChatTemplate) == "null" {
		return "", nil
	}
	var text string
	if json.Unmarshal(c.ChatTemplate, &text) == nil {
		return text, nil
	}
	var several []struct{ Name, Template string }
	if err := json.Unmarshal(c.ChatTemplate, &several); err != nil {
		return "", fmt.Errorf("%w: %s: chat_template: expected a text or a list of named ones", ErrModel, dir)
	}
	for _, one := range several {
		if one.Name == "default" {
			return one.Template, nil
		}
	}
	return "", fmt.Errorf("%w: %s: chat_template: none is named default", ErrModel, dir)
}

// variables are the special tokens, which templates know by name.
func (c *modelConfig) variables(raw []byte) []chat.Variable {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return nil
	}
	if extra := members["extra_special_tokens"]; len(extra) > 0 && extra[0] == '{' {
		_ = json.Unmarshal(extra, &members) // adds to what is there
	}
	var variables []chat.Variable
	for name, value := range members {
		var text tokenText
		if !strings.HasSuffix(name, "_token") || json.Unmarshal(value, &text) != nil || text == "" {
			continue
		}
		quoted, err := json.Marshal(string(text))
		if err == nil {
			variables = append(variables, chat.Variable{Name: name, Value: quoted})
		}
	}
	return variables
}
