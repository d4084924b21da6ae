# SPDX-License-Identifier: Apache-2.0
#
# Tests against programs nobody here wrote. What they need is installed under
# $(CACHE)/peers and $(CACHE)/vllm.

.PHONY: test-peers
test-peers: build ## Official OpenAI clients, curl, libzmq, tokenizers of models
	CACHE="$(CACHE)" GO="$(GO)" hack/peers.sh

.PHONY: e2e-vllm
e2e-vllm: build ## Two real vLLM engines on CPU (6 GB once; skips where vLLM cannot be installed)
	CACHE="$(CACHE)" GO="$(GO)" hack/peers-vllm.sh
