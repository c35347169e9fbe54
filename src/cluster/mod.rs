//! The Kubernetes adapter: objects become events, effects become API calls. The only writer of cluster objects.
//!
//! There is one light wire type per kind of object ([`pod::LightPod`], [`node::LightNode`], [`agent_lease::LightLease`],
//! [`tyjob::RawTyJob`], …); each consumer makes its own record of it.

pub mod agent_lease;
pub mod client;
pub mod controller_feed;
pub mod controller_writer;
pub mod cordon;
pub mod device;
pub mod feed;
pub mod feed_set;
pub mod forward;
pub mod inventory;
pub mod leadership;
pub mod lease;
mod light_meta;
pub mod node;
pub mod node_lock;
pub mod notice;
pub mod pod;
pub mod pod_defaults;
mod pod_facts;
pub mod pod_group;
mod pod_size;
pub mod pod_writer;
pub mod requests;
pub mod resource_slice;
pub mod restored;
pub mod rewatch;
pub mod selected_labels;
mod spec_part;
pub mod tyjob;
pub mod visible_devices;
pub mod volume;
