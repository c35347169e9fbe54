//! Which NICs of a node are handed out: those that the operator selects; without a selection, all but the one that carries the
//! node's default route. Pure: facts of the NICs come in, the verdict on each goes out.

mod selector;
mod which;

pub use selector::{NicFacts, NicProperty, NicSelector, NicTerm, SelectorError};
pub use which::{NicChoice, Unserved, choose};
