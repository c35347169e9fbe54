#!/bin/sh
# Builds what the image holds of ours into a directory: `.ci/image.sh arm64 /image`. The machine may be of either architecture: for
# the other one the compiler and the C library come from Debian. Without the simulated cluster, and small: what ships, nothing else.
# The base needs glibc 2.34 or newer and libgcc_s.so.1. Where no registry can be reached, Debian's packages are such a base, and buildah makes
# the image, as root (inside a container with BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs):
#   .ci/image.sh amd64 files/image
#   mmdebstrap --variant=extract --architectures=amd64 --include=base-files,libc6,libgcc-s1,ca-certificates,tzdata,netbase bookworm base.tar
#   base=$(buildah from scratch) && buildah add $base base.tar / && buildah commit $base gcr.io/distroless/cc-debian12
#   sed -n '/^FROM gcr/,$p' Dockerfile >Dockerfile.last       # the last stage alone: its programs come from files/image
#   buildah bud --pull-never --arch amd64 --build-context build=files -f Dockerfile.last -t registry.example/baton:0.1.0 .
set -eu
arch=${1:?amd64 or arm64} out=${2:?into which directory}
cd "$(dirname "$0")/.."
case $arch in
  amd64) machine=x86_64 ;;
  arm64) machine=aarch64 ;;
  *) echo "no image for $arch: amd64 and arm64 are known" >&2; exit 1 ;;
esac
triple=$machine-unknown-linux-gnu compiler=$machine-linux-gnu-gcc
if ! command -v "$compiler" >/dev/null; then
  apt-get update -qq && apt-get install -qq -y --no-install-recommends "gcc-$(echo $machine | tr _ -)-linux-gnu" "libc6-dev-$arch-cross"
fi
rustup target add "$triple"
export "CARGO_TARGET_$(echo $machine | tr a-z A-Z)_UNKNOWN_LINUX_GNU_LINKER=$compiler"
cargo build --locked -p baton --profile image --no-default-features --bins --target "$triple"
install -D -t "$out/usr/bin" "${CARGO_TARGET_DIR:-target}/$triple/image/baton" "${CARGO_TARGET_DIR:-target}/$triple/image/baton-device-plugin"
install -D -m 644 -t "$out/usr/share/doc/baton" LICENSE
.ci/notices.sh "$triple" | gzip -9n >"$out/usr/share/doc/baton/third-party-notices.gz"
.ci/sbom.sh "$triple" >"$out/usr/share/doc/baton/sbom.cdx.json"
