//! `baton explain`: why a pod, gang or TYJob is where it is, by the answer of the leading scheduler, and what would be decided
//! for a pod that does not exist. Each subject has its own file.

mod args;
mod devices;
mod gang;
mod job;
mod node;
mod output;
mod pod;
mod verdict;
mod what_if;

pub use args::{ExplainArgs, ExplainSubject, run, split_names};
pub(super) use devices::held;
pub use gang::text as gang_text;
pub use job::text as job_text;
pub use node::text as node_text;
pub use output::{Common, ExplainOutput};
pub use pod::text as pod_text;
pub use what_if::text as what_if_text;
