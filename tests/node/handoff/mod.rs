//! The hand-off on one node: the service, watches, unlocker and plugins as they ship; the test locks and binds.

mod agent;
mod choice;
mod failures;
mod handoff_node;
mod koordinator;
mod leaving;
mod pods;
mod refusals;
mod served;
