#!/usr/bin/env bash
# The main job, live: starts the local world, deploys the templates into it, and plays 64 jobs. Leaves
# target/demo/summary.json and target/demo/report.html, and fails if a promise was broken. Arguments go to the demo.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/common.sh"

say "build (the first time takes some ten minutes, most of it one AWS SDK)"
cargo build --workspace --locked
PATH=$venv/bin:$PATH exec target/debug/ostler-local demo "$@"
