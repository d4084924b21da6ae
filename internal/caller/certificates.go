// SPDX-License-Identifier: Apache-2.0

package caller

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"github.com/inferencecache/inference-cache/internal/livefile"
)

var errNameLine = errors.New("expected a name of a certificate, a tenant and at most one list of limits")

// certificates turns the names of verified client certificates into callers.
type certificates struct {
	// names holds lines "name tenant limits"; nil without a file.
	names *livefile.File[map[string]Caller]
}

func openCertificates(path string, logger *slog.Logger) (*certificates, error) {
	if path == "" {
		return &certificates{}, nil
	}
	names, err := livefile.Open(path, logger, parseNames)
	if err != nil {
		return nil, fmt.Errorf("tenants of certificates: %w", err)
	}
	return &certificates{names}, nil
}

func parseNames(text []byte) (map[string]Caller, error) {
	names := map[string]Caller{}
	return names, livefile.EachLine(text, func(_ int, words []string) error {
		if len(words) != 2 && len(words) != 3 {
			return errNameLine
		}
		caller := Caller{Tenant: words[1]}
		if err := CheckTenant(caller.Tenant); err != nil {
			return err
		}
		var err error
		if len(words) == 3 {
			if caller.Limits, err = ParseLimits(words[2]); err != nil {
				return err
			}
		}
		names[words[0]] = caller
		return nil
	})
}

// find returns the caller a certificate names: by its URIs and DNS names in
// the file, or else by the namespace of its one SPIFFE id. False means that it
// names none, or several tenants.
func (c *certificates) find(leaf *x509.Certificate) (Caller, bool) {
	if c.names != nil {
		names := c.names.Get()
		found, caller := false, Caller{}
		for _, name := range append(uriTexts(leaf.URIs), leaf.DNSNames...) {
			known, ok := names[name]
			if ok && found && known.Tenant != caller.Tenant {
				return Caller{}, false
			}
			if ok {
				found, caller = true, known
			}
		}
		return caller, found
	}
	if len(leaf.URIs) != 1 {
		return Caller{}, false
	}
	uri := leaf.URIs[0]
	parts := strings.Split(strings.TrimPrefix(uri.Path, "/"), "/")
	if uri.Scheme != "spiffe" || len(parts) < 2 || parts[0] != "ns" || CheckTenant(parts[1]) != nil {
		return Caller{}, false
	}
	return Caller{Tenant: parts[1]}, true
}

func uriTexts(uris []*url.URL) []string {
	texts := make([]string, len(uris))
	for i, uri := range uris {
		texts[i] = uri.String()
	}
	return texts
}
