//! The whole cluster for test binaries and benches that lie elsewhere: one `mod` line takes all of its parts.

pub mod control_plane;
pub mod daemon;
pub mod harness;
pub mod pods;
pub mod wait;
