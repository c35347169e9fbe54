//! The CDI files that the daemon writes, judged by the rules of the format.

use baton::contract::key::{NVIDIA_GPU, RDMA};
use baton::sim::hardware::NodeSpec;
use serde_json::Value;

use super::rig::{Rig, until};

fn read(rig: &Rig, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(rig.path("cdi").join(name)).unwrap()).unwrap()
}

#[tokio::test]
async fn both_files_keep_the_rules_of_the_format_and_name_every_device() {
    let rig = Rig::new(NodeSpec::new("cdi"));
    let _kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(NVIDIA_GPU, 8).await;
    let gpu = read(&rig, "koordinator.sh-gpu.json");
    let rdma = read(&rig, "koordinator.sh-rdma.json");
    for spec in [&gpu, &rdma] {
        check(spec);
    }
    let names = |spec: &Value| -> Vec<String> {
        spec["devices"].as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut uuids = rig.machine.gpu_uuids();
    uuids.sort();
    assert_eq!(names(&gpu), uuids);
    assert_eq!(names(&rdma).len(), 4);
    assert_eq!(gpu["containerEdits"]["env"], serde_json::json!(["NVIDIA_VISIBLE_DEVICES=void"]));
    daemon.stop().await;
}

#[tokio::test]
async fn files_that_a_reboot_took_away_stand_again_before_the_kubelet_is_registered_with() {
    let rig = Rig::new(NodeSpec::new("reboot"));
    let kubelet = rig.kubelet().await;
    let daemon = rig.daemon();
    rig.until(RDMA, 400).await;
    daemon.stop().await;
    kubelet.stop().await;
    std::fs::remove_dir_all(rig.path("cdi")).unwrap();
    let daemon = rig.daemon();
    until("it listens", || !rig.sockets().is_empty()).await;
    for file in ["koordinator.sh-gpu.json", "koordinator.sh-rdma.json"] {
        check(&read(&rig, file));
    }
    kubelet.start_again().await.unwrap();
    rig.until(RDMA, 400).await;
    daemon.stop().await;
}

/// The rules of CDI 0.6.0 for what we write: <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>.
fn check(spec: &Value) {
    let object = spec.as_object().unwrap();
    assert!(
        object.keys().all(|key| ["cdiVersion", "kind", "annotations", "devices", "containerEdits"].contains(&&**key))
    );
    assert_eq!(spec["cdiVersion"], "0.6.0");
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
