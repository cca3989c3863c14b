# SPDX-License-Identifier: Apache-2.0
#
# Thin: every target is a few commands that can be typed by hand.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BUILD   := .build
BIN     := $(BUILD)/bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GOFLAGS_ALL := -trimpath -buildvcs=false
LDFLAGS := -X aether.io/aether/internal/daemon.version=$(VERSION)

FUZZTIME ?= 60s

export GOTOOLCHAIN := local

.PHONY: help
help: ## Print this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build aether-agent and aetherctl into .build/bin
	@tools/check-go.sh
	@mkdir -p $(BIN)
	go build $(GOFLAGS_ALL) -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...

.PHONY: envoy
envoy: ## Find Envoy >= 1.40 on PATH or fetch the pinned one into .build/envoy
	@tools/fetch-envoy.sh $(BUILD)/envoy

.PHONY: deps
deps: ## Install the system packages the tests use (Debian, as root)
	@tools/install-packages.sh nft:nftables ip:iproute2 nsenter:util-linux wrk:wrk haproxy:haproxy

.PHONY: demo
demo: build envoy ## Show the main job working on this machine (about a minute; needs no root)
	$(BIN)/aetherctl version
	go run $(GOFLAGS_ALL) ./test/demo -bin $(BIN) -envoy $(BUILD)/envoy/envoy -out $(BUILD)/demo.json

# One package at a time: most of them share the kernel, and some hold times.
.PHONY: test
test: build envoy deps ## Run every test, with the race detector (root for the kernel and Envoy parts)
	go vet ./...
	go build -race ./...
	AETHER_ENVOY=$(abspath $(BUILD)/envoy/envoy) go test -race -count=1 -timeout 60m -p 1 $(GOTESTFLAGS) ./...
	cd test/dashboard && AETHER_ENVOY=$(abspath $(BUILD)/envoy/envoy) AETHER_BIN=$(abspath $(BIN)) go test -count=1 -timeout 10m $(GOTESTFLAGS) ./...
	cd test/oracle && go vet $(GOFLAGS_ALL) ./... && go test $(GOFLAGS_ALL) -count=1 -timeout 20m $(GOTESTFLAGS) ./...
	tools/fuzz.sh $(FUZZTIME)

STATES ?= 200000

.PHONY: oracle
oracle: ## Compare STATES (200,000) random clusters with kube-proxy's own code, on all CPUs (a few minutes; needs no root)
	cd test/oracle && go test $(GOFLAGS_ALL) -count=1 -timeout 12h -v -run TestHistories . -args -oracle.states=$(STATES)

LAB_ENV := AETHER_ENVOY=$(abspath $(BUILD)/envoy/envoy) AETHER_BIN=$(abspath $(BIN))

# The first time Kubernetes is built, which takes a quarter of an hour on two cores.
.PHONY: test-lab
test-lab: build envoy deps ## Run the tests against a real Kubernetes on this machine (root)
	cd test/lab && go vet $(GOFLAGS_ALL) ./... && $(LAB_ENV) go test $(GOFLAGS_ALL) -count=1 -timeout 60m -p 1 $(GOTESTFLAGS) ./...

.PHONY: lab-up
lab-up: build envoy deps ## Bring a real Kubernetes up on this machine, with the agent and Envoy (root)
	cd test/lab && go build $(GOFLAGS_ALL) -o $(abspath $(BIN))/lab ./cmd/lab && $(LAB_ENV) $(abspath $(BIN))/lab up $(LABFLAGS)

.PHONY: lab-down
lab-down: ## Take it down again, or remove what a killed one left
	cd test/lab && go build $(GOFLAGS_ALL) -o $(abspath $(BIN))/lab ./cmd/lab && $(abspath $(BIN))/lab down $(LABFLAGS)

.PHONY: fuzz
fuzz: ## Run every fuzzer for FUZZTIME (60s) each
	tools/fuzz.sh $(FUZZTIME)

.PHONY: bench
bench: build envoy deps ## Measure what the node proxy costs on this machine (root, a quarter of an hour)
	go run $(GOFLAGS_ALL) ./test/bench -bin $(BIN) -envoy $(BUILD)/envoy/envoy -out $(BUILD)/bench.json

.PHONY: bench-cluster
bench-cluster: build envoy deps ## Measure agent and kube-proxy beside each other in a real Kubernetes (root, a quarter of an hour)
	cd test/lab && go build $(GOFLAGS_ALL) -o $(abspath $(BIN))/measure ./measure && $(LAB_ENV) $(abspath $(BIN))/measure $(BENCHFLAGS)

.PHONY: lint
lint: ## Run the linters
	go tool -modfile=tools/go.mod golangci-lint run ./...
	cd test/dashboard && go tool -modfile=../../tools/go.mod golangci-lint run ./...
	cd test/lab && go tool -modfile=../../tools/go.mod golangci-lint run ./...
	cd test/oracle && go tool -modfile=../../tools/go.mod golangci-lint run ./...

.PHONY: format
format: ## Format the code
	go tool -modfile=tools/go.mod golangci-lint fmt ./...

.PHONY: golden
golden: ## Rewrite the golden files and the generated parts of the documents
	go test ./internal/envoy/... ./internal/ctl/... ./test/rules -update

.PHONY: clean
clean: ## Remove what was built
	rm -rf $(BUILD)
