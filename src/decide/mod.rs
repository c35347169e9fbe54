//! Every decision, pure: no async, no client, no clock, no randomness, no environment, no logging beyond returned reasons.
//! The world tells events, decisions answer with effects, adapters perform them. Time comes in as a value.

pub mod alloc;
pub mod audit;
pub mod cycle;
pub mod framework;
pub mod gang;
pub mod handoff;
pub mod health;
pub mod help;
pub mod intern;
pub mod job;
pub mod lock;
pub mod placement;
pub mod plugins;
pub mod pod;
pub mod queue;
pub mod text;
pub mod world;
