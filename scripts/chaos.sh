#!/usr/bin/env bash
# A script of faults over the real processes in the local world: lost events, throttled services, killed functions, machines
# that never boot or are taken back, a failing GitHub. Leaves target/chaos/report.md and report.json, and fails if a promise
# was broken. Takes some six minutes on two cores. Arguments go to the program: --seed, --scale, --out.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/common.sh"

say "build (the first time takes some ten minutes, most of it one AWS SDK)"
cargo build --workspace --locked
PATH=$venv/bin:$PATH exec target/debug/ostler-local chaos "$@"
