//! Our daemons as they ship, in a whole cluster over real sockets: what must hold when processes die, nodes reboot and the
//! API server fails. With `KUBEBUILDER_ASSETS` the same tests run against a real API server.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // tests

mod auto;
mod control_plane;
mod daemon;
mod faults;
mod harness;
mod kill;
mod kubelet_dir;
mod node_life;
mod pods;
mod requests;
mod scheduler_life;
#[path = "../harness/skip.rs"]
mod skip;
mod wait;
mod writes;
