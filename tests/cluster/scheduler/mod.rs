//! The scheduler daemon, in process; the tests play the nodes' agents.

pub mod verbs;

mod bind;
mod crash;
mod custom_plugin;
mod explained;
mod faults;
mod feeds;
mod gang_docs;
mod gang_feeds;
mod gang_status;
mod gang_verbs;
mod gangs;
mod killed;
mod volumes;
mod workloads;
