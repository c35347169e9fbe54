//! Our daemons as they ship, in a whole cluster: what must hold when processes die, nodes reboot and the API server fails.
//! With `KUBEBUILDER_ASSETS` these tests run against a real API server.

mod auto;
mod faults;
mod gathered;
mod kill;
mod kubelet_dir;
mod machine;
pub mod memory;
mod node_life;
mod requests;
mod scheduler_life;
mod server;
mod shares;
mod writes;
