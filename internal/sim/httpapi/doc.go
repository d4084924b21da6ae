// SPDX-License-Identifier: Apache-2.0

// Package httpapi is the HTTP face of a simulated engine: the OpenAI
// endpoints, tokenization, metrics and administration of vLLM or SGLang.
package httpapi
