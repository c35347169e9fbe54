//! The scheduler as an extender of kube-scheduler: an HTTP front whose questions are answered by the one event loop, over the
//! same world and engine as the pods that are scheduled here.

mod ask;
mod desk;
mod gang;
mod options;
mod reply;
mod server;
mod tls;
mod verbs;

pub use ask::{Ask, Front};
pub use desk::Desk;
pub use gang::GangPods;
pub use options::{ExtenderError, ExtenderOptions};
pub use server::{Extender, MAX_BODY};
