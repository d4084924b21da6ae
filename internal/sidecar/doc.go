// SPDX-License-Identifier: Apache-2.0

// Package sidecar runs one publisher as a process of its own: connections to
// every server behind the given addresses, and health and metrics over HTTP.
package sidecar
