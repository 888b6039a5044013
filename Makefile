# Everything a contributor runs. `make help` lists it.
#
# The same two commands serve a user, a contributor and CI: `make demo` and `make test`.
# They install or build whatever a fresh Debian machine (root, Go) lacks.

SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
IMAGE   ?= docker.io/jobqueue/jobqueue:dev
BIN     := $(CURDIR)/bin
TOOL    := go tool -modfile=hack/tools/go.mod
LDFLAGS := -s -w -X main.version=$(VERSION)

# One Ginkgo or go test process at a time: the suites start databases and API servers of
# their own, and most machines that run them are small.
GOTEST  := go test -race -count=1 -p 1 -timeout 20m

##@ General

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN {FS = ":.*## "; printf "Usage: make TARGET\n"} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ The two commands

.PHONY: demo
demo: image $(BIN)/localcluster ## Run the main job end to end on a real cluster: 5,000 jobs, one worker killed, counted in SQL.
	@hack/demo.sh

.PHONY: demo-down
demo-down: $(BIN)/localcluster ## Remove everything that the demo and the e2e suite made.
	@hack/demo.sh down

.PHONY: test
test: verify test-unit test-integration e2e ## Pass every test: lint, units, PostgreSQL, API server, and real pods.

##@ Developing

.PHONY: generate
generate: ## Regenerate deep copies, CRDs, RBAC and the charts' copies of them.
	@hack/generate.sh

.PHONY: verify
verify: lint ## Assert that generated files are current and the code is linted.
	@hack/verify.sh

.PHONY: lint
lint: ## Run golangci-lint on the product's module and vet the ones under hack/.
	@hack/lint.sh

.PHONY: build
build: ## Build the jobqueue binary into bin/.
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/jobqueue ./cmd/jobqueue

.PHONY: image
image: build ## Write the container image into bin/jobqueue-image.tar, without a container engine.
	go -C hack/image build -o $(BIN)/image .
	$(BIN)/image -tag $(IMAGE) -entrypoint /jobqueue -user 65532 -o $(BIN)/jobqueue-image.tar /jobqueue=$(BIN)/jobqueue

##@ Testing

.PHONY: test-unit
test-unit: ## Unit tests of every module.
	$(GOTEST) $$(go list ./... | grep -v -E '/(integration|faults|e2e|charts)(/|$$)')
	@for module in hack/tools hack/image hack/localcluster hack/bench; do \
	  echo "go -C $$module test ./..."; go -C $$module test -count=1 ./... || exit 1; done

.PHONY: test-integration
test-integration: postgres assets ## The queue, the worker, the controllers and the charts, on real PostgreSQL and API servers.
	KUBEBUILDER_ASSETS="$$($(BIN)/localcluster assets)" $(GOTEST) $$(go list ./... | grep -E '/(integration|faults|charts)(/|$$)')

.PHONY: chaos
chaos: postgres ## The faults for longer (CHAOS_SECONDS=120).
	CHAOS_SECONDS=$${CHAOS_SECONDS:-120} $(GOTEST) -v ./test/faults

.PHONY: e2e
e2e: image $(BIN)/localcluster ## Ginkgo on real pods, in the local cluster or (KUBECONFIG=...) in yours.
	@hack/e2e.sh

.PHONY: postgres
postgres: ## Make sure that PostgreSQL's server programs are installed.
	@hack/postgres.sh

.PHONY: assets
assets: $(BIN)/localcluster ## Build etcd, kube-apiserver and kubectl (minutes the first time).
	@$(BIN)/localcluster build

.PHONY: bench
bench: ## Measure against the rivals: River, gue, Graphile Worker, pg-boss (BENCH_ARGS, such as -parts=drain).
	@hack/bench.sh $(BENCH_ARGS)

##@ The local cluster

.PHONY: $(BIN)/localcluster
$(BIN)/localcluster:
	@go -C hack/localcluster build -o $(BIN)/localcluster .

.PHONY: cluster-up
cluster-up: $(BIN)/localcluster ## Start the one-node Kubernetes of this machine.
	$(BIN)/localcluster up

.PHONY: cluster-down
cluster-down: $(BIN)/localcluster ## Stop it and remove what it made.
	$(BIN)/localcluster down
