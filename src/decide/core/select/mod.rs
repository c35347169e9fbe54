//! Which node a pod gets: functions of the world that ask the rules.
//!
//! [`choose`](choose::choose()) asks every node. [`index::Index`] chooses the same, and asks only nodes that have changed since the
//! last pod of the same shape. TYJobs keep the same [`index::Table`], ordered by their metric.

pub mod choose;
pub mod concern;
pub mod eligible;
pub mod free;
pub mod index;
pub mod nearest;
pub mod ranks;
pub mod shape;
