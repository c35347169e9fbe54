#!/bin/sh
# Builds the programs for an architecture, so that neither the place nor the time of the build is in them: `.ci/compile.sh arm64
# --no-default-features`. They lie in $CARGO_TARGET_DIR/<triple>/image. BATON_REVISION is what `baton version` says beside the version.
set -eu
cd "$(dirname "$0")/.."
arch=${1:?amd64 or arm64}
shift
case $arch in
  amd64) machine=x86_64 ;;
  arm64) machine=aarch64 ;;
  *) echo "no programs for $arch: amd64 and arm64 are known" >&2; exit 1 ;;
esac
triple=$machine-unknown-linux-gnu compiler=$machine-linux-gnu-gcc
command -v "$compiler" >/dev/null || {
  echo "the linker for $arch is missing: $compiler; Debian has it: apt-get install gcc-$(echo $machine | tr _ -)-linux-gnu libc6-dev-$arch-cross" >&2
  exit 1
}
[ -d "$(rustc --print sysroot)/lib/rustlib/$triple/lib" ] || { echo "Rust's library for $triple is missing: rustup target add $triple" >&2; exit 1; }
[ -z "${PROBE:-}" ] || exit 0 # `.ci/release` asks before it builds
export "CARGO_TARGET_$(echo $machine | tr a-z A-Z)_UNKNOWN_LINUX_GNU_LINKER=$compiler" CARGO_INCREMENTAL=0 CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
export "CC_$(echo $triple | tr - _)=$compiler"
[ -z "${BATON_REVISION:-}" ] ||
  export BATON_VERSION="$(sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml) (revision $BATON_REVISION)"
cargo fetch --locked --target "$triple"
# The registry's folder has a name of the machine's own. A later prefix wins over an earlier one.
separator=$(printf '\037') home=${CARGO_HOME:-$HOME/.cargo} flags="--remap-path-prefix=$PWD=/baton"
flags="$flags$separator--remap-path-prefix=$CARGO_TARGET_DIR=/baton/target$separator--remap-path-prefix=$home=/cargo"
for sources in "$home"/registry/src/*; do
  flags="$flags$separator--remap-path-prefix=$sources=/cargo"
done
export BATON_REMAP="$flags" RUSTC_WRAPPER="$PWD/.ci/rustc.sh" CFLAGS="-ffile-prefix-map=$PWD=/baton -ffile-prefix-map=$home=/cargo -ffile-prefix-map=$CARGO_TARGET_DIR=/baton/target"
exec cargo build --locked -p baton --profile image --bins --target "$triple" "$@"
