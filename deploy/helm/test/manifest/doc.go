// SPDX-License-Identifier: Apache-2.0

// Package manifest renders the Helm chart into the other forms of the install:
// a single file, and a kustomize base with components.
//
// A component is the difference between the chart rendered with its values and
// the chart rendered with the defaults. Components that change different values
// go together in any order: arguments are replaced one by one, everything else
// is merged by name.
package manifest
