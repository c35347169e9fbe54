//! A TYJob from kubectl's side, in the cluster that `baton demo --keep` leaves: applied, watched to its end, described and
//! deleted.

use std::io::BufRead;

use baton::contract::tyjob::Stage;

use crate::prelude::*;

const EXAMPLE: &str = "daemonset/examples/tyjob.yaml";
/// For whatever should take seconds.
const SOON: Duration = Duration::from_secs(120);

pub struct Kubectl {
    program: PathBuf,
    config: PathBuf,
    home: tempfile::TempDir,
}

impl Kubectl {
    pub fn new(program: PathBuf, config: &Path) -> Self {
        Self { program, config: config.to_owned(), home: tempfile::tempdir().unwrap() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("KUBECONFIG", &self.config).env("HOME", self.home.path());
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        command
    }

    /// What it printed, and whether it succeeded.
    fn try_run(&self, arguments: &str) -> (bool, String) {
        let output = self.command(&arguments.split(' ').collect::<Vec<_>>()).output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.success(), text)
    }

    fn run(&self, arguments: &str) -> String {
        let (ok, text) = self.try_run(arguments);
        assert!(ok, "kubectl {arguments}: {text}");
        text
    }

    fn refused(&self, arguments: &str) -> String {
        let (ok, text) = self.try_run(arguments);
        assert!(!ok, "kubectl {arguments}: {text}");
        text
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn until_gone(&self, what: &str) {
        let deadline = clock::now().mono + SOON;
        loop {
            let left = self.run(&format!("get {what} -o name"));
            if left.trim().is_empty() {
                return;
            }
            assert!(clock::now().mono < deadline, "still there: {left}");
            std::thread::yield_now();
        }
    }
}

/// The whole life of the example.
pub fn job(k: &Kubectl) {
    assert!(k.run("api-resources --api-group=arranger.taichu.io").contains("tyj"));
    assert!(k.run("explain tyj.spec.minWorkersNum").contains("FIELD: minWorkersNum <integer>"));
    let example = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(EXAMPLE)).unwrap();
    let typo = k.write("typo.yaml", &example.replace("minWorkersNum:", "minWorkerNum:"));
    assert!(k.refused(&format!("apply -f {typo}")).contains("unknown field \"spec.minWorkerNum\""));
    let wrong = k.write("wrong.yaml", &example.replace("basicPolicy: Gang", "basicPolicy: gang"));
    assert!(k.refused(&format!("apply -f {wrong}")).contains("spec.schedulerPolicy.basicPolicy"));
    assert!(k.run(&format!("apply --dry-run=server -f {EXAMPLE}")).contains("created (server dry run)"));
    assert!(k.run("get tyj").contains("No resources found"));

    let mut watch = k.command(&["get", "tyj", "-w"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let heard = BufReader::new(watch.stdout.take().unwrap());
    assert!(k.run(&format!("apply -f {EXAMPLE}")).contains("tyjob.arranger.taichu.io/pong created"));
    assert!(k.run(&format!("apply -f {EXAMPLE}")).contains("tyjob.arranger.taichu.io/pong unchanged"));
    let mut stages: Vec<String> = Vec::new();
    let mut columns: Vec<String> = Vec::new();
    let mut running = None;
    for line in heard.lines() {
        let line = line.unwrap();
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        if columns.is_empty() {
            columns = words;
            continue;
        }
        // A job without a stage yet has an empty cell: the next column's word is in its place.
        let stage = words[1].clone();
        if serde_json::from_value::<Stage>(stage.clone().into()).is_ok() && stages.last() != Some(&stage) {
            stages.push(stage);
        }
        if words.contains(&"2/2".to_owned()) && words[1] == "Running" {
            running = Some(line.clone());
        }
        if words[1] == "Succeeded" {
            break;
        }
    }
    let _ = watch.kill();
    let _ = watch.wait();
    assert_eq!(columns, ["NAME", "STAGE", "SCHEDULED", "READY", "RESTARTS", "PRIORITY", "AGE"]);
    // kubectl may begin to watch when the job has left its first stage.
    assert!(
        ["Pending", "Starting", "Running", "Succeeded"]
            .ends_with(&stages.iter().map(String::as_str).collect::<Vec<_>>()),
        "{stages:?}"
    );
    assert!(stages.len() >= 3, "{stages:?}");
    let running = running.expect("all workers were ready");
    let cells: Vec<&str> = running.split_whitespace().collect();
    assert_eq!(cells[..6], ["pong", "Running", "ScheduledSucceed", "2/2", "0", "5"]);

    let wide = k.run("get tyj pong -o wide");
    assert!(wide.contains("LEADER") && wide.contains("NODES") && wide.contains("MESSAGE"), "{wide}");
    tells(wide, ["the leader pong-learner succeeded"]);
    let text = k.run("describe tyj pong");
    let (_, events) = text.split_once("Events:").unwrap_or_else(|| panic!("{text}"));
    let at = |reason: &str| {
        let line = events.lines().position(|line| line.split_whitespace().nth(1) == Some(reason));
        line.unwrap_or_else(|| panic!("no event {reason}: {events}"))
    };
    // Two daemons look at a new job at once: who is first to say so is open.
    let order = [at("Pending").max(at("Scheduled")), at("Starting"), at("Running"), at("Succeeded")];
    assert!(order.is_sorted(), "{events}");
    k.until_gone("pods -l arranger.taichu.io/job=pong");

    // Nothing is left: no pod, no job that waits for its finalizer, no lock.
    assert!(k.run("delete tyj pong").contains("\"pong\" deleted"));
    assert!(k.run("get tyj -A").contains("No resources found"));
    assert!(!k.run("get nodes -o yaml").contains("/node-lock:"), "a node is locked");

    // One that is deleted while its pods run.
    k.run(&format!("apply -f {EXAMPLE}"));
    k.run("wait --for=jsonpath={.status.stage}=Running tyj/pong --timeout=60s");
    let placed = k.run("get tyj pong -o jsonpath={.status.allocations[*].pod}");
    assert_eq!(placed.trim(), "pong-learner pong-actor-0 pong-actor-1");
    k.run("delete tyj pong --cascade=background");
    assert!(k.run("get pods -l arranger.taichu.io/job=pong -o name").trim().is_empty(), "its pods went before it");
    assert!(!k.run("get nodes -o yaml").contains("/node-lock:"), "a node is locked");
}
