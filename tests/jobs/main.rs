//! TYJobs through the real `baton controller`: the API server is simulated, the scheduler's and the kubelets' parts are played
//! by the test, which writes what they write. In `placed`, the scheduler is the real one too.

#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, clippy::panic)] // a test may

#[path = "../cluster/daemon.rs"]
mod daemon;
#[path = "../harness/dice.rs"]
mod dice;
mod docs;
mod faults;
mod killed;
mod life;
mod placed;
mod rivals;
mod schema;
mod stage;
#[path = "../cluster/wait.rs"]
mod wait;
