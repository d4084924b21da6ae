# SPDX-License-Identifier: Apache-2.0

CHART := deploy/helm/inference-cache

# copy_chart_files DIR: what the chart takes over from elsewhere.
copy_chart_files = mkdir -p $(1)/crds $(1)/alerts && cp deploy/crds/*.yaml $(1)/crds/ && cp deploy/alerts/kubernetes/*.yaml $(1)/alerts/

.PHONY: chart
chart: ## Bring resource definitions and alert rules into the Helm chart
	rm -rf $(CHART)/files
	$(call copy_chart_files,$(CHART)/files)

.PHONY: chart-check
chart-check:
	@dir="$$(mktemp -d)" && trap 'rm -rf "$$dir"' EXIT && \
	$(call copy_chart_files,"$$dir") && diff -r "$$dir" $(CHART)/files || \
	{ echo "the chart's files are out of date: run 'make chart'"; exit 1; }

.PHONY: test-chart
test-chart: chart-check ## Lint the Helm chart and check what it renders
	$(GO) vet -C deploy/helm/test ./...
	$(GO) test -C deploy/helm/test -count 1 ./...
