//! `baton doctor` as an operator runs it: the binary, beside a virtual machine, a simulated kubelet and an API server over TLS.

use std::os::unix::net::UnixListener;

use baton::contract::{LockFormat, LockWord};
use baton::sim::apiserver::Rule;
use baton::sim::hardware::{GpuValue, NodeSpec, NvmlReturn, VirtualNode};
use baton::sim::kubelet::{Kubelet, KubeletOptions};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::resource::v1::ResourceSlice;

use crate::harness::timings;
use crate::prelude::*;

const USER: &str = "system:serviceaccount:baton-system:baton-device-plugin";
const PATIENCE: Duration = Duration::from_secs(30);

struct DoctorNode {
    machine: VirtualNode,
    server: TestServer,
}

/// What was printed with `-o json`, and the exit code.
struct Said {
    code: Option<i32>,
    report: Value,
}

impl DoctorNode {
    async fn new(spec: NodeSpec) -> Self {
        let server = TestServer::with_tls().await;
        let machine = VirtualNode::create(server.path("m"), spec).unwrap();
        server.create_crds(baton::ops::manifests::crds()).await;
        server.create_namespace("baton-system").await;
        server.create_namespace("baton-system-nodes").await;
        let files = baton::ops::manifests::files(&Values::default());
        let policies = files.iter().find(|file| file.path == "admission.yaml").unwrap();
        baton::ops::demo::apply_all(&server.client, &policies.text).await.unwrap();
        let node = Self { machine, server };
        node.permit(|_| true);
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.server.path(name)
    }

    /// The daemon's user gets exactly those permissions of its role that `keep` keeps.
    fn permit(&self, keep: impl Fn(&str) -> bool) {
        let rules = baton::ops::manifests::agent_permissions("baton-system").into_iter().filter_map(|permission| {
            let words = format!("{} {}", permission.verb, permission.resource);
            keep(&words).then(|| Rule {
                groups: vec![permission.group],
                resources: vec![permission.resource],
                verbs: vec![permission.verb],
                namespace: permission.namespace,
            })
        });
        self.server.server().allow(USER, rules.collect());
        std::fs::write(self.path("daemon.kubeconfig"), self.server.server().kubeconfig_on_node(USER, "node-a"))
            .unwrap();
    }

    async fn kubelet(&self) -> Kubelet {
        let mut options = KubeletOptions::new("node-a", self.path("k"), self.server.client.clone());
        options.set_machine(&self.machine.sysfs_root(), &self.machine.proc_root());
        options.periods.scale = 0.02;
        options.periods.fast_status = true;
        Kubelet::start(options).await.unwrap()
    }

    fn command(&self, command: &str, more: &[&str]) -> Command {
        let mut baton = Command::new(env!("CARGO_BIN_EXE_baton"));
        baton.env_clear().arg(command).args([
            "--node-name=node-a",
            "--listen=none",
            "--probe-listen=none",
            "--metrics-listen=none",
            &timings("rescan: 200ms"),
        ]);
        let at = |name: &str| self.path(name).display().to_string();
        for (flag, value) in [
            ("kubeconfig", at("daemon.kubeconfig")),
            ("kubelet-dir", at("k/device-plugins")),
            ("pod-resources-socket", at("k/pod-resources/kubelet.sock")),
            ("sysfs-root", self.machine.sysfs_root().display().to_string()),
            ("proc-root", self.machine.proc_root().display().to_string()),
            ("dev-root", self.machine.dev_root().display().to_string()),
            ("driver-root", self.machine.driver_root().display().to_string()),
            ("nvml-library", self.machine.nvml_library().display().to_string()),
            ("cdi-root", at("cdi")),
            ("state-dir", at("state")),
        ] {
            if !more.iter().any(|given| given.starts_with(&format!("--{flag}="))) {
                baton.arg(format!("--{flag}={value}"));
            }
        }
        baton.args(more);
        baton
    }

    async fn doctor(&self, more: &[&str]) -> Said {
        let mut command = self.command("doctor", more);
        command.args(["-o", "json"]);
        command.arg(format!("--host-root={}", self.path("host").display()));
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let report = serde_json::from_str(&text);
        let report = report.unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
        Said { code: output.status.code(), report }
    }
}

impl Said {
    /// Level, text and advice of every line of a check.
    fn lines(&self, check: &str) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let findings = self.report["findings"].as_array().unwrap();
        let of = findings.iter().filter(|finding| finding["check"] == check);
        of.map(|f| (text(&f["level"]), format!("{} → {}", text(&f["found"]), text(&f["advice"])))).collect()
    }

    /// Some line of the check has this level and these words.
    fn fits(&self, check: &str, level: &str, words: &[&str]) -> bool {
        let fits = |(l, text): &(String, String)| l == level && words.iter().all(|word| text.contains(word));
        self.lines(check).iter().any(fits)
    }

    #[track_caller]
    fn has(&self, check: &str, level: &str, words: &[&str]) {
        let lines = self.lines(check);
        assert!(self.fits(check, level, words), "{check}: no {level} with {words:?} in {lines:#?}");
    }

    fn failed(&self) -> BTreeMap<String, String> {
        let findings = self.report["findings"].as_array().unwrap();
        let failed = findings.iter().filter(|finding| finding["level"] == "fail");
        failed.map(|f| (f["check"].as_str().unwrap().to_owned(), f["found"].to_string())).collect()
    }
}

/// A daemon as it ships; killed when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl DoctorNode {
    fn daemon(&self) -> Daemon {
        let mut command = self.command("device-plugin", &[]);
        Daemon(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Asks until nothing fails and these checks are well: what only warns of a daemon that has just begun is waited for too.
    async fn until_well(&self, checks: &[(&str, &[&str])]) -> Said {
        let start = clock::mono();
        loop {
            let said = self.doctor(&[]).await;
            let late = clock::mono().saturating_sub(start) >= PATIENCE;
            let ailing: Vec<_> = checks.iter().filter(|(check, words)| !said.fits(check, "ok", words)).collect();
            if said.failed().is_empty() && ailing.is_empty() {
                return said;
            }
            for (check, words) in ailing.iter().filter(|_| late) {
                said.has(check, "ok", words);
            }
            assert!(!late, "{:#?}", said.failed());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_serves_is_well_in_every_check_and_a_killed_daemon_is_only_missing() {
    let node = DoctorNode::new(NodeSpec::new("doctor")).await;
    let kubelet = node.kubelet().await;
    let daemon = node.daemon();
    let well = [
        ("nvml", &["libnvidia-ml", "driver", "8 GPUs"][..]),
        ("gpu", &["GPU-", "minor 0"]),
        ("device-nodes", &["8 GPUs"]),
        ("driver-files", &["files below"]),
        ("rdma", &["port 1 Active"]),
        ("kubelet-dir", &["can be written"]),
        ("kubelet-socket", &["answers"]),
        ("other-plugin", &["no other plugin"]),
        ("pod-resources", &["lists 0 pods"]),
        ("cdi-spec", &["koordinator.sh-gpu.json is current: 8 devices"]),
        ("cdi-spec", &["koordinator.sh-rdma.json is current"]),
        ("agent", &["a node daemon runs"]),
        ("agent", &["Lease baton-system-nodes/baton-agent-node-a renewed", "identity exact"]),
        ("api-server", &["version v1.36"]),
        ("permission", &["nodes: get, list, watch, patch"]),
        ("permission", &["leases.coordination.k8s.io in baton-system-nodes: get, create, update"]),
        ("admission", &["as it was installed"]),
        ("node", &["node-a"]),
        ("device-object", &["all healthy"]),
        ("resource", &["nvidia.com/gpu: 8 allocatable"]),
    ];
    assert_eq!(node.until_well(&well).await.code, Some(0));
    drop(daemon);
    let said = node.doctor(&[]).await;
    said.has("agent", "warn", &["no node daemon runs", "kubectl"]);
    drop(kubelet);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_machine_is_told_what_is_missing_and_what_to_do() {
    let node = DoctorNode::new(NodeSpec::new("bare")).await;
    let said = node.doctor(&["--nvml-library=/nonexistent/libnvidia-ml.so.1"]).await;
    assert_eq!(said.code, Some(1));
    said.has("nvml", "fail", &["/nonexistent/libnvidia-ml.so.1", "--nvml-library"]);
    said.has("kubelet-dir", "fail", &["is no directory", "is this a node?"]);
    said.has("pod-resources", "warn", &["is not there", "node lock"]);
    said.has("node", "fail", &["no node \"node-a\"", "--node-name"]);
    said.has("device-object", "warn", &["does not exist", "baton crds"]);
    said.has("cdi-root", "ok", &["can be made"]);
    said.has("runtime", "warn", &["cannot be seen"]);
    // The kernel has GPUs here: they need the library. A daemon that identifies by pod-resources alone cannot do without.
    let more = ["--nvml-library=/nonexistent/a.so", "--fail-on-init-error=false", "--node-lock=auto"];
    let said = node.doctor(&more).await;
    said.has("nvml", "fail", &["/nonexistent/a.so", "NVIDIA's kernel driver has 8 PCI functions here"]);
    said.has("pod-resources", "fail", &["is not there"]);
    // Nothing was made by looking.
    assert!(!node.path("state").exists() && !node.path("cdi").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_denied_permission_is_named_with_what_it_is_for() {
    let node = DoctorNode::new(NodeSpec::new("denied")).await;
    let _kubelet = node.kubelet().await;
    node.permit(|words| !matches!(words, "patch nodes" | "create leases" | "patch devices"));
    let said = node.doctor(&[]).await;
    assert_eq!(said.code, Some(1));
    said.has("permission", "fail", &["nodes: may not patch", "node lock", "baton manifests"]);
    said.has("permission", "fail", &["leases.coordination.k8s.io in baton-system-nodes: may not create"]);
    said.has("permission", "fail", &["devices.scheduling.koordinator.sh: may not patch"]);
    said.has("permission", "ok", &["pods: get, list, watch"]);
    assert_eq!(said.lines("permission").iter().filter(|(level, _)| level == "fail").count(), 3);
    // A policy without its binding.
    let bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/baton-node-locks";
    let request = http::Request::delete(bindings).body(Vec::new()).unwrap();
    node.server.client.request::<Value>(request).await.unwrap();
    let said = node.doctor(&[]).await;
    said.has("admission", "fail", &["baton-node-locks has no binding", "baton manifests"]);
    // An API server that is away is one line, not one for each question.
    node.server.server().stop();
    let said = node.doctor(&[]).await;
    said.has("api-server", "fail", &["--kubeconfig"]);
    assert!(said.lines("permission").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_files_other_plugins_and_a_dead_socket_are_found() {
    let node = DoctorNode::new(NodeSpec::new("broken")).await;
    let plugins = node.path("k/device-plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    let _nvidia = UnixListener::bind(plugins.join("nvidia-gpu.sock")).unwrap();
    drop(UnixListener::bind(plugins.join("rdma-old.sock")).unwrap());
    drop(UnixListener::bind(plugins.join("kubelet.sock")).unwrap());
    std::fs::create_dir_all(node.path("cdi")).unwrap();
    let empty = r#"{"cdiVersion": "0.5.0", "kind": "koordinator.sh/gpu", "devices": []}"#;
    std::fs::write(node.path("cdi/koordinator.sh-gpu.json"), empty).unwrap();
    std::fs::write(node.path("cdi/koordinator.sh-rdma.json"), "{").unwrap();
    let containerd = node.path("host/etc/containerd");
    std::fs::create_dir_all(&containerd).unwrap();
    let off = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n";
    std::fs::write(containerd.join("config.toml"), off).unwrap();
    let said = node.doctor(&[]).await;
    said.has("other-plugin", "warn", &["nvidia-gpu.sock"]);
    assert!(!said.lines("other-plugin")[0].1.contains("rdma-old"), "a dead socket is no plugin");
    said.has("kubelet-socket", "fail", &["no process listens"]);
    said.has("cdi-spec", "fail", &["koordinator.sh-gpu.json: it has no device", "delete it"]);
    said.has("cdi-spec", "fail", &["koordinator.sh-rdma.json"]);
    said.has("runtime", "fail", &["/etc/containerd/config.toml: CDI is off", "enable_cdi = true"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spec_file_that_cannot_be_because_no_gpu_has_a_node_is_not_called_needless() {
    let node = DoctorNode::new(NodeSpec::new("nodeless")).await;
    let empty = node.path("empty-dev");
    std::fs::create_dir_all(&empty).unwrap();
    let said = node.doctor(&[&format!("--dev-root={}", empty.display())]).await;
    let uuid = &node.machine.gpu_uuids()[0];
    said.has("device-nodes", "fail", &[]);
    said.has(
        "cdi-spec",
        "fail",
        &["koordinator.sh-gpu.json is not there: no device node of", uuid, "see the line device-nodes"],
    );
    let lines = said.lines("cdi-spec");
    assert!(lines.iter().all(|(_, text)| !text.contains("not needed")), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vendor_spec_must_name_every_gpu_by_uuid() {
    let node = DoctorNode::new(NodeSpec::new("vendor")).await;
    let kind = ["--cdi-kind=nvidia.com/gpu"];
    node.doctor(&kind).await.has("cdi-spec", "fail", &["no spec of kind nvidia.com/gpu", "nvidia-ctk cdi generate"]);
    let mut uuids = node.machine.gpu_uuids();
    let device =
        |uuid: &String| format!("- name: {uuid}\n  containerEdits: {{deviceNodes: [{{path: /dev/nvidia0}}]}}\n");
    let spec = |uuids: &[String]| {
        let devices: String = uuids.iter().map(device).collect();
        format!("---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n{devices}")
    };
    std::fs::create_dir_all(node.path("cdi")).unwrap();
    std::fs::write(node.path("cdi/nvidia.yaml"), spec(&uuids)).unwrap();
    node.doctor(&kind).await.has("cdi-spec", "ok", &["nvidia.yaml names all of this machine's 8 GPUs"]);
    let last = uuids.pop().unwrap();
    std::fs::write(node.path("cdi/nvidia.yaml"), spec(&uuids)).unwrap();
    node.doctor(&kind).await.has("cdi-spec", "fail", &["lacks", &last]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_gpu_and_a_link_that_is_down_are_reported() {
    let node = DoctorNode::new(NodeSpec::new("ill")).await;
    node.machine.lose(3).unwrap();
    let said = node.doctor(&[]).await;
    said.has("gpu", "fail", &["fell off the bus", "nvidia-smi"]);
    assert_eq!(said.lines("gpu").iter().filter(|(level, _)| level == "ok").count(), 7);
    let nics = said.lines("rdma").iter().filter(|(level, _)| level == "ok").count();
    node.machine.port_down(0).unwrap();
    let said = node.doctor(&[]).await;
    let lines = said.lines("rdma");
    assert_eq!(lines.iter().filter(|(level, _)| level == "ok").count(), nics - 1, "one link is down");
    assert!(lines.iter().any(|(level, text)| level != "ok" && text.contains("Down")), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_was_updated_and_not_loaded_is_what_daemon_and_doctor_say() {
    let node = DoctorNode::new(NodeSpec::new("updated")).await;
    let _kubelet = node.kubelet().await;
    let _daemon = node.daemon();
    node.until_well(&[("device-object", &["all healthy"][..])]).await;
    node.machine.update_driver("580.65.06").unwrap();
    let start = clock::mono();
    let published = loop {
        let published = node.published().await;
        let is_out = |trouble: &&String| trouble.starts_with("DriverVersionMismatch: ");
        if published.values().flatten().filter(is_out).count() == 8 {
            break published;
        }
        assert!(clock::mono().saturating_sub(start) < PATIENCE, "{published:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let said = node.doctor(&[]).await;
    assert_eq!(said.differences(&published), [""; 0]);
    let words = ["libcuda below", "driver 580.65.06", "570.133.20 loaded", "reboot"];
    said.has("gpu", "fail", &words);
    said.has("driver-files", "fail", &words);
    said.has("cdi-spec", "ok", &["koordinator.sh-gpu.json is current: 8 devices"]);
    let said = node.doctor(&["--device-list-strategy=envvar"]).await;
    assert!(!said.fits("gpu", "fail", &["DriverVersionMismatch"]), "the runtime brings the driver's files");
}

#[tokio::test(flavor = "multi_thread")]
async fn people_get_text_and_the_wrong_flag_ends_with_2() {
    let node = DoctorNode::new(NodeSpec::new("text")).await;
    let run = |mut command: Command| tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = run(node.command("doctor", &[])).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("ok    nvml") && text.contains("→ ") && text.contains("node node-a: "), "{text}");
    let output = run(node.command("doctor", &["-o", "yaml"])).await.unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("node: node-a"));
    assert_eq!(run(node.command("doctor", &["--mig-strategy=double"])).await.unwrap().status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_locks_otherwise_and_another_gpu_driver_are_found_with_advice() {
    let node = DoctorNode::new(NodeSpec::new("doctor")).await;
    node.server.create_object::<k8s_openapi::api::core::v1::Node>(json!({"metadata": {"name": "node-a"}})).await;
    let said = node.doctor(&[]).await;
    said.has("node-lock", "ok", &["no scheduler leads by Lease baton-system/baton-scheduler"]);
    said.has("other-gpu-driver", "ok", &["no other driver"]);
    let leases: Api<Lease> = Api::namespaced(node.server.client.clone(), "baton-system");
    let leads_with = async |word: &LockWord| {
        let lease = json!({"metadata": {"name": "baton-scheduler", "annotations": {key::SCHEDULER: word.print()}}});
        leases.delete("baton-scheduler", &DeleteParams::default()).await.ok();
        leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
        node.doctor(&[]).await
    };
    leads_with(&LockWord::default()).await.has("node-lock", "ok", &["scheduler and daemon agree"]);
    // The policies were installed with the daemon's key.
    let said = leads_with(&LockWord::new("other.example/lock", LockFormat::Uid)).await;
    said.has("node-lock", "fail", &["AgentConfig", "--node-lock-key=other.example/lock", "change the scheduler"]);
    let said = leads_with(&LockWord::new(key::NODE_LOCK, LockFormat::Triple)).await;
    said.has("node-lock", "warn", &["change the node daemon", "--node-lock-format=triple"]);
    let pool = json!({"name": "node-a", "generation": 1, "resourceSliceCount": 1});
    let spec = json!({"driver": "gpu.nvidia.com", "nodeName": "node-a", "pool": pool, "devices": [{"name": "gpu-0"}]});
    node.server.create_object::<ResourceSlice>(json!({"metadata": {"name": "s"}, "spec": spec})).await;
    let said = node.doctor(&[]).await;
    said.has("other-gpu-driver", "fail", &["AnotherGpuDriver: gpu.nvidia.com", "baton.io/device-plugin=off"]);
}

#[tokio::test]
async fn the_conditions_are_printed_as_they_are_documented() {
    let mut baton = Command::new(env!("CARGO_BIN_EXE_baton"));
    let output = baton.env_clear().args(["doctor", "--conditions"]).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && table.lines().count() > 20, "{table}");
    let documented = include_str!("../../docs/commands.md");
    assert!(documented.contains(&format!("\n\n{table}")), "docs/commands.md has another table");
}

#[tokio::test]
async fn nics_that_are_not_served_are_named_with_the_reason() {
    let node = DoctorNode::new(NodeSpec::new("selected")).await;
    let said = node.doctor(&["--rdma-select=!mlx5_1,!eth9"]).await;
    said.has("rdma", "ok", &["mlx5_1 at", "not served: --rdma-select=!mlx5_1 excludes it"]);
    said.has("rdma", "ok", &["mlx5_2 at", "InfiniBand", "port 1 Active"]);
    said.has("rdma", "warn", &["!eth9 of --rdma-select matches no NIC here"]);
    let said = node.doctor(&["--rdma-select=mlx5_100"]).await;
    said.has("rdma", "warn", &["NoDevicesSelected: --rdma-select=mlx5_100 takes none of this node's NICs: mlx5_0"]);
}

/// What is wrong with a virtual machine.
#[derive(Debug, Clone)]
enum Wrong {
    Mig(usize, &'static [&'static str]),
    Lost(usize),
    Reset(usize),
    Recovery(usize),
    Fabric(usize),
    NoNode(usize),
    Question(usize, &'static str),
    Minor(usize, u32),
    Port(usize),
    NoFile(&'static str),
    NoDriver,
}

impl Wrong {
    /// One of them at random, on a machine of 8 GPUs and 8 NICs with 2 functions each.
    fn any(dice: &mut fastrand::Rng) -> Self {
        const QUESTIONS: [&str; 8] = [
            "nvmlDeviceGetName",
            "nvmlDeviceGetMinorNumber",
            "nvmlDeviceGetUUID",
            "nvmlDeviceGetMigMode",
            "nvmlDeviceGetPciInfo_v3",
            "nvmlDeviceGetNvLinkState",
            "nvmlDeviceGetFieldValues",
            "nvmlDeviceGetHandleByIndex_v2",
        ];
        let gpu = dice.usize(..8);
        match dice.u32(..14) {
            0 | 1 => Self::Mig(gpu, [&[][..], &["1g.10gb"], &["3g.40gb", "1g.10gb"]][dice.usize(..3)]),
            2 => Self::Lost(gpu),
            3 => Self::Reset(gpu),
            4 => Self::Recovery(gpu),
            5 => Self::Fabric(gpu),
            6 => Self::NoNode(gpu),
            7 | 8 => Self::Question(gpu, QUESTIONS[dice.usize(..QUESTIONS.len())]),
            9 => Self::Minor(gpu, [gpu as u32 ^ 1, 248, u32::MAX][dice.usize(..3)]),
            12 => Self::NoFile(["nvidiactl", "nvidia-uvm", "infiniband/uverbs1"][dice.usize(..3)]),
            13 => Self::NoDriver,
            _ => Self::Port(dice.usize(..12)),
        }
    }

    fn happen(&self, machine: &VirtualNode) {
        let happened = match *self {
            Self::Mig(gpu, parts) => machine.mig(gpu, parts).map(drop),
            Self::Lost(gpu) => machine.lose(gpu),
            Self::Reset(gpu) => machine.fault(gpu, NvmlReturn::ResetRequired),
            Self::Recovery(gpu) => machine.recovery(gpu, Some(1)),
            Self::Fabric(gpu) => machine.fabric(gpu, 2, 0),
            Self::NoNode(gpu) => std::fs::remove_file(machine.dev_root().join(format!("nvidia{gpu}"))).or(Ok(())),
            Self::Question(gpu, function) => machine.fail_question(gpu, function, NvmlReturn::Unknown),
            Self::Minor(gpu, minor) => machine.answer(gpu, &GpuValue::Minor(minor)),
            Self::Port(nic) => machine.port_down(nic),
            Self::NoFile(file) => std::fs::remove_file(machine.dev_root().join(file)).or(Ok(())),
            Self::NoDriver => std::fs::remove_file(machine.driver_root().join("usr/lib64/libcuda.so.1"))
                .and_then(|()| std::fs::remove_file(machine.driver_root().join("usr/lib64/libcuda.so.570.133.20")))
                .or(Ok(())),
        };
        happened.unwrap();
    }
}

impl DoctorNode {
    /// Devices of the Device object, with what is said of those that take no pods. Functions that are handed out are there, too.
    async fn published(&self) -> BTreeMap<String, Option<String>> {
        let device = Api::<Device>::all(self.server.client.clone()).get_opt("node-a").await.unwrap();
        let mut found = BTreeMap::new();
        for info in device.into_iter().flat_map(|device| device.spec.devices) {
            let condition = info.conditions.into_iter().next().unwrap();
            for vf in info.vf_groups.iter().flat_map(|group| &group.vfs).filter(|_| info.health) {
                found.insert(vf.bus_id.to_string(), None);
            }
            let bad = (!info.health).then(|| format!("{}: {}", condition.reason, condition.message));
            found.insert(info.id.to_string(), bad);
        }
        found
    }
}

impl Said {
    /// Where doctor and the Device object differ.
    fn differences(&self, published: &BTreeMap<String, Option<String>>) -> Vec<String> {
        let lines: Vec<_> = ["gpu", "rdma"].into_iter().flat_map(|check| self.lines(check)).collect();
        // A part's line begins with its name and names its whole later.
        let of = |id: &str| {
            lines.iter().filter(|(_, text)| text.split(" of ").next().unwrap().contains(id)).collect::<Vec<_>>()
        };
        let bad = |text: &str| text.contains("takes no new pods");
        let mut found = Vec::new();
        for (id, trouble) in published {
            let said = of(id);
            let agrees = match trouble {
                None => said.iter().all(|(_, text)| !bad(text)),
                // The parts of an unhealthy GPU need no lines.
                Some(_) if id.starts_with("MIG-") && said.is_empty() => true,
                Some(trouble) => {
                    let reason = trouble.split(':').next().unwrap();
                    said.iter().any(|(level, text)| level != "ok" && bad(text) && text.contains(reason))
                }
            };
            if !agrees {
                found.push(format!("{id}: daemon {trouble:?}, doctor {said:?}"));
            }
        }
        found
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn daemon_and_doctor_agree_about_every_device_of_random_machines() {
    for seed in 0..6 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let node = DoctorNode::new(NodeSpec { vfs_per_nic: 2, ..NodeSpec::new("agree") }).await;
        let _kubelet = node.kubelet().await;
        let wrongs: Vec<Wrong> = (0..dice.usize(1..6)).map(|_| Wrong::any(&mut dice)).collect();
        wrongs.iter().for_each(|wrong| wrong.happen(&node.machine));
        let strategy = ["none", "single", "mixed"][dice.usize(..3)];
        let mut flags = vec![format!("--mig-strategy={strategy}")];
        if dice.u32(..3) == 0 {
            flags.push("--device-list-strategy=envvar".to_owned());
        }
        if dice.bool() {
            flags.push("--rdma-select=!mlx5_1".to_owned());
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        println!("seed {seed}: {wrongs:?} {flags:?}");
        let mut daemon = node.command("device-plugin", &flags);
        let _daemon = Daemon(daemon.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let start = clock::mono();
        loop {
            let published = node.published().await;
            let said = node.doctor(&flags).await;
            let differences = said.differences(&published);
            if !published.is_empty() && differences.is_empty() {
                said.has("nvml", "ok", &["8 GPUs"]);
                let named = wrongs.iter().filter_map(|wrong| match wrong {
                    Wrong::Question(_, function) => Some(*function),
                    _ => None,
                });
                // What ends the reading of a GPU leaves other questions unasked.
                let fatal =
                    wrongs.iter().any(|wrong| matches!(wrong, Wrong::Lost(_) | Wrong::Reset(_)) || named_fatal(wrong));
                for function in named.filter(|_| !fatal) {
                    let lines = said.lines("gpu");
                    assert!(lines.iter().any(|(_, text)| text.contains(function)), "{function}: {lines:#?}");
                }
                break;
            }
            let late = clock::mono().saturating_sub(start) >= PATIENCE;
            assert!(!late, "{published:#?}\n{differences:#?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A question whose failure leaves the others unasked, or of one GPU that has failed twice.
fn named_fatal(wrong: &Wrong) -> bool {
    matches!(wrong, Wrong::Question(_, "nvmlDeviceGetUUID" | "nvmlDeviceGetHandleByIndex_v2"))
}
