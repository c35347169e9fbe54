//! The node daemon.

pub mod choice;
pub mod grant;
pub mod kubelet;
pub mod options;

pub use grant::{AnswerError, Answerer, Grant};
pub use options::{Options, OptionsError, Periods, Places, XidOptions};
