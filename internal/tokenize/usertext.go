// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// UserText tokenizes text as the one user message of a chat.
type UserText struct{ models *Models }

// LoadUserText reads the models below a directory: each folder with a
// tokenizer.json is the model of its path, such as Qwen/Qwen3-8B. A directory
// that holds the file itself is the only model. Every model needs a chat
// template.
func LoadUserText(dir string) (*UserText, error) {
	if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err == nil {
		return loadUserText([]string{dir})
	}
	var folders []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() != "tokenizer.json" {
			return err
		}
		folder := filepath.Dir(path)
		name, err := filepath.Rel(dir, folder)
		folders = append(folders, filepath.ToSlash(name)+"="+folder)
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrModel, err)
	case len(folders) == 0:
		return nil, fmt.Errorf("%w: no tokenizer.json below %s", ErrModel, dir)
	}
	return loadUserText(folders)
}

func loadUserText(folders []string) (*UserText, error) {
	models, err := LoadModels(folders)
	if err != nil {
		return nil, err
	}
	for name, model := range models.byName {
		if model.conversation == nil {
			return nil, fmt.Errorf("%w: model %q has no chat template", ErrModel, name)
		}
	}
	if models.only != nil && models.only.conversation == nil {
		return nil, fmt.Errorf("%w: the model has no chat template", ErrModel)
	}
	return &UserText{models}, nil
}

// Tokenize returns the ids that an engine sees for a chat with one message of
// the user and the generation prompt added. Errors never hold the text.
func (u *UserText) Tokenize(ctx context.Context, model, text string) ([]uint32, error) {
	messages, err := json.Marshal([]struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}{{"user", text}})
	if err != nil {
		return nil, unsupported()
	}
	prompt := &Prompt{Chat: true, Model: model, Base: model}
	prompt.Add([]byte("messages"), messages)
	prompt.Add([]byte("add_generation_prompt"), []byte("true"))
	loaded := u.models.of(prompt)
	if loaded == nil {
		return nil, &Error{Reason: ReasonUnavailable}
	}
	fields, _, err := prompt.callFields()
	if err != nil {
		return nil, err
	}
	return loaded.encode(ctx, prompt, &fields)
}
