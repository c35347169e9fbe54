#!/bin/sh
# Prints the licences of the crates in the image, with their texts: what their authors ask a distributor to pass on. For a target,
# as `.ci/notices.sh aarch64-unknown-linux-gnu`, or for this machine; further words are features beside those of the image.
set -eu
triple=${1:-} more=${2:-}
cd "$(dirname "$0")/.."
sources=${CARGO_HOME:-$HOME/.cargo}/registry/src
cargo tree --locked -p baton ${triple:+--target "$triple"} --edges normal --no-default-features ${more:+"$more"} --prefix none --format '{p} | {l}' | sed 's/ (\*)$//; s/ ([^|]*| / | /' | sort -u |
  while read -r name version licence; do
    case $name in baton | baton-*) continue ;; esac
    printf '\n======== %s %s %s\n' "$name" "${version#v}" "$licence"
    found=
    for text in "$sources"/*/"$name-${version#v}"/LICEN[CS]E* "$sources"/*/"$name-${version#v}"/NOTICE* "$sources"/*/"$name-${version#v}"/COPYING*; do
      [ ! -f "$text" ] || { found=1; printf '\n-------- %s\n\n' "${text##*/}"; cat "$text"; }
    done
    [ -n "$found" ] || printf '\nThe crate carries no text of its licence; https://spdx.org/licenses has it.\n'
  done
