//! `baton manifests` and `baton crds`: the checked-in files of `daemonset/`, which are what its chart gives with the values as they are.
//! What is chosen beyond image and namespace is a value of the chart, or a change of an overlay.

mod args;
mod files;
mod policies;
mod rbac;

pub(super) use args::{CrdsArgs, ManifestsArgs, print_crds, run};
pub use files::{File, Values, crds, files};
pub use policies::{NODE_LOCKS, PINNED_PODS, POLICIES, VISIBLE_DEVICES, altered};
pub use rbac::{Permission, agent_permissions};
