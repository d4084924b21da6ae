# SPDX-License-Identifier: Apache-2.0

CHART := deploy/helm/inference-cache

# write_chart_files DIR: what the chart takes over from elsewhere.
write_chart_files = mkdir -p $(1)/crds $(1)/alerts && cp deploy/crds/*.yaml $(1)/crds/ && cp deploy/alerts/kubernetes/*.yaml $(1)/alerts/ && \
	$(GO) run ./internal/webhook/chartwriter -out $(1)/webhooks

.PHONY: chart
chart: ## Bring resource definitions, alert rules and webhooks into the Helm chart
	rm -rf $(CHART)/files
	$(call write_chart_files,$(CHART)/files)

.PHONY: chart-check
chart-check: manifests-check
	@dir="$$(mktemp -d)" && trap 'rm -rf "$$dir"' EXIT && \
	$(call write_chart_files,"$$dir") && diff -r "$$dir" $(CHART)/files || \
	{ echo "the chart's files are out of date: run 'make chart'"; exit 1; }

# MANIFESTS is where to write to, VALUES a file of values to start from.
MANIFESTS ?= deploy
VALUES ?=
manifestwriter = $(GO) run -C deploy/helm/test ./manifestwriter

.PHONY: manifests
manifests: chart ## Render the Helm chart into install.yaml and kustomize (MANIFESTS=folder VALUES=file)
	rm -rf '$(MANIFESTS)/kustomize'
	$(manifestwriter) -out '$(abspath $(MANIFESTS))' $(if $(VALUES),-values '$(abspath $(VALUES))')

.PHONY: manifests-check
manifests-check:
	@dir="$$(mktemp -d)" && trap 'rm -rf "$$dir"' EXIT && \
	$(manifestwriter) -out "$$dir" && \
	diff -r "$$dir/kustomize" deploy/kustomize && diff "$$dir/install.yaml" deploy/install.yaml || \
	{ echo "the manifests are out of date: run 'make manifests'"; exit 1; }

.PHONY: test-chart
test-chart: chart-check ## Lint the Helm chart and check what it renders
	$(GO) vet -C deploy/helm/test ./...
	$(GO) test -C deploy/helm/test -count 1 ./...
