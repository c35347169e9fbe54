//! CDI spec files: what the container runtime does for each of our names. Device nodes, read-only mounts and one variable;
//! no hooks, so nothing of ours runs when a container starts.

mod files;
mod rules;
mod spec;

pub use files::{CdiError, CdiFiles, SpecState, states};
pub use rules::{is_class, is_name, problems};
pub use spec::{Device, DeviceNode, Edits, Mount, Spec, VERSION};
