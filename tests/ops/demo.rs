//! `baton demo` as a user runs it: exit code 0, one JSON object that holds what it promises, and with `--keep` a cluster for
//! kubectl.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde_json::Value;

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
