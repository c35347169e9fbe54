#!/bin/sh
# Builds what the image holds of ours into a directory: `.ci/image.sh arm64 /image`. The machine may be of either architecture: for
# the other one the compiler and the C library come from Debian. Without the simulated cluster, and small: what ships, nothing else.
# The base needs glibc 2.34 or newer and libgcc_s.so.1; `.ci/release` puts both together, without Docker and without a registry too.
set -eu
arch=${1:?amd64 or arm64} out=${2:?into which directory}
cd "$(dirname "$0")/.."
case $arch in amd64) machine=x86_64 ;; *) machine=aarch64 ;; esac
triple=$machine-unknown-linux-gnu
# Only in the Dockerfile's stage: anywhere else compile.sh says what is missing.
if [ -n "${INSTALL:-}" ]; then
  command -v "$machine-linux-gnu-gcc" >/dev/null ||
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends "gcc-$(echo $machine | tr _ -)-linux-gnu" "libc6-dev-$arch-cross"; }
  rustup target add "$triple"
fi
.ci/compile.sh "$arch" --no-default-features
install -D -t "$out/usr/bin" "${CARGO_TARGET_DIR:-target}/$triple/image/baton" "${CARGO_TARGET_DIR:-target}/$triple/image/baton-device-plugin"
.ci/papers.sh "$triple" "$out/usr/share/doc/baton"
