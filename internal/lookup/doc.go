// SPDX-License-Identifier: Apache-2.0

// Package lookup decides where a request should go and says why.
//
// One Decider turns a request, the policy in force and the state of the index
// into a Decision: input, gates, match, score, floors, fallback, reason. The
// gRPC service, the explanation and the metrics only render that record. Every
// failure ends in a decision without scores; there is no error.
package lookup
