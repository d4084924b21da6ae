// SPDX-License-Identifier: Apache-2.0

// Package deploy tests the alert rules and dashboards beside it with
// Prometheus' own parser and engine. It is a module of its own, so that those
// stay out of the main one.
package deploy
