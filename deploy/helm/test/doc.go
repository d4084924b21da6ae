// SPDX-License-Identifier: Apache-2.0

// Package chart tests the Helm chart beside it with Helm's own library. It is a
// module of its own, so that Helm stays out of the main one.
package chart
