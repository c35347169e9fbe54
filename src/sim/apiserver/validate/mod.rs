//! What a real server refuses: names, labels, annotations, pods, quantities, custom schemas.

mod meta;
mod names;
mod pod;
pub mod quantity;
mod rules;
mod structural;

pub use meta::{metadata, metadata_update};
pub use names::{label_key, label_value};
pub use pod::{pod, pod_update};
pub use rules::{check_rules, rules};
pub use structural::{apply_defaults, custom, prune};
