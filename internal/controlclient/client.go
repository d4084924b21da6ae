// SPDX-License-Identifier: Apache-2.0

package controlclient

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// Where a pod finds its tokens.
const (
	DefaultControllerTokenFile = "/var/run/secrets/inferencecache.io/controller-token/token"
	DefaultPolicyTokenFile     = "/var/run/secrets/inferencecache.io/policy-token/token"
)

// DefaultTimeout bounds one call.
const DefaultTimeout = 5 * time.Second

const (
	// maxPlainBytes is the longest body that every server takes.
	maxPlainBytes = 1 << 20
	// maxAnswerBytes bounds what is read of a snapshot: 300,000 rows of the
	// longest names, twice as many of common ones.
	maxAnswerBytes = 256 << 20
	// maxHeaderBytes is the longest header that says something of a server.
	maxHeaderBytes = 128
)

// URLs of a server's endpoints.
type URLs struct {
	// Snapshot, Policy and Probe end in /snapshot, /policy and /probe by
	// convention. Extensions are pushed to Policy + "/extensions".
	Snapshot, Policy, Probe string
}

// On returns the same endpoints at another address, host:port.
func (u URLs) On(address string) (URLs, error) {
	for _, text := range []*string{&u.Snapshot, &u.Policy, &u.Probe} {
		if *text == "" {
			continue
		}
		parsed, err := url.Parse(*text)
		if err != nil {
			return URLs{}, fmt.Errorf("server URL: %w", err)
		}
		parsed.Host = address
		*text = parsed.String()
	}
	return u, nil
}

// Options of a Client.
type Options struct {
	URLs URLs
	// ControllerTokenFile holds the token for snapshots and probes; default
	// DefaultControllerTokenFile.
	ControllerTokenFile string
	// PolicyTokenFile holds the token for pushes; default
	// DefaultPolicyTokenFile.
	PolicyTokenFile string
	// HTTP does the calls; default a client with DefaultTimeout. Redirects are
	// not followed unless it says how.
	HTTP *http.Client
	// Unreadable is told of a token file that cannot be read, before the call
	// goes out without one; default nobody.
	Unreadable func(error)
}

// Identity is which server process answered and what it has applied. Members
// are empty if the server does not tell.
type Identity struct {
	Epoch              string
	PolicyRevision     string
	ExtensionsRevision string
	Capabilities       []string
}

// Can reports whether the server has announced a capability.
func (i Identity) Can(capability string) bool { return slices.Contains(i.Capabilities, capability) }

// Client calls one server. It is safe for concurrent use.
type Client struct {
	options Options
}

// New returns a client.
func New(options Options) *Client {
	if options.ControllerTokenFile == "" {
		options.ControllerTokenFile = DefaultControllerTokenFile
	}
	if options.PolicyTokenFile == "" {
		options.PolicyTokenFile = DefaultPolicyTokenFile
	}
	if options.HTTP == nil {
		options.HTTP = &http.Client{Timeout: DefaultTimeout}
	}
	if options.HTTP.CheckRedirect == nil {
		steady := *options.HTTP // a token is for one server only
		steady.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		options.HTTP = &steady
	}
	if options.Unreadable == nil {
		options.Unreadable = func(error) {}
	}
	return &Client{options: options}
}

// PushPolicy replaces the server's policies. The body goes compressed if it
// is longer than every server takes and known says that this one can. A server
// of which nothing is known is asked.
// Errors are ErrTooLarge, RefusedError or CallError.
func (c *Client) PushPolicy(ctx context.Context, body []byte, revision string, known Identity) (Identity, error) {
	return c.push(ctx, c.options.URLs.Policy, body, revision, known)
}

// PushExtensions replaces the server's extensions. A server that knows none
// answers 404.
func (c *Client) PushExtensions(ctx context.Context, body []byte, known Identity) (Identity, error) {
	return c.push(ctx, c.options.URLs.Policy+"/extensions", body, "", known)
}

func (c *Client) push(ctx context.Context, target string, body []byte, revision string, known Identity) (Identity, error) {
	token, err := readToken(c.options.PolicyTokenFile)
	if err != nil {
		c.options.Unreadable(err)
	}
	encoding := ""
	if len(body) > maxPlainBytes {
		if known.Epoch == "" && known.Capabilities == nil {
			if known, err = c.introduction(ctx, target, token); err != nil {
				return Identity{}, err
			}
		}
		compressed, err := compress(body)
		if err != nil {
			return Identity{}, err
		}
		if !known.Can("gzip") || len(compressed) > maxPlainBytes {
			return Identity{}, fmt.Errorf("%w: %d bytes", ErrTooLarge, len(body))
		}
		body, encoding = compressed, "gzip"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return Identity{}, fmt.Errorf("push: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	if encoding != "" {
		request.Header.Set("Content-Encoding", encoding)
	}
	if revision != "" {
		request.Header.Set("X-Inference-Cache-Policy-Revision", revision)
	}
	_, identity, err := c.call(request, token, http.StatusNoContent)
	return identity, err
}

// introduction is what a server says of itself when it refuses a call that
// changes nothing. Only an answer that never came is an error.
func (c *Client) introduction(ctx context.Context, target, token string) (Identity, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return Identity{}, fmt.Errorf("push: %w", err)
	}
	_, identity, err := c.call(request, token, http.StatusMethodNotAllowed)
	var refused *RefusedError
	if errors.As(err, &refused) {
		err = nil
	}
	return identity, err
}

func compress(plain []byte) ([]byte, error) {
	var buffer bytes.Buffer
	writer := gzip.NewWriter(&buffer)
	if _, err := writer.Write(plain); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	if err := writer.Close(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	return buffer.Bytes(), nil
}

// readToken returns "" for a file that does not exist.
func readToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrToken, err)
	}
	return strings.TrimSpace(string(text)), nil
}

// call returns the body of an answer with the expected status.
func (c *Client) call(request *http.Request, token string, want int) ([]byte, Identity, error) {
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := c.options.HTTP.Do(request)
	if err != nil {
		return nil, Identity{}, failed("call the server", err, token)
	}
	defer response.Body.Close()
	identity := identityOf(response.Header)
	if response.StatusCode != want {
		// What there is will do. A token that begins in what is kept is read whole.
		text, _ := io.ReadAll(io.LimitReader(response.Body, int64(rawTextBytes+len(token))))
		return nil, identity, &RefusedError{response.StatusCode, Line(redact(string(text), token))}
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return nil, identity, failed("read the server's answer", err, token)
	case len(body) > maxAnswerBytes:
		return nil, identity, failed("read the server's answer", fmt.Errorf("longer than %d bytes", maxAnswerBytes), token)
	}
	return body, identity, nil
}

// identityOf reads what a server says of itself. What cannot be one of its
// words is taken for nothing.
func identityOf(header http.Header) Identity {
	word := func(name string) string {
		if value := header.Get(name); len(value) <= maxHeaderBytes {
			return value
		}
		return ""
	}
	return Identity{
		Epoch:              word("X-Inference-Cache-Server-Epoch"),
		PolicyRevision:     word("X-Inference-Cache-Policy-Revision"),
		ExtensionsRevision: word("X-Inference-Cache-Extensions-Revision"),
		Capabilities:       splitList(header.Get("X-Inference-Cache-Capabilities")),
	}
}

func splitList(text string) (items []string) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}
