# Everyday verbs; anything that needs logic is Rust, in rhizome-lab or rhizome itself.
CARGO ?= cargo
# No -p below: a build of one package resolves features anew and compiles the network stack again.

.PHONY: help build demo test acceptance check bench fuzz setup sim-large

help: ## List the everyday verbs
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

build: ## Build everything for development
	$(CARGO) build --workspace --all-targets

demo: ## Set up what is needed, then show the main job on real parts
	$(CARGO) build --workspace --bins
	$(CARGO) run --quiet --bin rhizome-lab -- demo

test: ## Set up what is needed, then run every test
	$(CARGO) build --workspace --all-targets
	$(CARGO) run --quiet --bin rhizome-lab -- setup
	$(CARGO) test --workspace --no-fail-fast

acceptance: ## Install public clients in the user's cache, and run the tests that need them
	$(CARGO) build --workspace --all-targets
	$(CARGO) run --quiet --bin rhizome-lab -- acceptance

check: ## Format, lint and audit as a reviewer would
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@command -v cargo-deny >/dev/null && $(CARGO) deny check || echo "skipped: cargo deny (cargo install cargo-deny)"

bench: ## Measure, each figure with its limit beside it
	$(CARGO) bench --workspace --benches

TARGET ?=
SECONDS ?= 60
CRATES ?= guest,identity,memory,mesh,sandbox
fuzz: ## Fuzz every parser of foreign bytes (TARGET=name SECONDS=60 CRATES=identity,guest)
	cd fuzz && $(CARGO) build --no-default-features --features $(CRATES)
	cd fuzz && $(CARGO) run --quiet --no-default-features --features $(CRATES) --bin all -- $(SECONDS) $(TARGET)

setup: ## Install the programs that sandboxes need
	$(CARGO) run --quiet --bin rhizome-lab -- setup

NODES ?= 10000
SEED ?= 1
sim-large: ## Simulate ten thousand nodes for an hour of virtual time (NODES=10000 SEED=1)
	$(CARGO) run --release --bin rhizome-netsim -- run large --nodes $(NODES) --seed $(SEED)
