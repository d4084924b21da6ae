// SPDX-License-Identifier: Apache-2.0

package controlclient_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/controlclient"
)

// token is as long as those of accounts.
var token = "secret-" + strings.Repeat("x", 1200)

// hangUp ends the connection without an answer.
func hangUp(w http.ResponseWriter, reset bool) {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := connection.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	_ = connection.Close()
}

func TestErrorsAreShortLines(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	t.Cleanup(elsewhere.Close)
	answer := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(text))
		}
	}
	for name, tc := range map[string]struct {
		serve http.HandlerFunc
		want  string // a prefix
	}{
		"no answer":              {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "call the server: no answer in time"},
		"half an answer":         {func(w http.ResponseWriter, r *http.Request) { slowly(w); <-r.Context().Done() }, "read the server's answer: no answer in time"},
		"a closed connection":    {func(w http.ResponseWriter, _ *http.Request) { hangUp(w, false) }, "call the server: EOF"},
		"a reset connection":     {func(w http.ResponseWriter, _ *http.Request) { hangUp(w, true) }, "call the server: read tcp SERVER: read: connection reset by peer"},
		"another listener":       {nil, "call the server: dial tcp SERVER: connect: connection refused"},
		"a refusal":              {answer(403, "not you\n"), "the server answered 403: not you"},
		"a refusal of no words":  {answer(500, ""), "the server answered 500"},
		"a page":                 {answer(502, "<html>\r\n\t<b>Bad\x00\x1b[31m Gateway</b>\n"+strings.Repeat("long ", 1<<16)), "the server answered 502: <html> <b>Bad [31m Gateway</b> long"},
		"bytes":                  {answer(500, "\xff\xfe\x00oops"), "the server answered 500: oops"},
		"an echo of the token":   {answer(401, "Bearer "+token+" is not known"), "the server answered 401: Bearer [token] is not known"},
		"an echo at the margin":  {answer(401, strings.Repeat("-", 250)+token), "the server answered 401: -----"},
		"a redirect":             {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) }, "the server answered 302: <a href="},
		"another success":        {answer(202, "later"), "the server answered 202: later"},
		"no JSON":                {answer(200, "<html>"), "decode snapshot: invalid character '<'"},
		"another type":           {answer(200, `{"replicas":[{"prefixCount":"3"}]}`), "decode snapshot: json: cannot unmarshal string"},
		"a number beyond bounds": {answer(200, `{"totalPrefixes":`+strings.Repeat("9", 1<<16)+`}`), "decode snapshot: json: cannot unmarshal number 999"},
		"a time that is none":    {answer(200, `{"replicas":[{"lastUpdate":"`+strings.Repeat("x", 1<<16)+`"}]}`), "decode snapshot: parsing time"},
		"a second value":         {answer(200, `{} {}`), "decode snapshot: invalid character '{' after top-level value"},
		"nothing":                {answer(200, ""), "decode snapshot: unexpected end of JSON input"},
	} {
		t.Run(name, func(t *testing.T) {
			listener := httptest.NewServer(tc.serve)
			defer listener.Close()
			if tc.serve == nil {
				listener.Close()
			}
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
			client := (&server{url: listener.URL}).client(t, func(o *controlclient.Options) {
				o.ControllerTokenFile, o.HTTP.Timeout = file, 200*time.Millisecond
			})
			_, _, err := client.Snapshot(t.Context())
			if err == nil {
				t.Fatal("no error")
			}
			want := strings.ReplaceAll(tc.want, "SERVER", strings.TrimPrefix(listener.URL, "http://"))
			if text := err.Error(); !strings.HasPrefix(text, want) || len(text) > 300 || strings.Contains(text, "secret") || strings.ContainsAny(text, "\n\t\x1b\x00") {
				t.Errorf("error %q, want %q", text, want)
			}
			var refused *controlclient.RefusedError
			var call *controlclient.CallError
			if !errors.As(err, &refused) && !errors.As(err, &call) {
				t.Errorf("error of type %T", err)
			}
		})
	}
}

// slowly sends the first half of an answer.
func slowly(w http.ResponseWriter) {
	_, _ = w.Write([]byte(`{"replicas":[`))
	_ = http.NewResponseController(w).Flush()
}

func TestWhatAServerCannotBeCalledIsIgnored(t *testing.T) {
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Inference-Cache-Server-Epoch", strings.Repeat("e", 129))
		w.Header().Set("X-Inference-Cache-Policy-Revision", strings.Repeat("r", 128))
		_, _ = w.Write([]byte(`{}`))
	}))
	defer listener.Close()
	_, identity, err := (&server{url: listener.URL}).client(t).Snapshot(t.Context())
	if err != nil || identity.Epoch != "" || len(identity.PolicyRevision) != 128 {
		t.Errorf("identity %+v, %v", identity, err)
	}
}
