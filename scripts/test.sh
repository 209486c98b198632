#!/usr/bin/env bash
# Every test. Arguments go to `cargo test`. The binaries are built first: the end-to-end tests start them.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/common.sh"

# One feature resolution for all: single packages would be compiled again with fewer features.
say "build"
cargo build --workspace --locked
say "test"
PATH=$venv/bin:$PATH exec cargo test --workspace --locked "$@"
