#!/usr/bin/env bash
# Builds the book of docs/ into target/book. What it says is tested elsewhere (tests/tests/docs.rs).
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/common.sh"

cargo_tool mdbook 0.5.4 --no-default-features --features search
log=$("$tools/mdbook" build 2>&1) || die "$log"
# mdBook goes on after a broken include or an unknown key, with a line in its log.
if grep -E 'WARN|ERROR' <<<"$log"; then
  die "the book has faults"
fi
echo "target/book/index.html"
