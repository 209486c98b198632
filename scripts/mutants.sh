#!/usr/bin/env bash
# Puts faults into the use cases, one at a time in a copy, and demands that tests or simulation notice each. Hours.
#   seeded   those in tests/mutations/, or the ones named after it
#   sampled  200 that cargo-mutants makes, drawn with SEED (default 7)
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/common.sh"

# How many are drawn, and how many percent of those have to be noticed; and how long the simulation may look for a fault.
readonly SAMPLE=200 NOTICED=95 SIM_SECONDS=10
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

# Bytes that follow from the seed and from nothing else.
stream() {
  openssl enc -aes-128-ctr -K "$(printf %032x "$seed")" -iv "$(printf %032x 0)" -in /dev/zero 2>/dev/null
}

# Has cargo-mutants make the faults whose names stand in a file, and run a package's tests on each. What becomes of
# them stands in mutants.out of the folder.
try() { # file, package whose tests, folder
  local names status=0
  # A fault's name is matched whole.
  names=$(sed 's/[][\.*^$+?(){}|/]/\\&/g; s/^/^/; s/$/$/' "$1" | paste -sd '|')
  mkdir -p "$3"
  cargo mutants --package ostler-core --test-package "$2" --re "$names" --jobs "${MUTANT_JOBS:-1}" --output "$3" ||
    status=$?
  # 2: some were missed; 3: some ran into the time-out, by which they were noticed.
  [[ $status =~ ^[023]$ ]] || die "cargo mutants failed ($status)"
}

sampled() {
  need cargo-mutants "to make faults: cargo install --locked cargo-mutants"
  need openssl "to draw some of them"
  local at=$root/target/mutants viable missed
  cargo mutants --list --package ostler-core >"$at/list"
  # The same seed draws the same ones. What is read is random all over: a text repeated would draw neighbours.
  shuf --head-count=$SAMPLE --random-source=<(stream) "$at/list" >"$at/sample"
  say "$SAMPLE of $(wc -l <"$at/list") faults, seed $seed"
  # The domain's own tests are the faster ones to build, and notice most.
  try "$at/sample" ostler-core "$at/core"
  viable=$(cat "$at"/core/mutants.out/{caught,missed,timeout}.txt | wc -l)
  missed=$at/core/mutants.out/missed.txt
  if [ -s "$missed" ]; then
    try "$missed" ostler-sim "$at/simulated"
    missed=$at/simulated/mutants.out/missed.txt
  fi
  say "$(wc -l <"$missed") of $viable that compile were not noticed"
  cat "$missed"
  [ $(($(wc -l <"$missed") * 100)) -le $((viable * (100 - NOTICED))) ] || die "less than $NOTICED % were noticed"
}

mkdir -p "$root/target/mutants"
case ${1:-all} in
  seeded) seeded "${@:2}" ;;
  sampled) sampled ;;
  all) seeded && sampled ;;
  *) die "seeded, sampled, or nothing for both" ;;
esac
