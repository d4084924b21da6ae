# SPDX-License-Identifier: Apache-2.0

.PHONY: cluster-bin
cluster-bin: ## Build the Kubernetes API server and etcd of the cluster tests, once
	$(GO) run ./internal/testcluster/clusterbin

.PHONY: test-envtest
test-envtest: cluster-bin ## Run the tests that need a real Kubernetes API server
	$(GO) test $(TEST_FLAGS) -tags envtest -count 1 -run Envtest ./internal/testcluster ./internal/auth ./internal/server ./cmd/inferencecache ./internal/webhook ./internal/controller ./internal/inject ./internal/webhookcert
	$(GO) test -C deploy/helm/test -timeout 15m -tags envtest -count 1 -run Envtest .
