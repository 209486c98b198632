# Shared by the scripts beside it, which source it: where the project is, and a few words to say what happens.
# shellcheck shell=bash
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# Used by the scripts that source this.
# shellcheck disable=SC2034
venv=$root/.venv

say() {
  if [ -t 1 ]; then printf '\033[1m==> %s\033[0m\n' "$*"; else printf '==> %s\n' "$*"; fi
}

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

need() { # command, what for
  command -v "$1" >/dev/null || die "$1 is missing; it is needed $2"
}

# Where tools are built that crates.io has as source only.
tools=$root/target/tools/bin

# Makes sure that $tools has that version of a crate's binary, which has the crate's name. Built once and unoptimised,
# which takes a minute or two on two cores and makes no difference to what they do here.
cargo_tool() { # crate, version, arguments of cargo install...
  case $("$tools/$1" --version 2>/dev/null) in
    "$1 $2" | "$1 v$2") return 0 ;;
  esac
  say "building $1 $2"
  # Not into the workspace's target folder, whose profiles and lock it would share.
  CARGO_TARGET_DIR=target/tools/build cargo install --quiet "$1" --version "$2" "${@:3}" \
    --locked --debug --force --root target/tools
  rm -rf target/tools/build
}
