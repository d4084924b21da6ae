// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"github.com/inferencecache/inference-cache/internal/caller"
	"github.com/inferencecache/inference-cache/internal/gateway"
)

// Access says who may call the gateway. The zero value serves everybody as one
// caller tenant.
type Access struct {
	// APIKeysFile has lines "sha256-hex tenant limits", limits being optional;
	// default none.
	APIKeysFile string `yaml:"apiKeysFile"`
	OIDC        OIDC   `yaml:"oidc"`
	// DefaultTenant is that of callers without credentials; default "default",
	// or that they are refused if credentials are asked for.
	DefaultTenant string `yaml:"defaultTenant"`
	// TrustedListen is a second address for clients, whose control headers are
	// believed; default none.
	TrustedListen string `yaml:"trustedListen"`
	// TLSCertFile and TLSKeyFile are the certificate for clients; default none.
	TLSCertFile string `yaml:"tlsCertFile"`
	TLSKeyFile  string `yaml:"tlsKeyFile"`
	// ClientCAFile holds the authorities of client certificates, and
	// ClientTenantsFile lines "name tenant limits"; default none.
	ClientCAFile      string `yaml:"clientCAFile"`
	ClientTenantsFile string `yaml:"clientTenantsFile"`
	// TenantSalt is off or derive; needed if there may be several caller
	// tenants. Default the client's salt.
	TenantSalt string `yaml:"tenantSalt"`
	// TenantSaltKeyFile holds the secret of derive.
	TenantSaltKeyFile string `yaml:"tenantSaltKeyFile"`
	// AllowHiddenSalts uses engines whose events cannot show salts in spite of
	// derive; default false.
	AllowHiddenSalts bool `yaml:"allowHiddenSalts"`
}

// OIDC says which JSON web tokens are good.
type OIDC struct {
	// Issuer and Audience of the tokens; default none are good.
	Issuer   string `yaml:"issuer"`
	Audience string `yaml:"audience"`
	// TenantClaim holds the tenant; default tenant.
	TenantClaim string `yaml:"tenantClaim"`
	// CAFile is the issuer's authority; default the system's.
	CAFile string `yaml:"caFile"`
	// JWKSFile is used in place of discovery; default none.
	JWKSFile string `yaml:"jwksFile"`
}

// options turns the section into the gateway's.
func (a *Access) options() gateway.Access {
	return gateway.Access{
		APIKeysFile: a.APIKeysFile,
		Tokens: caller.TokenOptions{
			Issuer: a.OIDC.Issuer, Audience: a.OIDC.Audience, TenantClaim: a.OIDC.TenantClaim,
			CAFile: a.OIDC.CAFile, KeysFile: a.OIDC.JWKSFile,
		},
		DefaultTenant: a.DefaultTenant, TrustedListen: a.TrustedListen,
		TLSCertFile: a.TLSCertFile, TLSKeyFile: a.TLSKeyFile,
		ClientCAFile: a.ClientCAFile, ClientTenantsFile: a.ClientTenantsFile,
		Salt: gateway.SaltMode(a.TenantSalt), SaltKeyFile: a.TenantSaltKeyFile, AllowHiddenSalts: a.AllowHiddenSalts,
	}
}
