//! Which node a pod gets: functions of the world that ask the rules.

pub mod choose;
pub mod index;
pub mod refusals;
