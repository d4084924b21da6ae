// SPDX-License-Identifier: Apache-2.0

// Package server joins index, ingest and lookup into one process role and
// serves them over gRPC and HTTP.
package server
