//! The central scheduler's daemon: watches feed one engine, its effects are performed and reported back.

pub mod choice;
pub mod options;

pub use options::{Options, Periods};
