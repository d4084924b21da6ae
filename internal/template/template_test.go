// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/template"
)

// slots declares slots: "!" in front makes one required.
func slots(names ...string) (list []policy.Slot) {
	for _, name := range names {
		plain := strings.TrimPrefix(name, "!")
		list = append(list, policy.Slot{Name: plain, Type: policy.SlotStable, Required: plain != name})
	}
	return list
}

func TestRender(t *testing.T) {
	long := strings.Repeat("x", template.MaxTextBytes/2)
	for name, tc := range map[string]struct {
		body      string
		slots     []policy.Slot
		variables map[string]string
		want      string
		wantErr   error
	}{
		"no placeholder": {"plain", nil, nil, "plain", nil},
		"placeholders at both ends": {
			"{{a}} and {{b}}", slots("a", "!b"), map[string]string{"a": "1", "b": "2"}, "1 and 2", nil,
		},
		"neighbours, one twice":        {"{{a}}{{b}}{{a}}", slots("a", "b"), map[string]string{"a": "1", "b": "2"}, "121", nil},
		"other spellings":              {"{{.a}} {{ a }} {{ .a }}", slots("a"), map[string]string{"a": "1"}, "1 1 1", nil},
		"an optional slot is empty":    {"[{{a}}]", slots("a"), nil, "[]", nil},
		"a required slot may be empty": {"[{{a}}]", slots("!a"), map[string]string{"a": ""}, "[]", nil},
		"values are not looked into":   {"{{a}}{{b}}", slots("a", "b"), map[string]string{"a": "{{b}}", "b": "}}"}, "{{b}}}}", nil},
		"single braces are text":       {"{a} }} {", nil, nil, "{a} }} {", nil},
		"text beyond ASCII":            {"ž{{a}}漢", slots("a"), map[string]string{"a": "ü"}, "žü漢", nil},
		"a slot the body does not use": {"x", slots("!a"), map[string]string{"a": "1"}, "x", nil},
		"a required slot is missing":   {"x", slots("!a"), nil, "", template.ErrMissingVariable},
		"a variable of no slot":        {"{{a}}", slots("a"), map[string]string{"a": "", "b": ""}, "", template.ErrUndeclaredVariable},
		"a variable without a name":    {"{{a}}", slots("a"), map[string]string{"": "x"}, "", template.ErrUndeclaredVariable},
		"as long as allowed":           {"{{a}}{{a}}", slots("a"), map[string]string{"a": long}, long + long, nil},
		"one byte too long":            {"{{a}}{{a}}.", slots("a"), map[string]string{"a": long}, "", template.ErrTextTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			compiled, err := template.Compile(policy.Template{Body: tc.body, Slots: tc.slots})
			if err != nil {
				t.Fatal(err)
			}
			got, err := compiled.Render(tc.variables)
			if got != tc.want || !errors.Is(err, tc.wantErr) {
				t.Errorf("Render() = %.64q, %v, want %.64q, %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

func TestCompileRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		template policy.Template
		want     error
		text     string
	}{
		"no body":         {policy.Template{}, template.ErrBodyEmpty, ""},
		"a body too long": {policy.Template{Body: strings.Repeat("x", template.MaxBodyBytes+1)}, template.ErrBodyTooLarge, ""},
		"broken text":     {policy.Template{Body: "\xff"}, template.ErrBadText, ""},
		"no end":          {policy.Template{Body: "ab{{c"}, template.ErrBadPlaceholder, "byte 2"},
		"no name":         {policy.Template{Body: "{{}}"}, template.ErrBadPlaceholder, "byte 0"},
		"code":            {policy.Template{Body: "{{range .items}}"}, template.ErrBadPlaceholder, ""},
		"braces in it":    {policy.Template{Body: "{{{a}}}", Slots: slots("a")}, template.ErrBadPlaceholder, ""},
		"no such slot":    {policy.Template{Body: "x{{a}}{{b}}", Slots: slots("a")}, template.ErrUndeclaredSlot, `"b" at byte 6`},
		"a bad slot name": {policy.Template{Body: "x", Slots: slots("9")}, template.ErrBadSlot, `"9"`},
		"a slot twice":    {policy.Template{Body: "x", Slots: slots("a", "a")}, template.ErrBadSlot, "twice"},
		"a bad type": {
			policy.Template{Body: "x", Slots: []policy.Slot{{Name: "a", Type: "stable"}}}, template.ErrBadSlot, "Stable or Mutable",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template.Compile(tc.template)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("Compile() = %v, want %v with %q", err, tc.want, tc.text)
			}
		})
	}
}

func TestRevision(t *testing.T) {
	revision := func(body string, slots ...policy.Slot) string {
		t.Helper()
		compiled, err := template.Compile(policy.Template{Body: body, Slots: slots})
		if err != nil {
			t.Fatal(err)
		}
		return compiled.Revision()
	}
	a := policy.Slot{Name: "a", Type: policy.SlotStable, Required: true}
	b := policy.Slot{Name: "b", Type: policy.SlotMutable}
	sum := sha256.Sum256([]byte("{{b}}{{a}}\x00a:Stable:true\nb:Mutable:false\n"))
	if got, want := revision("{{b}}{{a}}", b, a), hex.EncodeToString(sum[:])[:16]; got != want {
		t.Errorf("revision %s, want %s", got, want)
	}
	if revision("{{ .b }}{{a}}", a, b) != revision("{{b}}{{a}}", b, a) {
		t.Error("the spelling of placeholders or the order of slots counts")
	}
	optional := a
	optional.Required = false
	if revision("{{a}}", a) == revision("{{a}}", optional) || revision("{{a}}", a) == revision("{{a}}.", a) {
		t.Error("different templates share a revision")
	}
}

func TestRenderKeepsLiteralsAndValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-zß ]{0,8}`)
		var body, want strings.Builder
		values := map[string]string{"x": text.Draw(t, "x"), "y": rapid.String().Draw(t, "y")}
		for _, name := range rapid.SliceOf(rapid.SampledFrom([]string{"x", "y"})).Draw(t, "names") {
			literal := text.Draw(t, "literal")
			body.WriteString(literal + "{{" + name + "}}")
			want.WriteString(literal + values[name])
		}
		body.WriteString("end")
		want.WriteString("end")
		compiled, err := template.Compile(policy.Template{Body: body.String(), Slots: slots("x", "y")})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := compiled.Render(values); got != want.String() || err != nil {
			t.Fatalf("Render() = %q, %v, want %q", got, err, want.String())
		}
	})
}

func FuzzCompile(f *testing.F) {
	for _, seed := range []string{"", "plain", "{{a}}", "{{ .a }}{{b}}", "{{", "{{a}", "}}{{a}}{{", "{{{a}}}"} {
		f.Add(seed, "value")
	}
	f.Fuzz(func(t *testing.T, body, value string) {
		compiled, err := template.Compile(policy.Template{Body: body, Slots: slots("a", "b")})
		if err != nil {
			return
		}
		text, err := compiled.Render(map[string]string{"a": value})
		if err != nil && !errors.Is(err, template.ErrTextTooLong) {
			t.Fatal(err)
		}
		if err == nil && utf8.ValidString(value) && !utf8.ValidString(text) {
			t.Error("the text is not valid UTF-8")
		}
	})
}
