// SPDX-License-Identifier: Apache-2.0

// Package webhook defaults and validates the declared resources on their way
// into the cluster.
//
// A write is answered with all its violations at once. An update is refused
// only for violations it introduces, so that an object written before a rule
// existed can still be changed. What cannot be checked is refused.
package webhook
