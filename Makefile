# Everything here works on a fresh machine with Rust (rust-toolchain.toml), Python 3.11, curl and openssl.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

# Of the functions that `make build` makes: arm64 (cheaper) or x86_64.
ARCH ?= arm64
# Where `make secrets` puts the parameters.
PREFIX ?= /ostler

# How long `make sim` plays, in seconds, and how many jobs each of its histories has.
SECONDS ?= 60
JOBS ?= 20

# What decides the order of the faults of `make chaos`.
SEED ?= 1

.PHONY: help setup build templates reference docs demo chaos test sim mutants bench bench-peer lint fmt secrets clean-demo

help: ## say what there is (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with the pinned tools (all targets do this first, where they need it)
	@scripts/setup.sh

demo: setup ## play 64 jobs in the local world: target/demo/report.html
	@scripts/demo.sh

chaos: setup ## play a script of faults in the local world: target/chaos/report.md; SEED=1
	@scripts/chaos.sh --seed $(SEED) $(ARGS)

test: setup ## run every test
	@scripts/test.sh

sim: ## play random histories under virtual time: SECONDS=60 JOBS=20 ARGS="--profile calls --seed 7"
	@cargo run --quiet --locked --profile sim -p ostler-sim -- run --seconds $(SECONDS) --jobs $(JOBS) --everything $(ARGS)

mutants: ## put faults into the use cases, and see whether they are noticed: ARGS="seeded" or "sampled"
	@scripts/mutants.sh $(ARGS)

lint: setup ## format, clippy, dependencies, templates, scripts
	@scripts/lint.sh

fmt: ## format the code
	@cargo fmt --all

templates: ## render infra/control.yaml from its parts
	@python3 scripts/render_templates.py

reference: ## write the pages of docs/ that are made from code and templates
	@UPDATE=1 cargo test --quiet --workspace --locked reference

docs: ## the book of docs/: target/book/index.html
	@scripts/docs.sh

build: setup ## the functions' zips for ARCH=arm64 or x86_64: target/package/
	@scripts/build.sh $(ARCH)

bench: setup ## measure each function against its budget (builds for this machine first)
	@scripts/bench.sh

bench-peer: setup ## measure Ostler beside an established peer, on the same events: target/bench-peer/bench-peer.md
	@scripts/bench_peer.sh $(ARGS)

secrets: setup ## create Ostler's SSM parameters in the account of your AWS credentials (PREFIX=/ostler)
	@scripts/secrets.sh --prefix $(PREFIX) $(ARGS)

clean-demo: ## forget what the demo and the script of faults left behind
	@rm -rf target/demo target/chaos
