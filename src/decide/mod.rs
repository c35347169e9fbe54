//! Every decision, pure: no async, no client, no clock, no randomness, no environment, no logging beyond returned reasons.
//! The world tells events, decisions answer with effects, adapters perform them. Time comes in as a value.

pub mod audit;
pub mod bind;
pub mod controller;
pub mod core;
pub mod devices;
pub mod explain;
pub mod gang;
pub mod handoff;
pub mod health;
pub mod help;
pub mod intern;
pub mod lock;
pub mod nics;
pub mod node;
pub mod patience;
pub mod pause;
pub mod pod;
pub mod scheduler;
pub mod shares;
pub mod text;
pub mod tyjob;
pub mod world;
