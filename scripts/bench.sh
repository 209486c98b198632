#!/usr/bin/env bash
# Measures each function as it would be deployed, against its budget: the zips of `make build` for this machine's
# architecture, in the local world. Arguments go to the measurement.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/common.sh"

arch=$(uname -m)
[ "$arch" = aarch64 ] && arch=arm64
scripts/build.sh "$arch"
# The world's own binary only: what is measured is in the zips.
cargo build --locked -p ostler-local
PATH=$venv/bin:$PATH exec target/debug/ostler-local bench --zips "target/package/$arch" "$@"
