//! What a container gets: the answer to Allocate, made of tables that were built when the hardware was looked at.

pub mod answers;
pub mod gpu;
pub mod rdma;
pub mod share;
pub mod table;

pub use answers::Answers;
pub use table::{Parts, Table};
