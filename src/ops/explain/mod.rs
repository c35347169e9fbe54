//! `baton explain`: why something is where it is, asked of the leading scheduler, and what would be decided for a pod that does
//! not exist. Each subject has its own file.

mod args;
mod gang;
mod job;
mod named;
mod pod;
mod what_if;

pub use args::{Common, ExplainArgs, Subject, run};
pub use gang::text as gang_text;
pub use job::text as job_text;
pub use pod::text as pod_text;
pub use what_if::text as what_if_text;
