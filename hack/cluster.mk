# SPDX-License-Identifier: Apache-2.0
#
# A real Kubernetes cluster of one node on this machine: docs/test-cluster.md.

CLUSTERCTL := $(GO) run ./internal/testcluster/node/clusterctl

.PHONY: cluster-node-bin
cluster-node-bin: ## Build and install what a cluster of one node is made of, once (20 minutes)
	$(CLUSTERCTL) build

.PHONY: cluster-up
cluster-up: cluster-node-bin image ## Start a Kubernetes cluster on this machine, with this tree's images (root)
	$(CLUSTERCTL) up
	$(CLUSTERCTL) import bin/images/*.tar

.PHONY: cluster-down
cluster-down: ## Stop the cluster and remove its traces (root)
	$(CLUSTERCTL) down

# RUN=Regexp chooses tests.
.PHONY: e2e-cluster
e2e-cluster: cluster-node-bin ## Test the installed project in a real cluster and print times (root; builds for 20 minutes once)
	$(GO) test -v -tags cluster -count 1 -p 1 -timeout 60m $(if $(RUN),-run '$(RUN)') ./internal/testcluster/node ./test/cluster
