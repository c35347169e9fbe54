//! The CDI files that the daemon writes, judged by the rules of the format.

use super::reported::{get, readiness};
use super::schema::Schema;
use super::test_node::{TestNode, until};
use crate::prelude::*;

#[tokio::test]
async fn both_files_keep_the_rules_of_the_format_and_name_every_device() {
    let node = TestNode::new(NodeSpec::new("cdi"));
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 8).await;
    let (gpu, rdma) = (node.cdi_spec("gpu"), node.cdi_spec("rdma"));
    check(&gpu);
    check(&rdma);
    let names = |spec: &Value| -> Vec<String> {
        spec["devices"].as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut uuids = node.machine.gpu_uuids();
    uuids.sort();
    assert_eq!(names(&gpu), uuids);
    assert_eq!(names(&rdma).len(), 4);
    assert_eq!(
        gpu["containerEdits"]["env"],
        serde_json::json!(["NVIDIA_VISIBLE_DEVICES=void", "TRITON_LIBCUDA_PATH=/usr/local/nvidia/lib64"])
    );
    daemon.stop().await;
}

#[tokio::test]
async fn files_that_a_reboot_took_away_stand_again_before_the_kubelet_is_registered_with() {
    let node = TestNode::new(NodeSpec::new("reboot"));
    let (kubelet, daemon) = node.start(RDMA, 400).await;
    daemon.stop().await;
    kubelet.stop().await;
    std::fs::remove_dir_all(node.path("cdi")).unwrap();
    let daemon = node.daemon();
    until("it listens", || !node.sockets().is_empty()).await;
    ["gpu", "rdma"].iter().for_each(|kind| check(&node.cdi_spec(kind)));
    kubelet.start_again().await.unwrap();
    node.until(RDMA, 400).await;
    daemon.stop().await;
}

#[tokio::test]
async fn the_file_of_split_gpus_keeps_the_rules_of_the_format() {
    let mut node = TestNode::new(NodeSpec::new("cdi-mig"));
    node.options.mig_strategy = MigStrategy::Mixed;
    node.options.gpu_sharing = false;
    let parts = node.machine.mig(2, &["3g.40gb", "1c.3g.40gb", "1c.3g.40gb"]).unwrap();
    let (_kubelet, daemon) = node.start(NVIDIA_GPU, 7).await;
    let gpu = node.cdi_spec("gpu");
    check(&gpu);
    let names: Vec<&str> =
        gpu["devices"].as_array().unwrap().iter().map(|device| device["name"].as_str().unwrap()).collect();
    assert!(parts.iter().all(|part| names.contains(&part.as_str())), "{names:?}");
    daemon.stop().await;
}

#[tokio::test]
async fn a_machine_without_devices_has_no_name_and_no_file_and_gets_them_with_its_devices() {
    let mut node = TestNode::new(NodeSpec::new("cdi-empty"));
    let address = node.listens();
    node.options.gpu_sharing = false;
    (0..8).for_each(|gpu| node.machine.remove(gpu).unwrap());
    let nics = node.machine.sysfs_root().join("class/infiniband");
    let aside = node.machine.sysfs_root().join("class/aside");
    std::fs::rename(&nics, &aside).unwrap();
    let (_kubelet, daemon) = (node.kubelet().await, node.daemon());
    tells(readiness(address, &["nothing to register"]).await, ["200 OK"]);
    assert!(get(address, "/livez").await.contains("200 OK"));
    // The kubelet would refuse pods whose limit of a name is zero where the name is registered and has no healthy device.
    assert!(node.sockets().is_empty());
    // Runtimes refuse a spec without devices, and complain about it at every container.
    let files = || std::fs::read_dir(node.path("cdi")).map_or(0, Iterator::count);
    assert_eq!(files(), 0);
    node.machine.add(4).unwrap();
    std::fs::rename(&aside, &nics).unwrap();
    node.until(RDMA, 400).await;
    node.until(NVIDIA_GPU, 1).await;
    ["gpu", "rdma"].iter().for_each(|kind| check(&node.cdi_spec(kind)));
    daemon.stop().await;
}

/// The rules of CDI for what we write, beside its schema: <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>.
fn check(spec: &Value) {
    assert_eq!(Schema::of_cdi().problems(spec), [""; 0], "{spec}");
    let object = spec.as_object().unwrap();
    assert!(
        object.keys().all(|key| ["cdiVersion", "kind", "annotations", "devices", "containerEdits"].contains(&&**key))
    );
    assert_eq!(spec["cdiVersion"], "0.5.0", "containerd 1.7.2 reads no later one");
    let (vendor, class) = spec["kind"].as_str().unwrap().split_once('/').unwrap();
    let word = |text: &str, more: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
        let edges = text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric());
        edges && text.chars().all(inner)
    };
    assert!(word(vendor, "_-.") && word(class, "_-"));
    edits(&spec["containerEdits"]);
    let mut seen = std::collections::BTreeSet::new();
    for device in spec["devices"].as_array().unwrap() {
        let name = device["name"].as_str().unwrap();
        assert!(word(name, "_-.:"), "{name}");
        assert!(seen.insert(name), "{name} stands twice");
        assert!(!device["containerEdits"].as_object().unwrap().is_empty(), "{name} must edit something");
        edits(&device["containerEdits"]);
    }
}

fn edits(edits: &Value) {
    let Some(edits) = edits.as_object() else { return };
    let allowed = ["env", "deviceNodes", "mounts"];
    assert!(edits.keys().all(|key| allowed.contains(&&**key)), "no hooks, nothing else: {edits:?}");
    let list = |key: &str| edits.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    for env in list("env") {
        let (name, _) = env.as_str().unwrap().split_once('=').unwrap();
        assert!(!name.is_empty());
    }
    for node in list("deviceNodes") {
        assert!(node["path"].as_str().unwrap().starts_with("/dev/"), "{node}");
        assert!(std::path::Path::new(node["hostPath"].as_str().unwrap()).exists(), "{node}");
        assert!(node["permissions"].as_str().unwrap().chars().all(|c| "rwm".contains(c)));
    }
    for mount in list("mounts") {
        let (host, container) = (mount["hostPath"].as_str().unwrap(), mount["containerPath"].as_str().unwrap());
        assert!(host.starts_with('/') && container.starts_with('/'));
        assert!(std::path::Path::new(host).exists(), "{host}");
        let options = mount["options"].as_array().unwrap();
        assert!(options.contains(&"ro".into()) && options.contains(&"bind".into()), "{options:?}");
    }
}
