#!/usr/bin/env bash
# Puts faults into the use cases, one at a time in a copy, and demands that tests or simulation notice each. Hours.
#   seeded   those in tests/mutations/, or the ones named after it
#   sampled  200 that cargo-mutants makes, drawn with SEED (default 7)
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/common.sh"

# A part of the sample that is drawn; and how long the simulation may look for a fault.
readonly SAMPLE=200 SIM_SECONDS=10
seed=${SEED:-7}
copy=$root/target/mutants/copy
export CARGO_TARGET_DIR=$root/target/mutants/target CARGO_TERM_COLOR=never CARGO_PROFILE_DEV_DEBUG=false

# What notices a fault: unit tests of the domain first, then its tests in the simulated world, then the campaign.
noticed() {
  ! cargo test --quiet --locked -p ostler-core >"$1" 2>&1 ||
    ! cargo test --quiet --locked -p ostler-sim >>"$1" 2>&1 ||
    ! cargo run --quiet --locked -p ostler-sim -- run --seconds $SIM_SECONDS --quiet --seed $RANDOM >>"$1" 2>&1
}

fresh_copy() {
  mkdir -p "$copy"
  git ls-files -z | tar --null -T - -cf - | tar -xf - -C "$copy"
}

seeded() { # patches, all if none
  local patches=("$@") survivors=()
  [ $# -gt 0 ] || patches=("$root"/tests/mutations/*.patch)
  for patch in "${patches[@]}"; do
    local name=${patch##*/}
    fresh_copy
    git apply --directory="${copy#"$root"/}" "$patch" || die "$name does not apply: make it anew"
    (cd "$copy" && cargo check --quiet --locked -p ostler-core) || die "$name does not compile"
    if (cd "$copy" && noticed "$root/target/mutants/$name.log"); then
      say "noticed: $name"
    else
      say "SURVIVES: $name"
      survivors+=("$name")
    fi
  done
  [ ${#survivors[@]} = 0 ] || die "${#survivors[@]} of ${#patches[@]} were not noticed: ${survivors[*]}"
  say "all ${#patches[@]} were noticed"
}

sampled() {
  need cargo-mutants "to make faults: cargo install --locked cargo-mutants"
  local list=$root/target/mutants/list lines
  cargo mutants --list --package ostler-core >"$list"
  # The same seed draws the same ones.
  mapfile -t lines < <(shuf --random-source=<(yes "$seed") "$list" | head -n $SAMPLE)
  say "$SAMPLE of $(wc -l <"$list") faults, seed $seed"
  # A mutant's name is matched whole.
  local names
  names=$(printf '%s\n' "${lines[@]}" | sed 's/[][\.*^$+?(){}|/]/\\&/g; s/^/^/; s/$/$/' | paste -sd '|')
  cargo mutants --package ostler-core --test-package ostler-core,ostler-sim --re "$names" --jobs "${MUTANT_JOBS:-1}" \
    --output "$root/target/mutants"
}

mkdir -p "$root/target/mutants"
case ${1:-all} in
  seeded) seeded "${@:2}" ;;
  sampled) sampled ;;
  all) seeded && sampled ;;
  *) die "seeded, sampled, or nothing for both" ;;
esac
