// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/gate"
)

const reading, writing = "inferencecache.io/controller", "inferencecache.io/policy"

func request(authorization ...string) *http.Request {
	return &http.Request{Header: http.Header{"Authorization": authorization}}
}

func TestBearer(t *testing.T) {
	for name, tc := range map[string]struct {
		headers []string
		want    string
	}{
		"none":                          {nil, ""},
		"a token":                       {[]string{"Bearer abc"}, "abc"},
		"the scheme in another case":    {[]string{"bEARER abc"}, "abc"},
		"white space around the token":  {[]string{"Bearer   abc \t"}, "abc"},
		"a scheme alone":                {[]string{"Bearer"}, ""},
		"a blank token":                 {[]string{"Bearer    "}, ""},
		"another scheme":                {[]string{"Basic abc"}, ""},
		"a token without a scheme":      {[]string{"abc"}, ""},
		"a scheme that starts the same": {[]string{"Bearerabc"}, ""},
		"two headers":                   {[]string{"Bearer abc", "Bearer abc"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			token, ok := gate.Bearer(request(tc.headers...))
			if ok != (tc.want != "") || ok && token != tc.want {
				t.Errorf("token %q, %v; want %q", token, ok, tc.want)
			}
		})
	}
}

func TestOpenAdmitsEveryone(t *testing.T) {
	if got := (gate.Open{}).Check(request()); got != gate.OK {
		t.Errorf("verdict %q", got)
	}
}

// tokenFile is a token file whose modification time moves with each write.
type tokenFile struct {
	t       *testing.T
	path    string
	written time.Time
}

func newTokenFile(t *testing.T, text string) *tokenFile {
	f := &tokenFile{t: t, path: filepath.Join(t.TempDir(), "tokens"), written: time.Now().Add(-time.Hour)}
	f.write(text)
	return f
}

func (f *tokenFile) write(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.written = f.written.Add(time.Second)
	if err := os.Chtimes(f.path, f.written, f.written); err != nil {
		f.t.Fatal(err)
	}
}

func (f *tokenFile) open(logs *strings.Builder) *gate.TokenFile {
	f.t.Helper()
	tokens, err := gate.OpenTokenFile(f.path, slog.New(slog.NewTextHandler(logs, nil)))
	if err != nil {
		f.t.Fatal(err)
	}
	return tokens
}

func TestTokenFile(t *testing.T) {
	file := newTokenFile(t, "# tokens\n\n"+reading+" read-1\n  "+reading+"\tread-2  \r\n"+writing+" write-1\n")
	tokens := file.open(new(strings.Builder))
	for name, tc := range map[string]struct {
		audience, header string
		want             gate.Verdict
	}{
		"the token of the audience":      {reading, "Bearer read-1", gate.OK},
		"its second token":               {reading, "bearer read-2", gate.OK},
		"a token of another audience":    {reading, "Bearer write-1", gate.Unauthenticated},
		"the write token where it goes":  {writing, "Bearer write-1", gate.OK},
		"the start of a token":           {reading, "Bearer read-", gate.Unauthenticated},
		"a token with something behind":  {reading, "Bearer read-1x", gate.Unauthenticated},
		"no token":                       {reading, "", gate.Unauthenticated},
		"an audience without any tokens": {"other", "Bearer read-1", gate.Unauthenticated},
		"a comment":                      {"#", "Bearer tokens", gate.Unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tokens.For(tc.audience).Check(request(tc.header)); got != tc.want {
				t.Errorf("verdict %q, want %q", got, tc.want)
			}
		})
	}
}

func TestTokenFileFollowsChanges(t *testing.T) {
	var logs strings.Builder
	file := newTokenFile(t, reading+" old\n")
	g := file.open(&logs).For(reading)
	check := func(token string, want gate.Verdict) {
		t.Helper()
		if got := g.Check(request("Bearer " + token)); got != want {
			t.Errorf("%s: verdict %q, want %q", token, got, want)
		}
	}
	check("old", gate.OK)
	file.write(reading + " new\n")
	check("old", gate.Unauthenticated)
	check("new", gate.OK)

	file.write(reading + " secret and more\n")
	check("new", gate.OK)
	check("new", gate.OK)
	if n := strings.Count(logs.String(), "keeping what a file said before"); n != 1 {
		t.Errorf("%d warnings, want 1: %s", n, logs.String())
	}
	if strings.Contains(logs.String(), "secret") {
		t.Errorf("a token was logged: %s", logs.String())
	}
	if err := os.Remove(file.path); err != nil {
		t.Fatal(err)
	}
	check("new", gate.OK)
	file.write(reading + " last\n")
	check("new", gate.Unauthenticated)
	check("last", gate.OK)
}

func TestTokenFileThatNobodyCanUse(t *testing.T) {
	for name, tc := range map[string]struct{ text, says string }{
		"a line of one word":    {reading + "\n", "line 1"},
		"a line of three words": {"# tokens\n" + reading + " a b\n", "line 2"},
		"too many bytes":        {strings.Repeat("#", 1<<20+1), "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := gate.OpenTokenFile(newTokenFile(t, tc.text).path, slog.New(slog.DiscardHandler))
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one that says %q", err, tc.says)
			}
		})
	}
	if _, err := gate.OpenTokenFile(filepath.Join(t.TempDir(), "none"), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a missing file was opened")
	}
	var logs strings.Builder
	newTokenFile(t, "").open(&logs).For(reading)
	if !strings.Contains(logs.String(), "no token for an audience") {
		t.Errorf("an audience without tokens is not warned of: %s", logs.String())
	}
}
