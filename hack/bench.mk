# SPDX-License-Identifier: Apache-2.0

# TRACE=FILE replays a public request trace; without it one of the same shape
# is generated.
BENCH_FLAGS ?= --short $(if $(TRACE),--trace $(TRACE))

.PHONY: bench
bench: build ## Measure index and service against their goals; results in bench/results
	@mkdir -p bench/results
	@set -o pipefail; for what in index serve; do \
	bin/inferencecache bench $$what $(BENCH_FLAGS) | tee bench/results/$$what.json || exit 1; done
