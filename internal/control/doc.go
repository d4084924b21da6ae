// SPDX-License-Identifier: Apache-2.0

// Package control serves the internal HTTP listener: a controller pushes
// policy through it, reads what the server holds, and has it test itself.
package control
