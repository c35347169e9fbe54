//! GPU shares with limits, where a limit has nothing to be set by.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use baton::contract::ShareIsolation;
use baton::sim::hardware::NodeSpec;

use super::reported::cluster;
use super::test_node::{TestNode, until};

#[tokio::test]
async fn a_node_with_a_gpu_of_unknown_memory_serves_no_shares_where_they_have_limits() {
    let mut node = TestNode::new(NodeSpec::new("unknown-memory"));
    node.machine.support_memory(3, false).unwrap();
    node.options.share_isolation = ShareIsolation::Mps;
    node.options.mps_root = node.path("mps");
    let pipe = node.path("mps/nvidia.com/gpu/pipe");
    std::fs::create_dir_all(&pipe).unwrap();
    std::fs::set_permissions(node.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    let _listener = UnixListener::bind(pipe.join("control")).unwrap();
    let cluster = cluster(&mut node).await;
    let daemon = node.shipped();
    let why = || {
        let device = cluster.server().objects("scheduling.koordinator.sh", "devices").first().cloned()?;
        let conditions = device["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let condition = conditions.into_iter().find(|of| of["type"] == "SharesUnavailable");
        Some(condition.map(|of| of["message"].as_str().unwrap().to_owned()))
    };
    until("the Device object says it", || why().flatten().is_some_and(|why| why.contains("how much memory"))).await;
    node.machine.support_memory(3, true).unwrap();
    until("it is over", || why() == Some(None)).await;
    daemon.stop().await;
}
