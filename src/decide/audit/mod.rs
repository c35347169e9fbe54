//! What must hold of every world at every moment: checked in tests after each step, by the soak and the model's runs, and by
//! operators with `baton audit`.

mod cluster;
mod scheduler;
mod violation;
mod world;

pub use cluster::{check_cluster, leaving, stuck, unserved};
pub use scheduler::check_scheduler;
pub use violation::Violation;
pub use world::check;
