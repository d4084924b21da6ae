// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/testcert"
)

// raw sends bytes and returns the first answer's status and whether the
// connection is over after it.
func raw(t *testing.T, conn net.Conn, text string) (status int, closed bool) {
	t.Helper()
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return 0, true
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	if !response.Close {
		_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	}
	_, err = reader.ReadByte()
	return response.StatusCode, err == io.EOF //nolint:errorlint // as the reader returns it
}

func dial(t *testing.T, f *fixture) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestRawRequests(t *testing.T) {
	a := newEngine(t, "a")
	f := start(t, gateway.Options{MaxBodyBytes: 1000}, a)
	const line, host = "POST /v1/completions HTTP/1.1\r\nHost: h\r\n", "Content-Type: application/json\r\n"
	body := `{"model":"base/model","prompt":"x"}`
	length := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	for name, tc := range map[string]struct {
		text   string
		status int
		closed bool
	}{
		"a length":                      {line + host + length + "\r\n" + body, 200, false},
		"chunks":                        {line + host + "Transfer-Encoding: chunked\r\n\r\n" + chunked, 200, false},
		"a length and chunks":           {line + length + "Transfer-Encoding: chunked\r\n\r\n" + chunked, 400, true},
		"chunks and a length":           {line + "Transfer-Encoding: chunked\r\n" + length + "\r\n" + chunked, 400, true},
		"two lengths":                   {line + length + "Content-Length: 1\r\n\r\n" + body, 400, true},
		"a length that is none":         {line + "Content-Length: x\r\n\r\n", 400, true},
		"an unknown encoding":           {line + "Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked, 501, true},
		"two encodings":                 {line + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked, 501, true},
		"an encoding with a space":      {line + length + "Transfer-Encoding : chunked\r\n\r\n" + chunked, 400, true},
		"no host":                       {"POST /v1/completions HTTP/1.1\r\n" + length + "\r\n" + body, 400, true},
		"headers beyond 64 KiB":         {line + "X-Long: " + strings.Repeat("x", 80<<10) + "\r\n\r\n", 431, true},
		"a claimed body over the limit": {line + "Content-Length: 100000\r\n\r\n", 413, true},
		"chunks over the limit":         {line + "Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + strings.Repeat(" ", 2000) + "\r\n0\r\n\r\n", 413, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(a.requests())
			status, closed := raw(t, dial(t, f), tc.text)
			if status != tc.status || closed != tc.closed {
				t.Errorf("status %d, closed %t; want %d, %t", status, closed, tc.status, tc.closed)
			}
			if got := len(a.requests()) - before; (got == 1) != (tc.status == 200) {
				t.Errorf("%d requests at the engine", got)
			}
		})
	}
	f.idle()
}

// Two requests in one write: the second must not hide behind the first.
func TestPipelinedConflictIsRefused(t *testing.T) {
	a := newEngine(t, "a")
	f := start(t, gateway.Options{}, a)
	body := `{"model":"base/model","prompt":"x"}`
	good := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	conn := dial(t, f)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	smuggled := "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + good
	if _, err := io.WriteString(conn, good+smuggled); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(conn)
	var statuses []int
	for {
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			break
		}
		_, _ = io.Copy(io.Discard, response.Body)
		statuses = append(statuses, response.StatusCode)
	}
	if fmt.Sprint(statuses) != "[200 400]" || len(a.requests()) != 1 {
		t.Errorf("answers %v and %d requests at the engine, want [200 400] and 1", statuses, len(a.requests()))
	}
}

func TestSlowClients(t *testing.T) {
	const soon = 50 * time.Millisecond
	for name, tc := range map[string]struct {
		timeouts gateway.Timeouts
		text     string
		want     int // 0 is no answer
	}{
		"headers that never end": {gateway.Timeouts{HeaderRead: soon}, "POST /v1/completions HTTP/1.1\r\nHost:", 0},
		"a body that never ends": {gateway.Timeouts{BodyRead: soon}, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{", 400},
	} {
		t.Run(name, func(t *testing.T) {
			a := newEngine(t, "a")
			f := start(t, gateway.Options{Timeouts: tc.timeouts}, a)
			if status, closed := raw(t, dial(t, f), tc.text); status != tc.want || !closed {
				t.Errorf("status %d, closed %t; want %d, true", status, closed, tc.want)
			}
			if n := len(a.requests()); n != 0 {
				t.Errorf("the engine got %d requests", n)
			}
			f.idle()
		})
	}
}

func TestTrailersGoNoFurther(t *testing.T) {
	a := newEngine(t, "a", func(e *engine) {
		e.generate = func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Checksum")
			answerJSON("a", 0)(w, r)
			w.Header().Set("X-Checksum", "1")
		}
	})
	f := start(t, gateway.Options{}, a)
	body := `{"model":"base/model","prompt":"x"}`
	conn := dial(t, f)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: X-Data-Parallel-Rank\r\n\r\n"+
		"%x\r\n%s\r\n0\r\nX-Data-Parallel-Rank: 3\r\n\r\n", len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	if response.StatusCode != 200 || len(response.Trailer) > 0 {
		t.Errorf("status %d, trailers %v", response.StatusCode, response.Trailer)
	}
	seen := a.requests()[0]
	if string(seen.body) != body || seen.header.Get("X-Data-Parallel-Rank") != "" || seen.header.Get("Trailer") != "" {
		t.Errorf("the engine got %v %s", seen.header, seen.body)
	}
}

// A body of 1 MiB arrives byte by byte as it was sent, with and without keys.
func TestGW_20_LargeBodiesArriveUnchanged(t *testing.T) {
	text := strings.Repeat("all bytes of a prompt \u00fc\t\"\\ ", 1<<20/24)
	quoted, err := json.Marshal(text[:1<<20])
	if err != nil {
		t.Fatal(err)
	}
	ids := "[" + strings.TrimSuffix(strings.Repeat("101, ", 1<<20/5), ", ") + "]"
	for name, tokenizer := range map[string]gateway.TokenizerMode{"by tokens": gateway.TokenizeByEngine, "by text": gateway.TokenizeNone} {
		t.Run(name, func(t *testing.T) {
			a, b := newEngine(t, "a"), newEngine(t, "b")
			f := start(t, gateway.Options{Lookuper: says("NO_HINT"), Tokenizer: tokenizer, UsageSample: -1}, a, b)
			for _, body := range []string{
				` { "model" : "base/model", "prompt" : ` + string(quoted) + `, "z": 1e2, "a": [ ] } `,
				`{"model":"base/model","prompt":` + ids + `}`,
				`{"model":"base/model","stream":true,"prompt":"` + strings.Repeat("s", 1<<20) + `"}`,
			} {
				before := len(a.requests()) + len(b.requests())
				if got := f.post("/v1/completions", body); got.status != 200 {
					t.Fatalf("%d %.200s", got.status, got.body)
				}
				all := append(a.requests(), b.requests()...)
				found := false
				for _, r := range all {
					found = found || string(r.body) == body
				}
				if !found || len(all) != before+1 {
					t.Errorf("a body of %d bytes arrived changed", len(body))
				}
			}
		})
	}
}

// Several sequences or prompts are one request of one replica, found by the
// first prompt.
func TestBatchesStayTogether(t *testing.T) {
	long := strings.Repeat("p", 64)
	ids := strings.TrimSuffix(strings.Repeat("112,", 64), ",")
	for name, body := range map[string]string{
		"several answers":          `{"model":"base/model","n":3,"prompt":"` + long + `"}`,
		"several prompts":          `{"model":"base/model","prompt":["` + long + `","q"]}`,
		"one prompt in a list":     `{"model":"base/model","prompt":["` + long + `"]}`,
		"token ids":                `{"model":"base/model","prompt":[` + ids + `]}`,
		"several prompts as ids":   `{"model":"base/model","prompt":[[` + ids + `],[1,2]]}`,
		"several chat completions": `{"model":"base/model","n":2,"input_ids":[` + ids + `],"messages":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newEngine(t, "a"), newEngine(t, "b")
			lookups := says("PREFIX_MATCH", "b")
			f := start(t, gateway.Options{Lookuper: lookups}, a, b)
			path := "/v1/completions"
			if strings.Contains(body, "messages") {
				path = "/v1/chat/completions"
			}
			if got := f.post(path, body); got.status != 200 {
				t.Fatal(got.status, got.body)
			}
			seen := b.requests()
			if len(a.requests()) != 0 || len(seen) != 1 || string(seen[0].body) != body {
				t.Error("the request did not go to the holder of its first prompt as it was")
			}
			want := f.keysOf(prompt())
			if asked := lookups.requests(); len(asked) != 1 || !bytes.Equal(bytes.Join(asked[0].BlockHashes, nil), want) {
				t.Error("the keys are not those of the first prompt")
			}
		})
	}
}

// keysOf returns the block keys that a gateway asks for.
func (f *fixture) keysOf(body string) []byte {
	f.t.Helper()
	lookups := says("NO_HINT")
	other := start(f.t, gateway.Options{Lookuper: lookups}, newEngine(f.t, "x"), newEngine(f.t, "y"))
	other.post("/v1/completions", body)
	return bytes.Join(lookups.requests()[0].BlockHashes, nil)
}

func TestTLSFollowsItsFiles(t *testing.T) {
	ca, clients := testcert.NewAuthority(t), testcert.NewAuthority(t)
	dir := t.TempDir()
	access := gateway.Access{
		TLSCertFile: filepath.Join(dir, "tls.crt"), TLSKeyFile: filepath.Join(dir, "tls.key"),
		ClientCAFile: clients.File, Salt: gateway.SaltOff,
	}
	first := ca.Issue(t, "127.0.0.1")
	testcert.Write(t, first, access.TLSCertFile, access.TLSKeyFile)
	f := start(t, gateway.Options{Access: access}, newEngine(t, "a"))
	address := strings.TrimPrefix(f.url, "http://")
	call := func(certificates ...tls.Certificate) (int, *tls.ConnectionState, error) {
		client := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), Certificates: certificates},
		}}
		response, err := client.Post("https://"+address+"/v1/completions", "application/json", strings.NewReader(prompt()))
		if err != nil {
			return 0, nil, err
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		return response.StatusCode, response.TLS, nil
	}
	known := clients.Issue(t, "spiffe://cluster/ns/team-a/sa/app")
	status, state, err := call(known)
	if err != nil || status != 200 || state.PeerCertificates[0].SerialNumber.Cmp(first.Leaf.SerialNumber) != 0 {
		t.Fatalf("status %d, %v", status, err)
	}
	if got := f.value("gateway_authentications_total", "method", "certificate", "result", "ok"); got != 1 {
		t.Errorf("%v callers by certificate", got)
	}
	if got := f.value("tls_not_after_timestamp_seconds", "listener", "clients"); got != float64(first.Leaf.NotAfter.Unix()) {
		t.Errorf("end of validity %v", got)
	}
	if _, _, err := call(); err == nil {
		t.Error("a client without a certificate was served")
	}
	if _, _, err := call(ca.Issue(t, "spiffe://cluster/ns/team-a/sa/app")); err == nil {
		t.Error("a certificate of another authority was taken")
	}
	if status, _, err := call(clients.Issue(t, "nameless.example")); err != nil || status != 403 {
		t.Errorf("a certificate without a tenant: %d, %v", status, err)
	}
	second := ca.Issue(t, "127.0.0.1")
	testcert.Write(t, second, access.TLSCertFile, access.TLSKeyFile)
	if _, state, err := call(known); err != nil || state.PeerCertificates[0].SerialNumber.Cmp(second.Leaf.SerialNumber) != 0 {
		t.Errorf("after the change: %v", err)
	}
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{known}})
	if err != nil {
		t.Fatal(err)
	}
	if status, closed := raw(t, conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"); status != 400 || !closed {
		t.Errorf("two lengths over TLS: %d, closed %t", status, closed)
	}
}
