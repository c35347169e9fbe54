//! What a container gets: the answer to Allocate, made of a table that is built when the hardware is scanned.

mod answers;
pub mod table;

pub use answers::{AllocateAnswers, AnswerError, Answerer, ContainerGrant, RDMA_KIND, named};
pub use table::{DeviceNodes, DeviceTable};
