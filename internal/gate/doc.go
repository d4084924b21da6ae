// SPDX-License-Identifier: Apache-2.0

// Package gate decides who may call an endpoint of the internal listener.
package gate
