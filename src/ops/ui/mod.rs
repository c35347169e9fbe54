//! `baton ui`: the cluster on one screen, served to the browser of the operator from the operator's machine, with the operator's
//! own rights. It reads what `baton get` and `baton explain` read, and writes nothing.

mod args;
mod ask;
mod door;
mod feed;
mod model;
mod node;
mod rows;
mod server;

#[cfg(feature = "sim")]
pub use args::serve;
pub use args::{UiArgs, run};
