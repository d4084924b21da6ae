// SPDX-License-Identifier: Apache-2.0

// Package gateway is an OpenAI-compatible reverse proxy that sends each
// request to the replica that already holds its prefix, while load allows.
//
// A request passes through fixed steps: admission, reading and checking the
// body, resolving its model, deriving its prefix keys, asking the index,
// choosing a replica (package routing), sending, and relaying the answer.
// Whatever fails between the model and the choice only costs the hint: the
// request is then routed by load.
package gateway
