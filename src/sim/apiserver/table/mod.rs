//! Server-side printing: the `Table` form that `kubectl get` shows.

mod build;
mod column;
mod events;
mod nodes;
mod others;
mod pods;

pub use build::table;
pub use column::Column;
pub(super) use column::age;
