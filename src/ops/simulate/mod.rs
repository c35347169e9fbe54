//! `baton simulate`: replays the pods of a cluster through the scheduler that ships, in virtual time, and compares its profiles.
//!
//! `trace` is what is replayed; `dump` and `own` read it. `stream` makes the arrivals of one seed. A `cluster::SimulatedCluster` takes
//! them: `engine` is the scheduler itself with an API that accepts each Binding at once. `experiment` measures one run, `runs` makes
//! many, `summary` is what they come to; `report` and `plot` show it. `benches/placement` measures other policies by the same parts.

mod args;
pub mod cluster;
mod dump;
pub mod engine;
pub mod experiment;
pub mod input;
pub mod own;
pub mod plot;
pub mod report;
pub mod runs;
pub mod stream;
pub mod summary;
pub mod trace;

pub(super) use args::{SimulateArgs, run};
