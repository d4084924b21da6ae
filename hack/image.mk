# SPDX-License-Identifier: Apache-2.0

IMAGE_ARCH ?= $(shell $(GO) env GOARCH)
IMAGE_TAG ?= $(or $(VERSION),dev)

.PHONY: image
image: ## Write container images, the list of modules and checksums to bin/images
	CGO_ENABLED=0 GOOS=linux GOARCH=$(IMAGE_ARCH) $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/linux-$(IMAGE_ARCH)/inferencecache ./cmd/inferencecache
	$(GO) run ./internal/imagetar/imagewriter -binary bin/linux-$(IMAGE_ARCH)/inferencecache -out bin/images -tag '$(IMAGE_TAG)'
	cd bin/images && sha256sum -c SHA256SUMS
