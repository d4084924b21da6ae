// SPDX-License-Identifier: Apache-2.0

// Package template renders prompt templates: text with {{name}} placeholders
// that are replaced by the values of variables. There is no code and there are
// no loops; equal input gives equal text.
package template
