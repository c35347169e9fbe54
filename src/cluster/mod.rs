//! The Kubernetes adapter: objects become events, effects become API calls. The only writer of cluster objects.

pub mod agent_lease;
pub mod bind;
pub mod client;
pub mod condition;
pub mod feed;
pub mod feed_device;
mod feed_lease;
pub mod feed_node;
pub mod feed_pod;
pub mod feed_pod_group;
pub mod feed_set;
mod feed_term;
pub mod feed_tyjob;
pub mod feed_volume;
pub mod inventory;
pub mod job_feed;
pub mod job_writer;
pub mod leadership;
pub mod lease;
mod light_meta;
pub mod node_lock;
pub mod notice;
pub mod pod;
pub mod pod_group_writer;
pub mod requests;
pub mod rewatch;
pub mod volume;
