// SPDX-License-Identifier: Apache-2.0

// Package auth finds out who a caller is and what it may touch.
//
// A caller shows a bearer token or a client certificate. Tokens are judged by
// the TokenReview API of Kubernetes (Reviews) or by a file (TokenFile); both
// yield an Identity. An Identity from a pod may write as that pod, one from a
// file as its line says. What it may read is in its line or in a TenantMap.
// Tokens are never logged, kept or compared as such: their SHA-256 stands for
// them.
package auth
