//! `baton cordon`, `uncordon` and `drain`: one GPU is taken out of use and returned. The word is an annotation of the Device object,
//! which people write and the scheduler obeys; running pods stay until they are drained.

mod args;
mod device;
mod drain;

pub use args::{CommonArgs, CordonArgs, DrainArgs, cordon, uncordon};
pub use drain::drain;
