//! The Kubernetes adapter: objects become events, effects become API calls. The only writer of cluster objects.

pub mod agent_lease;
pub mod client;
pub mod inventory;
pub mod lease;
pub mod node_lock;
pub mod notice;
pub mod pod;
