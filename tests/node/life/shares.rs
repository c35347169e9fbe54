//! GPU shares with limits, where a limit has nothing to be set by.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use baton::contract::ShareIsolation;
use baton::sim::hardware::NodeSpec;

use super::reported::reporting;
use super::test_node::{TestNode, until};

#[tokio::test]
async fn a_node_with_a_gpu_of_unknown_memory_serves_no_shares_where_they_have_limits() {
    let mut node = TestNode::new(NodeSpec::new("unknown-memory"));
    node.machine.hide_memory(3).unwrap();
    node.options.share_isolation = ShareIsolation::Mps;
    node.options.mps_root = node.path("mps");
    let pipe = node.path("mps/nvidia.com/gpu/pipe");
    std::fs::create_dir_all(&pipe).unwrap();
    std::fs::set_permissions(node.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    let _listener = UnixListener::bind(pipe.join("control")).unwrap();
    let (cluster, daemon) = reporting(&mut node).await;
    let why = || Some(cluster.condition("SharesUnavailable")?["message"].as_str().unwrap().to_owned());
    until("the Device object says it", || why().is_some_and(|why| why.contains("how much memory"))).await;
    node.machine.show_memory(3).unwrap();
    until("it is over", || cluster.device().is_some() && why().is_none()).await;
    daemon.stop().await;
}
