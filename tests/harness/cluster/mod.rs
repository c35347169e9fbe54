//! An API server with our daemons, for tests and benches: [`TestServer`] alone, [`TestCluster`] with nodes and daemons as child
//! processes.

pub mod cluster;
pub mod control_plane;
pub mod daemon;
#[path = "../directory.rs"]
pub mod directory;
pub mod pods;
pub mod server;
#[path = "../tells.rs"]
pub mod tells;
pub mod wait;

pub use cluster::{ClusterNode, LOCK_GONE, NAMESPACE, SOON, TestCluster};
pub use daemon::{QUICK_LEASE, timings};
pub use server::TestServer;
