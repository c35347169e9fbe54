//! Registration with a kubelet that refuses, forgets, drops and is replaced.

use std::os::unix::fs::symlink;

use super::registrar::{Answer, Registrar};
use super::test_node::{TestNode, until};
use crate::prelude::*;

/// One name only, and no wait longer than a moment.
fn node(name: &str) -> TestNode {
    let mut node = TestNode::new(NodeSpec::new(name));
    node.options.gpu_sharing = false;
    node.options.rdma = false;
    node.options.timings.register_timeout = Duration::from_millis(500);
    node.options.timings.backoff_max = Duration::from_millis(100);
    std::fs::create_dir_all(&node.options.paths.kubelet_dir).unwrap();
    node
}

fn registrar(node: &TestNode, script: &[Answer]) -> Registrar {
    let directory = &node.options.paths.kubelet_dir;
    Registrar::start(&directory.join("kubelet.sock"), directory, script)
}

async fn until_held(registrar: &Registrar) {
    until("a stream is held", || registrar.reported(|seen| seen.held == 1)).await;
}

#[tokio::test]
async fn a_registration_that_is_refused_is_made_again_until_it_is_taken() {
    let node = node("refused");
    let registrar = registrar(&node, &[Answer::Refuse, Answer::Refuse, Answer::Refuse]);
    let daemon = node.daemon();
    until_held(&registrar).await;
    assert_eq!(registrar.answers(), [Answer::Refuse, Answer::Refuse, Answer::Refuse, Answer::Hold]);
    registrar.reported(|seen| {
        let (name, endpoint, _) = &seen.registrations[0];
        assert_eq!(name, NVIDIA_GPU);
        assert!(!endpoint.contains('/') && endpoint.len() <= 32, "a bare file name: {endpoint}");
    });
    daemon.stop().await;
}

#[tokio::test]
async fn a_kubelet_that_never_opens_the_stream_or_drops_it_is_registered_with_again() {
    let node = node("dropped");
    let registrar = registrar(&node, &[Answer::Forget, Answer::Drop, Answer::Drop]);
    let daemon = node.daemon();
    until_held(&registrar).await;
    assert_eq!(registrar.answers(), [Answer::Forget, Answer::Drop, Answer::Drop, Answer::Hold]);
    daemon.stop().await;
}

#[tokio::test]
async fn every_request_to_the_kubelet_names_a_plain_authority() {
    let node = node("authority");
    let registrar = registrar(&node, &[Answer::Refuse]);
    let daemon = node.daemon();
    until_held(&registrar).await;
    registrar.reported(|seen| assert_eq!(seen.authorities, ["localhost", "localhost"]));
    daemon.stop().await;
}

#[tokio::test]
async fn a_link_in_the_place_of_the_kubelets_socket_is_followed_to_where_it_leads_next() {
    let node = node("linked");
    let directory = node.options.paths.kubelet_dir.clone();
    let (first, second) = (node.path("first.sock"), node.path("second.sock"));
    let old = Registrar::start(&first, &directory, &[]);
    symlink(&first, directory.join("kubelet.sock")).unwrap();
    let daemon = node.daemon();
    until_held(&old).await;
    // Nothing happens in the watched directory itself: only a look finds it.
    drop(old);
    let new = Registrar::start(&second, &directory, &[]);
    std::fs::rename(&second, &first).unwrap();
    until_held(&new).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_replaced_kubelet_socket_is_registered_with_while_the_old_stream_is_open() {
    let node = node("replaced");
    let old = registrar(&node, &[]);
    let daemon = node.daemon();
    until_held(&old).await;
    let new = registrar(&node, &[]);
    until_held(&new).await;
    assert_eq!(old.reported(|seen| seen.registrations.len()), 1);
    daemon.stop().await;
}
