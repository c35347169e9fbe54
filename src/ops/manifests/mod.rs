//! `baton manifests` and `baton crds`: what a cluster needs to run Baton, generated so that names in manifests and names in
//! code cannot drift apart. The checked-in `daemonset/` is this output; the gate fails when it differs.

mod args;
mod chart;
mod choices;
mod dashboards;
mod files;
mod mig;
mod policies;
mod rbac;

pub use args::{CrdsArgs, ManifestsArgs, print_crds, run};
pub use choices::{Admission, Kinds, Values};
pub use files::{File, crds, files};
pub use policies::{NODE_LOCKS, PINNED_PODS, POLICIES, altered};
pub use rbac::{Permission, agent_permissions};
