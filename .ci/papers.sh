#!/bin/sh
# What goes with the programs into a directory: the licence, those of their crates, and the list of these. `.ci/papers.sh TRIPLE DIR`;
# further words are features that they were built with (`--features=sim,simulate`).
set -eu
cd "$(dirname "$0")/.."
triple=$1 out=$2
shift 2
install -D -m 644 -t "$out" LICENSE
.ci/notices.sh "$triple" "$@" | gzip -9n >"$out/third-party-notices.gz"
.ci/sbom.sh "$triple" "$@" >"$out/sbom.cdx.json"
