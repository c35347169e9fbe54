//! The stages of one TYJob: what must be written and done next, by its object, its pods and the time.
//!
//! [`step()`] is level-triggered and idempotent: it keeps nothing between calls. The status that it returns is written first,
//! against the version that was read; the effects follow only when that write went through, so that nothing is deleted
//! before it is counted, and a crash between any two calls loses and repeats nothing.

mod clean;
mod draft;
mod effect;
mod forget;
mod leader;
mod pod;
mod restarts;
mod step;
#[cfg(test)]
mod tests;
mod view;
mod workers;

pub use effect::{JobEffect, PodEffect};
pub use pod::{overridden_env, pod_of};
pub use restarts::older;
pub use step::{rests_on, step};
pub use view::{CreateFailure, ImageWait, JobView, NodeReachability, PodView};
