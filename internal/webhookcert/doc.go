// SPDX-License-Identifier: Apache-2.0

// Package webhookcert keeps the certificate of a service in the cluster: an
// authority of its own, a certificate by it, both in one Secret, and the
// authority in whatever has to trust it.
//
// One Keeper, on the elected leader, writes. Every replica reads through a
// Source, which picks up a new certificate without a restart.
//
// Invariant: a certificate is replaced by one of another authority only after
// that authority was published everywhere.
package webhookcert
