//! Decisions for pods of a shape that was seen before: what every node said to that shape is kept, and only nodes that changed
//! since are asked again.
//!
//! Promise: the index chooses exactly what [`choose`](super::choose()) chooses by asking every node. It serves pods of which
//! no enabled rule says [`Reads::World`](crate::decide::scheduler::rules::Reads); all others, and pods pinned to a node, are decided
//! by that scan. A decision costs one judgement per node that changed since this shape was last asked for, each `O(log nodes)`
//! to enter. Kept per shape and node: about 70 bytes; at most [`Index::SHAPES`] shapes, the longest unused one goes first.

mod concern;
mod node_set;
mod ranks;
mod search;
mod shape;
mod table;

pub use search::Index;
pub use shape::PodShape;
