// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/pflag"

	"github.com/inferencecache/inference-cache/internal/credential"
)

// addCredentialFlags adds the flags of a client of the server.
func addCredentialFlags(flags *pflag.FlagSet, o *credential.Options) {
	flags.StringVar(&o.CAFile, "server-ca-file", "", "certificate authority of the servers; switches TLS on")
	flags.StringVar(&o.ServerName, "server-name", "", "name in the servers' certificates (default the host)")
	flags.StringVar(&o.TokenFile, "token-file", "", "bearer token for the servers; read again when it changes")
	flags.BoolVar(&o.InsecureToken, "insecure-token-transport", false, "send the token without TLS beyond loopback")
	flags.StringVar(&o.CertFile, "client-cert-file", "", "certificate to show to the servers")
	flags.StringVar(&o.KeyFile, "client-key-file", "", "key of that certificate")
}
