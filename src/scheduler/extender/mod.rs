//! The scheduler as an extender of kube-scheduler: HTTP verbs that the one event loop answers, on the same world and scheduler as
//! the pods that are scheduled here.

mod options;
mod requests;
mod verbs;

pub use options::{ExtenderError, ExtenderOptions, GangPods};
pub use requests::{ExtenderRequest, Front, PendingRequests};
pub use verbs::router;
