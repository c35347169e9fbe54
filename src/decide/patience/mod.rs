//! What a node's rest is worth to the pods that usually come: the knowledge behind the rule `GpuPatience`.
//!
//! A placement is good when the node stays worth as much as before. Only past arrivals are known: [`Arrivals`] weighs them by kind,
//! [`Sample`] turns the weights into [`WorthTables`] (a millisecond of work, done outside of a decision), and [`Worth`] reads a node by
//! them (a microsecond).

mod arrivals;
mod kind;
mod prices;
mod sample;
mod scarcity;
mod words;
mod worth;

pub use arrivals::Arrivals;
pub use kind::{GROUPS, PodKind};
pub use sample::{Sample, WorthTables};
pub use worth::{FreeOnNode, Worth};
