// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/template"
)

const greeting = `apiVersion: inferencecache.io/v1alpha1
kind: PromptTemplate
metadata:
  name: greeting
  namespace: team
  labels: {app: chat}
spec:
  body: |
    Hello {{who}},
    {{text}}
  slots:
    - name: who
      type: Stable
      required: true
    - {name: text, type: Mutable, description: what to say}
`

func TestParseFile(t *testing.T) {
	got, err := template.ParseFile("team/greeting.yaml", "team", "greeting", []byte(greeting))
	want := policy.Template{
		Namespace: "team", Name: "greeting", Body: "Hello {{who}},\n{{text}}\n",
		Slots: []policy.Slot{{Name: "who", Type: policy.SlotStable, Required: true}, {Name: "text", Type: policy.SlotMutable}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("ParseFile: %v\n%s", err, diff)
	}
}

func TestParseFileSaysWhereAFaultIs(t *testing.T) {
	for name, tc := range map[string]struct{ old, new, want string }{
		"another kind":         {"kind: PromptTemplate", "kind: Prompt", `f.yaml:2:7: kind: "Prompt": expected PromptTemplate`},
		"another version":      {"v1alpha1", "v9", `f.yaml:1:13: apiVersion: "inferencecache.io/v9": expected inferencecache.io/v1alpha1`},
		"no kind":              {"kind: PromptTemplate\n", "", `f.yaml:1:1: kind: "": expected PromptTemplate`},
		"another name":         {"name: greeting", "name: other", `f.yaml:4:9: metadata.name: "other": expected "greeting", as the file is called`},
		"another namespace":    {"namespace: team", "namespace: b", `f.yaml:5:14: metadata.namespace: "b": expected "team", as the file is called`},
		"an unknown field":     {"  body: |", "  bdy: x\n  body: |", `f.yaml:8:3: unknown field "bdy"`},
		"a field twice":        {"kind: PromptTemplate", "kind: PromptTemplate\nkind: PromptTemplate", `f.yaml:3:1: `},
		"a list for text":      {"kind: PromptTemplate", "kind: [a]", `f.yaml:2:7: `},
		"no such slot":         {"{{who}}", "{{whom}}", `f.yaml:8:9: spec.body: a placeholder names no slot: "whom" at byte 6 of the body`},
		"an unknown slot type": {"type: Stable", "type: Fixed", `spec.slots: bad slot "who"`},
		"broken YAML":          {"spec:", "spec: {", `f.yaml:`},
		"two documents":        {"apiVersion", "---\na: b\n---\napiVersion", `f.yaml: 2 documents: expected one`},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(greeting, tc.old, tc.new, 1)
			_, err := template.ParseFile("f.yaml", "team", "greeting", []byte(text))
			var fault *template.FileError
			if !errors.As(err, &fault) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("ParseFile() = %v, want %s", err, tc.want)
			}
		})
	}
	if _, err := template.ParseFile("f.yaml", "a", "b", nil); err == nil {
		t.Error("an empty file was taken")
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte(greeting))
	f.Add([]byte("---\n"))
	f.Add([]byte("{apiVersion: inferencecache.io/v1alpha1, kind: PromptTemplate, spec: {body: '{{a}}', slots: [{name: a, type: Stable}]}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		source, err := template.ParseFile("f.yaml", "team", "greeting", text)
		if err != nil {
			return
		}
		if _, err := template.Compile(source); err != nil {
			t.Errorf("a file was taken that does not compile: %v", err)
		}
	})
}

// write puts a template file of one line into a directory.
func write(t *testing.T, dir, ref, body string) {
	t.Helper()
	text := "apiVersion: inferencecache.io/v1alpha1\nkind: PromptTemplate\nspec: {body: '" + body + "'}\n"
	writeText(t, filepath.Join(dir, ref+".yaml"), text)
}

func writeText(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	// A new file each time, as tools that replace files atomically leave it.
	next := path + ".next"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

func bodies(d *template.Dir) (list []string) {
	for _, source := range d.Templates() {
		list = append(list, source.Namespace+"/"+source.Name+"="+source.Body)
	}
	slices.Sort(list)
	return list
}

func TestDirFollowsItsFiles(t *testing.T) {
	path := t.TempDir()
	write(t, path, "a/one", "1")
	write(t, path, "b/two", "2")
	writeText(t, filepath.Join(path, "a", "notes.txt"), "ignored")
	writeText(t, filepath.Join(path, "a", ".hidden.yaml"), "ignored")
	writeText(t, filepath.Join(path, ".git", "x.yaml"), "ignored")
	writeText(t, filepath.Join(path, "top.yaml"), "ignored")
	d, err := template.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(what string, wantChanged bool, wantErr string, want ...string) {
		t.Helper()
		changed, err := d.Reload()
		if changed != wantChanged || (err != nil) != (wantErr != "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s: changed %v, %v", what, changed, err)
		}
		if diff := cmp.Diff(want, bodies(d)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	expect("nothing happened", false, "", "a/one=1", "b/two=2")
	write(t, path, "a/one", "1b")
	write(t, path, "c/three", "3")
	expect("one changed, one came", true, "", "a/one=1b", "b/two=2", "c/three=3")
	write(t, path, "a/one", "{{")
	write(t, path, "c/four", "{{")
	write(t, path, "b/two", "2b")
	expect("two have faults, one changed", true, "one.yaml:3:14", "a/one=1b", "b/two=2b", "c/three=3")
	expect("the faults are old", false, "", "a/one=1b", "b/two=2b", "c/three=3")
	if err := os.RemoveAll(filepath.Join(path, "b")); err != nil {
		t.Fatal(err)
	}
	write(t, path, "a/one", "1c")
	expect("one went, one is mended", true, "", "a/one=1c", "c/three=3")
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	expect("the directory went", false, "no such file", "a/one=1c", "c/three=3")
}

func TestOpenDirRefusesFaults(t *testing.T) {
	path := t.TempDir()
	write(t, path, "a/one", "{{")
	write(t, path, "a/two", "{{x}}")
	writeText(t, filepath.Join(path, "a", "large.yaml"), strings.Repeat("#", 1<<20+1))
	_, err := template.OpenDir(path)
	for _, want := range []string{"one.yaml:3:14", "two.yaml:3:14", "large.yaml: more than"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("OpenDir() = %v, want %s", err, want)
		}
	}
	if _, err := template.OpenDir(filepath.Join(path, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("OpenDir() of nothing = %v", err)
	}
}

func TestSet(t *testing.T) {
	s := template.NewSet(
		[]policy.Template{{Namespace: "a", Name: "x", Body: "first"}, {Namespace: "a", Name: "y", Body: "{{"}},
		[]policy.Template{{Namespace: "a", Name: "x", Body: "second"}},
	)
	if found, err := s.Find("a/x"); err != nil {
		t.Error(err)
	} else if text, _ := found.Render(nil); text != "second" {
		t.Errorf("found %q, want the later one", text)
	}
	if _, err := s.Find("a/y"); !errors.Is(err, template.ErrBadPlaceholder) {
		t.Errorf("an unusable template: %v", err)
	}
	for _, ref := range []string{"", "a", "x", "a/z", "a/x/", "/x"} {
		if _, err := s.Find(ref); !errors.Is(err, template.ErrNotFound) {
			t.Errorf("Find(%q): %v", ref, err)
		}
	}
	var faults []string
	s.EachFault(func(ref string, _ error) { faults = append(faults, ref) })
	if diff := cmp.Diff([]string{"a/y"}, faults); diff != "" || s.Len() != 2 {
		t.Errorf("%d templates, faults (-want +got):\n%s", s.Len(), diff)
	}
}
