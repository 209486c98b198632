#!/usr/bin/env bash
# build.sh arm64|x86_64: the functions as zips, in target/package/<architecture>/, named as infra/*.yaml expect them,
# with their sums. Linked by zig against a glibc that the Lambda runtime provided.al2023 has (2.34), whatever this
# machine has.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/common.sh"

arch=${1-}
case $arch in
  arm64) target=aarch64-unknown-linux-gnu ;;
  x86_64) target=x86_64-unknown-linux-gnu ;;
  *) die "which architecture? arm64 or x86_64" ;;
esac
# Otherwise cargo-lambda asks rustup for it in the middle of the build.
[ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] ||
  rustup target add "$target" || die "the standard library for $target can't be had here"

functions=(webhook orchestrator stolen-runner registration-janitor reaper reconciler instance-events)
packages=()
for function in "${functions[@]}"; do packages+=(-p "ostler-$function"); done

say "building ${functions[*]} for $arch (release profile: some minutes each)"
# zig comes as a Python package, which cargo-lambda finds on the PATH as python-zig.
PATH=$venv/bin:$PATH "$venv/bin/cargo-lambda" lambda build --release --locked --target "$target.2.34" \
  --output-format zip "${packages[@]}"

out=target/package/$arch
mkdir -p "$out"
for function in "${functions[@]}"; do
  cp "target/lambda/ostler-$function/bootstrap.zip" "$out/$function.zip"
done
(cd "$out" && openssl dgst -sha256 -r "${functions[@]/%/.zip}" >SHA256SUMS)
# CloudFormation sees new code only under a new key, and this one says what it holds.
key=$(openssl dgst -sha256 -r "$out/SHA256SUMS" | cut -c1-12)
say "done"
ls -l "$out"
cat <<END

To deploy them, with a bucket of yours in the stack's region:
  aws s3 cp --recursive $out s3://BUCKET/ostler/$key/
  aws cloudformation deploy ... --parameter-overrides ... Architecture=$arch CodeBucket=BUCKET CodePrefix=ostler/$key/
END
