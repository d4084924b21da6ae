// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/inferencecache/inference-cache/internal/caller"
)

// Access says who may call and what they may ask for. The zero value serves
// everybody as one caller tenant, without TLS.
type Access struct {
	// APIKeysFile has lines "sha256-hex tenant limits", limits being optional.
	APIKeysFile string
	// Tokens are the JSON web tokens that are good. Default none.
	Tokens caller.TokenOptions
	// ClientCAFile holds the authorities of client certificates. Default none;
	// it needs TLSCertFile.
	ClientCAFile string
	// ClientTenantsFile has lines "name tenant limits", name being a URI or DNS
	// name of a client certificate. Default: the namespace in a SPIFFE id.
	ClientTenantsFile string
	// DefaultTenant is the tenant of callers without credentials. Default
	// "default", or that they are refused if credentials are asked for.
	DefaultTenant string

	// TrustedListen is a second address for clients, whose control headers
	// and fields are believed. Default none.
	TrustedListen string
	// TLSCertFile and TLSKeyFile are the certificate of the clients' listeners.
	// Default none, no TLS.
	TLSCertFile, TLSKeyFile string
	// AdminTokenFile holds the bearer token of the admin listener, which needs
	// one unless it listens on loopback.
	AdminTokenFile string

	// Salt separates the cached prefixes of caller tenants. It must be chosen
	// if there may be several. Default: the salt is the client's.
	Salt SaltMode
	// SaltKeyFile holds the secret of SaltDerive, at least 16 bytes.
	SaltKeyFile string
	// AllowHiddenSalts routes to engines whose events cannot show salts in
	// spite of SaltDerive. Default false.
	AllowHiddenSalts bool
}

// SaltMode says which cache salt a request has.
type SaltMode string

// Salt modes.
const (
	// SaltOff takes the client's salt, if any, and lets caller tenants learn
	// from each other's placements.
	SaltOff SaltMode = "off"
	// SaltDerive derives a salt from the caller tenant and the client's salt.
	SaltDerive SaltMode = "derive"
)

func (a *Access) validate(adminListen string) error {
	switch {
	case (a.TLSCertFile == "") != (a.TLSKeyFile == ""):
		return errors.New("TLS needs both a certificate file and a key file")
	case a.ClientCAFile != "" && a.TLSCertFile == "":
		return errors.New("client certificates need TLS: set a certificate file and a key file")
	case a.ClientTenantsFile != "" && a.ClientCAFile == "":
		return errors.New("tenants of client certificates need the authorities of client certificates")
	case a.Salt != "" && a.Salt != SaltOff && a.Salt != SaltDerive:
		return fmt.Errorf("tenant salt %.32q: expected off or derive", string(a.Salt))
	case (a.Salt == SaltDerive) != (a.SaltKeyFile != ""):
		return errors.New("tenant salts are derived with a key file: set both or neither")
	case a.AdminTokenFile == "" && adminListen != "" && !isLoopback(adminListen):
		return fmt.Errorf("admin address %.128q: expected loopback, or a file with a token that callers must show", adminListen)
	case a.Salt == "" && a.severalMethods():
		return errors.New("there may be several caller tenants, so say how their cached prefixes are kept apart: " +
			"tenant salt derive, or off to share them")
	}
	return nil
}

// severalMethods reports whether callers may have several tenants whatever the
// files say.
func (a *Access) severalMethods() bool {
	return a.Tokens.Issuer != "" || a.Tokens.KeysFile != "" || a.ClientCAFile != "" || a.TrustedListen != ""
}

// resolver returns what finds out callers.
func (a *Access) resolver(o *Options) (*caller.Resolver, error) {
	resolver, err := caller.New(caller.Options{
		KeysFile: a.APIKeysFile, Tokens: a.Tokens,
		Certificates: a.ClientCAFile != "", CertificateTenantsFile: a.ClientTenantsFile,
		DefaultTenant: a.DefaultTenant, OneTenant: a.Salt == "",
		Logger: o.Logger,
	})
	if errors.Is(err, caller.ErrSeveralTenants) {
		return nil, fmt.Errorf("%w: say how their cached prefixes are kept apart: tenant salt derive, or off to share them", err)
	}
	return resolver, err
}

// AsksForCredentials reports whether clients can or must show who they are.
func (g *Gateway) AsksForCredentials() bool { return g.resolver.Asks() }

// isLoopback reports whether an address to listen on is that of this machine
// alone.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
