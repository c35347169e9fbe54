//! The hand-off on a real node: reads what the decisions of `decide::handoff` look at, and performs what they say.
//!
//! [`HandoffService`] answers the kubelet's calls. Beside it run the watches ([`NodeView`]), the [`unlocker`] and the
//! [`housekeeping`] that settles, expires and verifies. The ledger's file and the lock on the state directory are in
//! [`ledger_file`].

pub mod api;
mod calls;
mod checkpoint;
pub mod housekeeping;
pub mod ledger_file;
pub mod metrics;
pub mod node_view;
pub mod pod_resources;
pub mod service;
pub mod unlocker;

pub use api::{HandoffApi, HandoffApiError, KubeHandoffApi};
pub use ledger_file::{LedgerFile, StateDir, StateError};
pub use metrics::HandoffMetrics;
pub use node_view::NodeView;
pub use pod_resources::PodResourcesClient;
pub use service::{HandoffContext, HandoffService, HandoffSettings};
