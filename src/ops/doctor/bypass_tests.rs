//! The published forms of `tests/fixtures/runtime-bypass`, and files that are wrong.

use super::super::report::CheckLevel::{self, Ok, Warn};
use super::super::runtime_files::RuntimeFiles;
use super::*;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/runtime-bypass");

fn looked(root: &Path, runtime: &str, served_by: DeviceListStrategy) -> Finding {
    looked_at((root, true), runtime, served_by)
}

fn looked_at(root: (&Path, bool), runtime: &str, served_by: DeviceListStrategy) -> Finding {
    let node = serde_json::json!({"status": {"nodeInfo": {
        "containerRuntimeVersion": runtime, "kubeletVersion": "v1.36.0", "architecture": "", "bootID": "", "kernelVersion": "",
        "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}}});
    let node: Node = serde_json::from_value(node).unwrap();
    let options = AgentOptions { device_list_strategy: vec![served_by], ..AgentOptions::default() };
    let finding = look(&options, root, Some(&node));
    assert_eq!(finding.level == Ok, finding.advice.is_none());
    finding
}

#[test]
fn each_published_form_is_read_and_the_setting_that_closes_it_is_named() {
    let commented = "is true, because /etc/nvidia-container-runtime/config.toml has it as a comment only";
    let operators = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml";
    let closed = format!("set {BY_ENVIRONMENT} = false in /etc/nvidia-container-runtime/config.toml, above");
    let cases: &[(&str, &str, CheckLevel, &[&str])] = &[
        (
            "containerd-v2",
            "containerd://1.7.27",
            Warn,
            &["any pod (default_runtime_name = \"nvidia\", /etc/containerd/config.toml)", commented, &closed],
        ),
        (
            "containerd-v3-drop-in",
            "containerd://2.1.0",
            Warn,
            &[operators, "hostPath volume of /dev/null", "the GPU operator writes it", BY_MOUNTS],
        ),
        (
            "containerd-v3-closed",
            "containerd://2.1.0",
            Ok,
            &["any pod", "= false in", operators, "a privileged one still"],
        ),
        (
            "containerd-v1",
            "containerd://1.4.13",
            Warn,
            &["default_runtime = \"default_runtime\"", "does not name it", &closed],
        ),
        (
            "k3s-runtime-class",
            "containerd://2.0.5-k3s1",
            Warn,
            &["a RuntimeClass of the handler nvidia", "/var/lib/rancher/k3s", "is not there", &closed],
        ),
        (
            "crio",
            "cri-o://1.33.0",
            Warn,
            &["any pod (default_runtime = \"nvidia\", /etc/crio/crio.conf)", "is not there"],
        ),
        ("crio-hook", "cri-o://1.28.0", Warn, &["the hook /usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"]),
        (
            "docker",
            "docker://28.0.0",
            Warn,
            &["default-runtime", "hostPath volume", &format!("set {BY_MOUNTS} = false")],
        ),
        ("containerd-alone", "containerd://1.7.27", Ok, &["no container runs with NVIDIA's runtime"]),
        ("containerd-alone", "cri-o://1.33.0", Ok, &["no configuration of a container runtime"]),
    ];
    for (folder, runtime, level, words) in cases {
        let root = Path::new(FIXTURES).join(folder);
        assert!(root.is_dir(), "{folder}");
        let finding = looked(&root, runtime, DeviceListStrategy::CdiCri);
        let said = format!("{} → {}", finding.found, finding.advice.unwrap_or_default());
        assert_eq!(finding.level, *level, "{folder}: {said}");
        words.iter().for_each(|word| assert!(said.contains(word), "{folder}: no {word:?} in {said}"));
    }
}

const CONTAINERD: &str = "etc/containerd/config.toml";

fn containerd_v2() -> String {
    std::fs::read_to_string(Path::new(FIXTURES).join("containerd-v2").join(CONTAINERD)).unwrap()
}

/// A node whose default runtime is NVIDIA's, with this configuration of the toolkit.
fn with_toolkit(text: &str) -> Finding {
    let root = runtime_files::host(&[(CONTAINERD, &containerd_v2()), (CONFIG, text)]);
    looked(root.path(), "containerd://1.7.27", DeviceListStrategy::Envvar)
}

#[test]
fn a_setting_that_has_no_effect_or_no_sense_is_said() {
    for (text, words) in [
        (
            format!("[nvidia-ctk]\npath = \"nvidia-ctk\"\n{BY_ENVIRONMENT} = false\n"),
            "in the table [nvidia-ctk], where it has no effect",
        ),
        (
            format!("{BY_ENVIRONMENT} = \"false\"\n"),
            "= \"false\" in /etc/nvidia-container-runtime/config.toml is neither true nor false",
        ),
        (
            "accept = [\n".to_owned(),
            "cannot be seen: /etc/nvidia-container-runtime/config.toml: TOML parse error at line",
        ),
        ("swarm-resource = \"MY_GPU\"\n".to_owned(), "(or MY_GPU, its swarm-resource)"),
        (String::new(), "does not name it"),
    ] {
        let finding = with_toolkit(&text);
        assert!(finding.level == Warn && finding.found.contains(words), "{words}: {}", finding.found);
    }
    let served = with_toolkit("").advice.unwrap();
    assert!(served.contains("first leave --device-list-strategy=envvar"), "{served}");
    assert_eq!(with_toolkit(&format!("{BY_ENVIRONMENT} = false\n")).level, Ok);
}

#[test]
fn what_cannot_be_read_is_no_all_clear() {
    let root = tempfile::tempdir().unwrap();
    let unseen = looked(root.path(), "containerd://2.1.0", DeviceListStrategy::CdiCri);
    assert!(unseen.level == Warn && unseen.advice.unwrap().contains("--host-root"));
    let file = root.path().join(CONTAINERD);
    std::fs::create_dir_all(&file).unwrap();
    let folder = looked(root.path(), "containerd://2.1.0", DeviceListStrategy::CdiCri);
    assert!(
        folder.level == Warn && folder.found.contains("/etc/containerd/config.toml: it is no file"),
        "{}",
        folder.found
    );
    std::fs::remove_dir(&file).unwrap();
    std::fs::write(&file, "version = 3\n[plugins\n").unwrap();
    let broken = looked(root.path(), "containerd://2.1.0", DeviceListStrategy::CdiCri);
    assert!(broken.level == Warn && broken.found.contains("/etc/containerd/config.toml: TOML"), "{}", broken.found);
}

#[test]
fn an_import_replaces_the_section_before_containerd_2_and_is_merged_from_then_on() {
    let main = format!("imports = [\"more/a.toml\"]\n{}", containerd_v2());
    let more = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nenable_cdi = true\n";
    let root = runtime_files::host(&[(CONTAINERD, &main), ("etc/containerd/more/a.toml", more)]);
    let default = |version: &str| {
        let RuntimeFiles { default, enable_cdi, .. } = runtime_files::read(root.path(), Some(version)).unwrap();
        assert_eq!(enable_cdi, Some(true), "a path beside the file that imports it");
        default
    };
    assert_eq!((default("containerd://1.7.27"), default("containerd://2.1.0")), (None, Some("nvidia".to_owned())));
}

/// The daemon's own container has an `/etc` as the host has: that proves nothing.
#[test]
fn a_container_without_the_hosts_files_does_not_say_that_all_is_well() {
    let root = runtime_files::host(&[("etc/hosts", "")]);
    for (is_host, level) in [(true, Ok), (false, Warn)] {
        let finding = looked_at((root.path(), is_host), "containerd://2.1.0", DeviceListStrategy::CdiCri);
        assert_eq!(finding.level, level, "{finding:?}");
    }
}
