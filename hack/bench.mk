# SPDX-License-Identifier: Apache-2.0

# TRACE=FILE replays a public request trace; without it one of the same shape
# is generated.
BENCH_FLAGS ?= --short $(if $(TRACE),--trace $(TRACE))

.PHONY: bench
bench: build ## Measure the index against its goals; results in bench/results
	@mkdir -p bench/results
	bin/inferencecache bench index $(BENCH_FLAGS) | tee bench/results/index.json
