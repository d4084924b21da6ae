// SPDX-License-Identifier: Apache-2.0

// Package controlclient calls the internal listener of one server: it pushes
// policy, reads snapshots and drives the self-test.
//
// Every exchange also tells which server process answered and what it has
// applied, so that a restart is noticed at once.
package controlclient
