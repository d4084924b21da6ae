// SPDX-License-Identifier: Apache-2.0

// Package peers proves the project against programs nobody here wrote: the
// official OpenAI clients, curl, libzmq and vLLM. The recordings of real
// engines are checked by every test run; everything that needs an installed
// peer runs through `make test-peers` and `make e2e-vllm`.
package peers
