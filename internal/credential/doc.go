// SPDX-License-Identifier: Apache-2.0

// Package credential is what a gRPC client shows of itself and how it checks
// the server: a bearer token, a client certificate, certificate authorities.
// All are files, read again when they change.
package credential
