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
