// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/caller"
	"github.com/inferencecache/inference-cache/internal/gateway"
)

// addAccessFlags adds the flags that say who may call the gateway.
func addAccessFlags(flags *pflag.FlagSet, a *gateway.Access) {
	flags.StringVar(&a.APIKeysFile, "api-keys-file", "", "API keys; lines \"sha256-hex tenant limits\", limits such as "+caller.LimitsSyntax+" being optional; read again when it changes; see 'gateway key add'")
	t := &a.Tokens
	flags.StringVar(&t.Issuer, "oidc-issuer", "", "issuer of JSON web tokens that are good here; its keys are found by discovery")
	flags.StringVar(&t.Audience, "oidc-audience", "", "audience these tokens must have")
	flags.StringVar(&t.TenantClaim, "oidc-tenant-claim", "tenant", "claim of these tokens that holds the tenant")
	flags.StringVar(&t.CAFile, "oidc-ca-file", "", "certificate authority of the issuer (default the system's)")
	flags.StringVar(&t.KeysFile, "oidc-jwks-file", "", "JSON web key set to use in place of discovery; read again when it changes")
	flags.StringVar(&a.DefaultTenant, "default-tenant", "", "tenant of callers without credentials (default \"default\", or none if credentials are asked for: such callers get 401)")
	flags.StringVar(&a.TrustedListen, "trusted-listen", "", "second address for clients, whose control headers and fields are believed; everything on --listen is untrusted")
	flags.StringVar(&a.TLSCertFile, "tls-cert-file", "", "certificate for clients; read again when it changes")
	flags.StringVar(&a.TLSKeyFile, "tls-key-file", "", "key of that certificate")
	flags.StringVar(&a.ClientCAFile, "client-ca-file", "", "authorities of client certificates, which name their tenant; read again when it changes")
	flags.StringVar(&a.ClientTenantsFile, "client-tenants-file", "", "lines \"name tenant limits\", name being a URI or DNS name of a client certificate (default the namespace in spiffe://DOMAIN/ns/NAMESPACE/...); read again when it changes")
	flags.StringVar(&a.AdminTokenFile, "admin-token-file", "", "bearer token of the admin address, needed unless that is loopback; /healthz and /readyz never ask for it; read again when it changes")
	flags.StringVar((*string)(&a.Salt), "tenant-salt", "", "how cached prefixes of caller tenants are kept apart: derive (a salt for each) or off (they share them); needed if there may be several (default the client's salt)")
	flags.StringVar(&a.SaltKeyFile, "tenant-salt-key-file", "", "secret of at least 16 bytes that --tenant-salt=derive derives salts with, the same for all gateways")
	flags.BoolVar(&a.AllowHiddenSalts, "allow-hidden-salts", false, "with --tenant-salt=derive, use engines whose KV events cannot show salts too; they never match")
}

func (c *cli) newGatewayKeyCommand() *cobra.Command {
	key := &cobra.Command{
		Use:   "key",
		Short: "Manage API keys of the gateway",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var path, tenant, limits string
	add := &cobra.Command{
		Use:   "add",
		Short: "Add a new API key to a file and print it once",
		Long: `add makes an API key, adds its SHA-256 with the tenant and its limits to the file
and prints the key. It is shown this once: the file does not hold it. A running
gateway takes it up without a restart. To withdraw a key, delete its line.

Example:
  inferencecache gateway key add --file keys --tenant team-a --limits ` + caller.LimitsSyntax,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			if path == "" || tenant == "" {
				return usagef("--file and --tenant: both are needed")
			}
			key, err := caller.AddKey(path, tenant, limits)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.stdout, key)
			return err
		},
	}
	add.Flags().StringVar(&path, "file", "", "file of keys, created if need be")
	add.Flags().StringVar(&tenant, "tenant", "", "tenant of the key's callers")
	add.Flags().StringVar(&limits, "limits", "", "limits of the tenant, such as "+caller.LimitsSyntax+" (default none)")
	key.AddCommand(add)
	return key
}
