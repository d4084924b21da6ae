// SPDX-License-Identifier: Apache-2.0

package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const maxFileLines = 700

// eachFile calls fn for every file of the repository with one of the
// extensions, generated code and build results left out.
func eachFile(t *testing.T, extensions []string, fn func(path, text string)) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			switch entry.Name() {
			case ".git", "bin", "gen", "testdata", "node_modules", "results":
				return filepath.SkipDir
			}
			return nil
		}
		for _, extension := range extensions {
			if strings.HasSuffix(path, extension) {
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				fn(strings.TrimPrefix(path, root+"/"), string(text))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSourceFilesNameTheirLicense(t *testing.T) {
	eachFile(t, []string{".go", ".proto", ".sh", ".py", ".mjs", "Makefile"}, func(path, text string) {
		head := text[:min(len(text), 200)]
		if !strings.Contains(head, "SPDX-License-Identifier: Apache-2.0") {
			t.Errorf("%s: no SPDX line at the top", path)
		}
	})
}

func TestGoFilesStayReadable(t *testing.T) {
	eachFile(t, []string{".go"}, func(path, text string) {
		if lines := strings.Count(text, "\n"); lines > maxFileLines && !strings.HasPrefix(filepath.Base(path), "zz_generated") {
			t.Errorf("%s has %d lines, more than %d", path, lines, maxFileLines)
		}
	})
}

// Words that belong to plans and tickets, not to the code.
var planWords = regexp.MustCompile(`(?i)\b(phase \d|milestone \d|TODO|FIXME|XXX)\b`)

func TestProseIsPlain(t *testing.T) {
	emDash := string(rune(0x2014))
	eachFile(t, []string{".go", ".proto", ".md", ".yaml"}, func(path, text string) {
		for number, line := range strings.Split(text, "\n") {
			if strings.Contains(line, emDash) {
				t.Errorf("%s:%d: em dash", path, number+1)
			}
			if path != "test/house/files_test.go" && planWords.MatchString(line) {
				t.Errorf("%s:%d: names a plan or an open end: %s", path, number+1, strings.TrimSpace(line))
			}
		}
	})
}
