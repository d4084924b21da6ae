# SPDX-License-Identifier: Apache-2.0

SHELL := /bin/bash
.DEFAULT_GOAL := help

CACHE ?= $(HOME)/.cache/inference-cache
TOOLS := $(CACHE)/tools
GO ?= go
# The race detector needs a C compiler; without one the tests still run.
RACE := $(shell if [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v "$$($(GO) env CC)" >/dev/null 2>&1; then echo -race; fi)
TEST_FLAGS ?= $(RACE) -timeout 15m
LDFLAGS := $(if $(VERSION),-X github.com/inferencecache/inference-cache/internal/version.release=$(VERSION))

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-zA-Z0-9_-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/inferencecache
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/inferencecache ./cmd/inferencecache

PREFIX ?= /usr/local

.PHONY: install
install: build ## Install it as inferencecache and as the kubectl plugin, under PREFIX (/usr/local)
	install -d '$(DESTDIR)$(PREFIX)/bin'
	install -m 0755 bin/inferencecache '$(DESTDIR)$(PREFIX)/bin/inferencecache'
	ln -sf inferencecache '$(DESTDIR)$(PREFIX)/bin/kubectl-inferencecache'

.PHONY: demo
demo: build ## Simulated engines, round robin against cache-aware routing
	bin/inferencecache demo

.PHONY: test
test: ## Run the test suite (needs only Go; with a C compiler also the race detector)
	@if [ -z "$(RACE)" ]; then echo "no C compiler found: testing without the race detector"; fi
	$(GO) test $(TEST_FLAGS) ./...

.PHONY: lint
lint: generate-check chart-check ## gofmt, vet, staticcheck, house rules, generated code up to date
	@unformatted="$$(gofmt -l api cmd internal pkg test tools proto)"; \
	if [ -n "$$unformatted" ]; then echo "gofmt needed:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) build -C tools/lint -o $(TOOLS)/staticcheck honnef.co/go/tools/cmd/staticcheck
	$(TOOLS)/staticcheck ./...
	$(GO) test -count=1 ./test/house

CRDGEN = $(TOOLS)/controller-gen object:headerFile=hack/boilerplate.go.txt crd:crdVersions=v1,headerFile=hack/boilerplate.yaml.txt paths=./api/...

.PHONY: controller-gen
controller-gen:
	$(GO) build -C tools/crdgen -o $(TOOLS)/controller-gen sigs.k8s.io/controller-tools/cmd/controller-gen

.PHONY: generate
generate: controller-gen ## Regenerate Go code from the proto files, and resources from the Go types
	$(GO) run -C tools/protogen . -root ../..
	$(CRDGEN) output:object:dir=api/v1alpha1 output:crd:dir=deploy/crds
	$(MAKE) manifests

.PHONY: generate-check
generate-check: controller-gen ## Fail when generated files are not up to date
	@dir="$$(mktemp -d)" && trap 'rm -rf "$$dir"' EXIT && \
	$(GO) run -C tools/protogen . -root ../.. -out "$$dir" && \
	$(CRDGEN) output:object:dir="$$dir/object" output:crd:dir="$$dir/crds" && \
	diff -r "$$dir/proto/inferencecache/v1alpha1/gen" proto/inferencecache/v1alpha1/gen && \
	diff "$$dir/object/zz_generated.deepcopy.go" api/v1alpha1/zz_generated.deepcopy.go && \
	diff -r "$$dir/crds" deploy/crds || \
	{ echo "generated files are out of date: run 'make generate'"; exit 1; }

-include hack/*.mk

.PHONY: clean
clean: ## Remove build results
	rm -rf bin bench/results
