//! `baton simulate`: replays the pods of a trace through the scheduler that ships, in virtual time, beside published policies.
//!
//! `trace` is what is replayed; `openb`, `own` and `dump` read it. `stream` makes the arrivals of one seed. A `cluster::SimulatedCluster` takes
//! them: `engine` is the scheduler itself with an API that accepts each Binding at once, `published` the policies to compare with.
//! `experiment` measures one run, `summary` many; `report` and `plot` show it.

mod args;
mod cluster;
mod dump;
mod engine;
mod experiment;
mod input;
mod openb;
mod own;
mod plot;
mod published;
mod report;
mod stream;
mod summary;
mod trace;

pub use args::{SimulateArgs, run};
