//! The node daemon.

pub mod answer;
pub mod cdi;
pub mod choice;
pub mod devices;
pub mod grant;
pub mod handoff;
pub mod inventory;
pub mod kubelet;
pub mod offer;
pub mod options;

pub use grant::{AnswerError, Answerer, Grant};
pub use options::{Options, OptionsError, Periods, Places, XidOptions};
