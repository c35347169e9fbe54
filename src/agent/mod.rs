//! The node daemon.

pub mod grant;

pub use grant::{AnswerError, Answerer, Grant};
