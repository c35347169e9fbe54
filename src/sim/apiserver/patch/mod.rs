//! The patch types: JSON patch, merge patch, strategic merge patch. (Apply patches are in `managed`.)

mod json;
mod merge;
mod strategic;

pub use json::json_patch;
pub use merge::merge_patch;
pub use strategic::strategic_patch;
