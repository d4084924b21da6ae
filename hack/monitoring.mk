# SPDX-License-Identifier: Apache-2.0

.PHONY: monitoring
monitoring: ## Regenerate the dashboards and the Kubernetes form of the alert rules
	$(GO) run -C tools/monitoring . -root ../..
	$(MAKE) manifests

.PHONY: monitoring-check
monitoring-check:
	@dir="$$(mktemp -d)" && trap 'rm -rf "$$dir"' EXIT && \
	$(GO) run -C tools/monitoring . -root ../.. -out "$$dir" && \
	diff -r "$$dir/dashboards" deploy/dashboards && diff -r "$$dir/alerts/kubernetes" deploy/alerts/kubernetes || \
	{ echo "dashboards or rules are out of date: run 'make monitoring'"; exit 1; }

.PHONY: test-alerts
test-alerts: monitoring-check ## Test alert rules and dashboards with Prometheus' own engine
	$(GO) vet -C tools/monitoring ./...
	$(GO) vet -C deploy/test ./...
	$(GO) test -C deploy/test -count 1 ./...
