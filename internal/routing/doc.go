// SPDX-License-Identifier: Apache-2.0

// Package routing chooses a replica for a request from cache hints, load and
// health. It does no I/O: callers pass facts, time and answers of the index
// in, and take a decision and a load guard out.
//
// A Fleet holds what is known about each replica. Decide filters the eligible
// ones, asks a Policy, and credits the request's load to the choice under the
// same lock, so that requests of one burst see each other. The Guard it
// returns gives the load back.
package routing
