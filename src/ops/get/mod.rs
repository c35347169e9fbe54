//! `baton get`: which devices are free, which pod has which, which pod holds a node's lock, and what to do about it. Everything
//! is read from cluster objects; nothing is written.

mod args;
mod listing;
mod run;

pub use args::{GetArgs, Resource, RulesArgs};
pub use run::run;
