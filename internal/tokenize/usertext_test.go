// SPDX-License-Identifier: Apache-2.0

package tokenize_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/tokenize"
)

const generationTemplate = `{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}{% if add_generation_prompt %}c{% endif %}`

func TestUserText(t *testing.T) {
	model := modelFolder(t, map[string]string{"tokenizer.json": letters, "chat_template.jinja": generationTemplate})
	parent := t.TempDir()
	if err := os.MkdirAll(filepath.Join(parent, "org"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(model, filepath.Join(parent, "org", "small")); err != nil {
		t.Fatal(err)
	}
	only := modelFolder(t, map[string]string{"tokenizer.json": letters, "chat_template.jinja": generationTemplate})
	for name, tc := range map[string]struct {
		dir, model string
		known      bool
	}{
		"a folder is the model of its path":       {parent, "org/small", true},
		"another name has no tokenizer":           {parent, "org/large", false},
		"a directory with files serves any model": {only, "whatever", true},
	} {
		t.Run(name, func(t *testing.T) {
			tokenizer, err := tokenize.LoadUserText(tc.dir)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tokenizer.Tokenize(t.Context(), tc.model, "ab")
			if (err == nil) != tc.known {
				t.Fatalf("error %v", err)
			}
			want := []uint32{4, 5, 6, 7, 8, 31, 3} // user:ab and the generation prompt
			if diff := cmp.Diff(want, got); tc.known && diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestUserTextRefusesDirectories(t *testing.T) {
	for name, tc := range map[string]struct{ dir, want string }{
		"without models":          {t.TempDir(), "no tokenizer.json below"},
		"that are not there":      {filepath.Join(t.TempDir(), "absent"), "no such file"},
		"without a chat template": {modelFolder(t, map[string]string{"tokenizer.json": letters}), "no chat template"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tokenize.LoadUserText(tc.dir)
			if !errors.Is(err, tokenize.ErrModel) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
