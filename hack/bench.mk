# SPDX-License-Identifier: Apache-2.0

# TRACE=FILE replays a public request trace; without it one of the same shape
# is generated.
BENCH_FLAGS ?= --short $(if $(TRACE),--trace $(TRACE))

.PHONY: bench
bench: build ## Measure index, service and gateway against their goals; results in bench/results
	@mkdir -p bench/results
	@set -o pipefail; for what in index serve gateway; do \
	bin/inferencecache bench $$what $(BENCH_FLAGS) | tee bench/results/$$what.json || exit 1; done

.PHONY: bench-peers
bench-peers: build ## The gateway beside two other routers, which are installed once (60 MB)
	@peers="$$(CACHE="$(CACHE)" hack/bench-peers.sh)" || echo "bench-peers: what could not be installed is left out" >&2; \
	bin/inferencecache bench gateway --goals G10,peers --peers="$$peers"

# SCALE_OTHERS=50000 fills the cluster more, SCALE_ADAPTERS=core or all measures
# one of the two.
.PHONY: bench-controller
bench-controller: cluster-bin ## The controller in a cluster of 500 CacheBackends and 2,000 engines (15 minutes)
	$(GO) test -tags scale -count 1 -timeout 60m -v ./test/scale
