//! `baton demo` as a user runs it: exit code 0, one JSON object that holds what it promises, and with `--keep` a cluster for
//! kubectl.

use std::io::{BufRead, Read};
use std::sync::mpsc::{self, Receiver};

use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::prelude::*;
use crate::{demo_kubectl, picture, program};

/// A daemon that ended is started again within seconds.
const SOON: Duration = Duration::from_secs(60);

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect()
}

/// `baton demo --keep`.
pub struct Kept {
    child: Child,
    /// What it said until it invited to use the cluster.
    pub output: String,
    pub config: String,
    /// What it says after the invitation.
    lines: Receiver<String>,
}

impl Kept {
    pub fn start(more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
        command.args(["demo", "--keep", "-o", "json"]).args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (mut output, mut config) = (String::new(), None);
        for line in lines.by_ref() {
            let line = line.unwrap();
            config = config.or(line.trim().strip_prefix("export KUBECONFIG=").map(str::to_owned));
            output.push_str(&line);
            output.push('\n');
            // The invitation's last command that ends.
            if line.trim() == "baton get locks" {
                break;
            }
        }
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(sender.send(line))));
        let config = config.unwrap_or_else(|| panic!("the demo ended without an invitation:\n{output}"));
        Self { child, output, config, lines: receiver }
    }

    /// Waits for a line that contains this.
    pub fn says(&self, text: &str) -> String {
        let mut heard = String::new();
        loop {
            let line = self.lines.recv_timeout(SOON).unwrap_or_else(|_| panic!("no line with {text:?} in:\n{heard}"));
            if line.contains(text) {
                return line;
            }
            heard.push_str(&line);
            heard.push('\n');
        }
    }

    /// Kills a daemon of this command.
    pub fn kill(&self, command: &str) {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let of = |path: std::path::PathBuf| std::fs::read_to_string(path.join("children")).unwrap_or_default();
        let children: String = threads.map(|thread| of(thread.unwrap().path())).collect::<Vec<_>>().concat();
        let runs = |pid: &&str| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(command.as_bytes())
        };
        let pid = children.split_whitespace().find(runs).unwrap_or_else(|| panic!("no {command} among {children}"));
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    /// What `baton` says where the invitation's variables are set.
    pub fn baton(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
        command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = command.env("KUBECONFIG", &self.config).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "baton {arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same of a command that may find a fault.
    pub fn said(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
        let output = command.args(arguments).env("KUBECONFIG", &self.config).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    /// Ctrl-C. Whether it ended well, and its standard output.
    pub fn end(&mut self) -> (bool, String) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        (self.child.wait().unwrap().success(), out)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Its daemons end with it: they are output when it is asked to end, and killed when it is dropped.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let pid = rustix::process::Pid::from_raw(self.child.id().cast_signed());
            let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::INT));
            let _ = self.child.wait();
        }
    }
}

#[test]
fn the_demo_ends_well_and_its_records_agree() {
    let mut demo = Kept::start(&[]);
    let err = demo.output.clone();
    let folder = Path::new(env!("CARGO_BIN_EXE_baton")).parent().unwrap().display();
    assert!(err.contains(&format!("export PATH={folder}:$PATH")), "{err}");
    for line in err.lines().filter_map(|line| line.trim().strip_prefix("baton ")) {
        demo.baton(&line.split(' ').collect::<Vec<_>>());
    }
    assert!(demo.baton(&["explain", "pod", "default/one-gpu"]).contains("one-gpu"));
    assert!(demo.baton(&["get", "gangs", "-A"]).contains("No gang"), "the chapter on gangs took them away");
    if let Some(program) = program::kubectl() {
        demo_kubectl::job(&demo_kubectl::Kubectl::new(program, Path::new(&demo.config)));
    }
    demo.kill("device-plugin");
    let ended = demo.says("daemon ended with signal: 9");
    assert!(demo.says("daemon started again").contains(ended.split_whitespace().nth(1).unwrap()), "{ended}");
    let (success, out) = demo.end();
    assert!(success, "{out}\n{err}");
    assert_eq!(out.lines().count(), 1, "one object and nothing else on standard output: {out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["violations"], Value::Array(Vec::new()));
    assert_eq!(report["apiWritesPerPod"].as_f64(), Some(3.0), "lock, binding, unlock");

    let pods = report["pods"].as_array().unwrap();
    let mut burst: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut whole: BTreeSet<&str> = BTreeSet::new();
    for pod in pods {
        let name = pod["name"].as_str().unwrap();
        for kind in ["gpu", "rdma"] {
            let ids = strings(&pod["assigned"][kind]);
            assert!(ids.is_sorted(), "{pod}");
            for record in ["kubelet", "ledger"] {
                assert_eq!(strings(&pod[record][kind]), ids, "{name}: {record}");
            }
        }
        let held = pod["lockHeldMs"].as_f64().unwrap();
        assert!(held > 0.0 && held < 10_000.0, "{name}: lock held for {held} ms");
        let gpus = strings(&pod["assigned"]["gpu"]);
        let expected = match name {
            "two-containers" => 3,
            "init-and-sidecar" => 2,
            "gpu-rdma" => 4,
            _ => 1,
        };
        assert_eq!(gpus.len(), expected, "{name}");
        assert_eq!(strings(&pod["assigned"]["rdma"]).len(), if name == "gpu-rdma" { 2 } else { 0 }, "{name}");
        if name.starts_with("burst-") {
            burst.entry(pod["node"].as_str().unwrap()).or_default().extend(gpus);
        } else if name != "gpu-share" {
            for gpu in gpus {
                assert!(whole.insert(gpu), "{gpu} is held twice");
            }
        }
    }
    assert_eq!(pods.len(), 5 + 16);
    // 16 halves on one node are its 8 GPUs, two each.
    assert_eq!(burst.len(), 1, "{burst:?}");
    let mut per_gpu: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in burst.into_values().flatten() {
        *per_gpu.entry(gpu).or_default() += 1;
        assert!(!whole.contains(gpu), "{gpu} is whole and shared");
    }
    assert_eq!(per_gpu.values().copied().collect::<Vec<_>>(), [2; 8]);
    let job = &report["job"];
    assert_eq!(job["stages"], serde_json::json!(["Pending", "Starting", "Running", "Succeeded"]), "{job}");
    assert_eq!((job["name"].as_str(), job["workerRestarts"].as_i64()), (Some("pong"), Some(1)));
    assert_eq!((job["pods"].as_object().unwrap().len(), job["podsLeft"].as_u64()), (3, Some(0)), "{job}");
    assert!(job["leaderAddress"].as_str().is_some_and(|address| !address.is_empty()));
    let chapter = [
        "3 of 5 pods have a node",
        "waits and holds nothing: gang default/job: 0 of 5 placed",
        "submitted behind the gang, runs at once",
        "all five run, without any action",
        "waits: gang default/learner starts together with gang actors/actor",
        "both gangs run, bound as one",
        "ScheduledSucceed: pong-learner on node-",
        "stage Running: 2 of 2 workers are ready",
        "restart 1 of 3",
        "stage Succeeded: the leader pong-learner succeeded",
        "its pods are gone, and what they held is free",
    ];
    for line in ["lock set on", "bound to", "Allocate answered", "released after"].into_iter().chain(chapter) {
        assert!(err.contains(line), "progress lacks {line:?}:\n{err}");
    }
    picture::is_of(&err);
    println!("{} pods; lock held {:?} ms", pods.len(), pods.iter().map(|pod| &pod["lockHeldMs"]).collect::<Vec<_>>());
}

/// Lets an operator's client of this cluster do something.
fn with_client<T>(config: &str, work: impl AsyncFnOnce(kube::Client) -> T) -> T {
    let config = Kubeconfig::read_from(config).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
        work(kube::Client::try_from(config).unwrap()).await
    })
}

/// Creates a pod with one GPU on this node.
fn create_on(config: &str, node: &str, name: &str) {
    let limits = json!({"nvidia.com/gpu": "1"});
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": "baton-scheduler", "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}]},
    }))
    .unwrap();
    with_client(config, async |client| {
        Api::<Pod>::namespaced(client, "default").create(&PostParams::default(), &pod).await.unwrap();
    });
}

/// `REASON: MESSAGE` of each event on this pod.
fn events_of(config: &str, pod: &str) -> Vec<String> {
    let params = ListParams::default().fields(&format!("involvedObject.name={pod}"));
    let events =
        with_client(config, async |client| Api::<Event>::namespaced(client, "default").list(&params).await.unwrap());
    let words = |event: Event| format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default());
    events.items.into_iter().map(words).collect()
}

/// Sends a signal to the node daemon of a node.
fn signal_daemon(demo: &Kept, node: &str, signal: rustix::process::Signal) {
    let pid = std::fs::read_to_string(Path::new(&demo.config).with_file_name(format!("{node}.pid"))).unwrap();
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn every_fault_of_a_kept_demo_is_shown_where_people_look() {
    let mut demo = Kept::start(&[]);
    let fault = |words: &str, answer: &str| {
        let line: Vec<&str> = ["demo", "fault"].into_iter().chain(words.split(' ')).collect();
        assert_eq!(demo.baton(&line), format!("{answer}\n"));
    };
    let until = |line: &str, is: &dyn Fn(&str) -> bool| {
        let deadline = clock::now().mono + SOON;
        loop {
            let said = demo.said(&line.split(' ').collect::<Vec<_>>());
            if is(&said) {
                return said;
            }
            assert!(clock::now().mono < deadline, "{line}: {said}");
            std::thread::yield_now();
        }
    };
    let shows = |line: &str, parts: &[&str]| until(line, &|said| parts.iter().all(|part| said.contains(part)));
    let items = |line: &str| serde_json::from_str::<Value>(&demo.baton(&line.split(' ').collect::<Vec<_>>())).unwrap();
    let unhealthy = "get devices -o wide --state unhealthy --node";

    let listed = items("get devices -o json");
    let is_held = |row: &&Value| {
        row["holders"].to_string().contains("gpu-rdma") && row["device"].as_str().unwrap().starts_with("gpu-")
    };
    let held = listed["items"].as_array().unwrap().iter().find(is_held).unwrap();
    let (node, gpu) = (held["node"].as_str().unwrap(), held["device"].as_str().unwrap());
    fault(&format!("{node}/{gpu} xid 79"), &format!("the driver of {node} reports XID 79 of {gpu}"));
    let xid = "XID 79: GPU has fallen off the bus";
    let out = format!("{gpu} is out of service");
    shows(&format!("{unhealthy} {node}"), &[gpu, xid, "default/gpu-rdma"]);
    shows("explain pod default/gpu-rdma", &[&out, xid]);
    shows(&format!("explain node {node}"), &[&format!("{out} since "), xid]);
    shows("get pods gpu-rdma -n default -o json", &[&out, xid]);
    shows("audit", &[&format!("note: node {node}: {out} since "), xid, "; held by default/gpu-rdma"]);
    let json = items("explain pod default/gpu-rdma -o json");
    assert_eq!((&json["apiVersion"], &json["kind"]), (&"baton.io/v1alpha1".into(), &"PodExplanation".into()));
    // Two minutes of a probe every twenty seconds is too long here: another GPU and a NIC break and mend.
    fault("node-0/gpu-7 lose", "gpu-7 of node-0 falls off the bus");
    fault("node-2/nic-0 down", "the port of nic-0 of node-2 goes down");
    shows(&format!("{unhealthy} node-0"), &["gpu-7"]);
    shows(&format!("{unhealthy} node-2"), &["nic-0"]);
    fault("node-0/gpu-7 find", "gpu-7 of node-0 is back on the bus");
    fault("node-2/nic-0 up", "the port of nic-0 of node-2 comes up");
    until(&format!("{unhealthy} node-2"), &|said| !said.contains("nic-0"));

    // A lock of a pod that does not exist goes by itself, at the next bind or sooner.
    let nodes = items("get nodes -o json");
    let roomy = nodes["items"].as_array().unwrap().iter().max_by_key(|row| row["gpu"]["free"].as_u64()).unwrap();
    assert!(roomy["gpu"]["free"].as_u64().unwrap() >= 2, "{roomy}");
    let roomy = roomy["name"].as_str().unwrap();
    fault(&format!("{roomy} lock"), &format!("{roomy} is locked by a pod that does not exist"));
    until("get locks", &|said| said.contains("No node is locked"));

    // Without its daemon, or without its kubelet, the node takes no pod.
    let away = "is away: the node daemon runs and is not registered";
    for (part, word, why, help, stops, starts) in [
        (
            "daemon",
            "stopped",
            "was stopped",
            "was shut down",
            "the node daemon of NODE ends, and stays away",
            "the node daemon of NODE starts",
        ),
        ("kubelet", "unregistered", away, "describe node", "the kubelet of NODE ends", "the kubelet of NODE starts"),
    ] {
        fault(&format!("{roomy} {part} stop"), &stops.replace("NODE", roomy));
        shows("get nodes", &[word]);
        create_on(&demo.config, roomy, part);
        shows(&format!("get pods {part} -n default -o json"), &[why]);
        shows(&format!("explain pod default/{part}"), &[why, help]);
        shows(&format!("explain node {roomy}"), &[&format!("{roomy} {why}"), help]);
        fault(&format!("{roomy} {part} start"), &starts.replace("NODE", roomy));
        shows(&format!("explain pod default/{part}"), &["served at ", &format!("bound to node {roomy}")]);
        until("get nodes", &|said| !said.contains(word));
    }

    // A daemon that hangs under a bind: one sentence on every surface, and who does not answer.
    signal_daemon(&demo, roomy, rustix::process::Signal::STOP);
    create_on(&demo.config, roomy, "hangs");
    let stuck = "stuck: not served for over 15 s; the kubelet has not asked for all of its devices, or the node daemon has not answered";
    shows("get locks", &[roomy, "default/hangs", stuck]);
    shows("get nodes", &["locked by default/hangs", "(stuck)"]);
    shows("get pods hangs -n default -o json", &[stuck]);
    shows(&format!("explain node {roomy}"), &["lock: held by default/hangs for ", stuck]);
    let text = shows("explain pod default/hangs", &[&format!("bound to node {roomy}; stuck: ")]);
    tells(text, ["the node daemon was asked which calls it has answered: no answer"]);
    let noted = || {
        events_of(&demo.config, "hangs")
            .into_iter()
            .any(|said| said.starts_with("NotServed: ") && said.contains("stuck: "))
    };
    until("get locks", &|_| noted());
    signal_daemon(&demo, roomy, rustix::process::Signal::CONT);
    shows("explain pod default/hangs", &["served at "]);
    until("get locks", &|said| said.contains("No node is locked"));
    let (success, out) = demo.end();
    assert!(success, "{out}");
}
