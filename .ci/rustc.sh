#!/bin/sh
# rustc for .ci/compile.sh: with the flags of BATON_REMAP, for the crates that run while others are built too. These have no part of
# RUSTFLAGS, and what they are is noted in the crates that use them.
rustc=$1
shift
IFS=$(printf '\037')
exec "$rustc" "$@" $BATON_REMAP
