//! From an earlier build to this one and back, daemon by daemon, under pods that run and new ones that come.
//! `BATON_BEFORE` names the program of that build: built from its commit, outside the gate.

use std::ffi::OsString;
use std::process::Command;

use baton::ops::demo::apply_all;

use crate::harness::daemon::binary;
use crate::harness::pods::pod;
use crate::harness::{LOCK_GONE, NAMESPACE, TestCluster, TestServer};
use crate::skip::skipped;

/// The manifests that a build prints.
fn manifests(program: &OsString, more: &[&str]) -> String {
    let output = Command::new(program).args(["manifests", "--namespace", NAMESPACE]).args(more).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A story with a count of its pods.
struct Story {
    cluster: TestCluster,
    pods: Vec<String>,
}

impl Story {
    /// A new pod on each node is served, and those of before run on with their devices.
    async fn step(&mut self, what: &str) {
        println!("step: {what}");
        for node in ["node-0", "node-1"] {
            let name = format!("p{}", self.pods.len());
            self.cluster.runs(&pod(&name).on(node).app("main", &[("nvidia.com/gpu", "1")])).await;
            self.pods.push(name);
        }
        for name in &self.pods {
            let phase = self.cluster.pod(name).await.and_then(|pod| pod.status?.phase);
            assert_eq!(phase.as_deref(), Some("Running"), "after \"{what}\", pod {name}");
        }
        self.cluster.until_unlocked(LOCK_GONE).await;
        self.cluster.check_no_device_twice().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_moves_to_this_version_and_back_without_a_pod_that_waits() {
    let Some(before) = std::env::var_os("BATON_BEFORE") else {
        return skipped("BATON_BEFORE names no program of the build before");
    };
    let server = TestServer::start().await;
    apply_all(&server.client, &manifests(&before, &[])).await.unwrap();
    // The pods of this story are made one by one, two for each step: 8 GPUs a node are room for 8 steps.
    let mut cluster = TestCluster::on(server, 2, &[], &[]).await;
    cluster.of_two_versions = true;
    cluster.scheduler.restart_as(&before);
    for node in &mut cluster.nodes {
        node.agent.restart_as(&before);
    }
    cluster.until_agent_is_ready().await;
    let mut story = Story { cluster, pods: Vec::new() };
    story.step("the build before").await;

    apply_all(&story.cluster.client, &manifests(&binary(), &[])).await.unwrap();
    story.step("this build's objects, policies among them").await;
    story.cluster.scheduler.restart_as(binary());
    story.step("the scheduler is of this build").await;
    story.cluster.nodes[0].agent.restart_as(binary());
    story.cluster.until_agent_is_ready().await;
    story.step("one node daemon is of this build").await;
    story.cluster.nodes[1].agent.restart_as(binary());
    story.cluster.until_agent_is_ready().await;
    story.step("everything is of this build").await;

    // Back, the node daemons first.
    apply_all(&story.cluster.client, &manifests(&before, &[])).await.unwrap();
    story.cluster.nodes[0].agent.restart_as(&before);
    story.cluster.until_agent_is_ready().await;
    story.step("one node daemon is of the build before again").await;
    story.cluster.nodes[1].agent.restart_as(&before);
    story.cluster.until_agent_is_ready().await;
    story.step("both node daemons are").await;
    story.cluster.scheduler.restart_as(&before);
    story.step("everything is of the build before again").await;
}
