//! The scheduling engine against a cluster of plain values: every step re-checks all invariants.

mod env;
mod lock_line;
mod placement;
mod recovery;
mod streams;
