//! Reads `rpc.jsonl` and `pods.jsonl`: what was done, and what the real kubelet answered to it.

use std::path::PathBuf;

use serde_json::{Value, json};

/// What the recorder did.
#[derive(Debug, Clone)]
pub enum Act {
    /// Created pods, one right after the other.
    Pods(Vec<Value>),
    /// Told a plugin how to behave.
    Control(String, Value),
    PluginRestart(String),
    KubeletRestart,
}

impl Act {
    /// Back to normal behaviour.
    pub fn is_reset(&self) -> bool {
        matches!(self, Self::Control(_, set) if *set == json!({}))
    }

    pub fn is_control(&self) -> bool {
        !matches!(self, Self::Pods(_))
    }
}

/// One act and the calls that followed it.
#[derive(Debug)]
pub struct Step {
    pub act: Option<Act>,
    pub calls: Vec<Value>,
}

/// A snapshot of pods and node.
#[derive(Debug)]
pub struct Snapshot {
    pub label: String,
    pub lines: Vec<Value>,
}

#[derive(Debug)]
pub struct Scenario {
    pub label: String,
    pub title: String,
    pub steps: Vec<Step>,
    pub snapshots: Vec<Snapshot>,
}

/// All scenarios, the first being the start of the kubelet and its plugins.
pub fn read() -> Vec<Scenario> {
    let rpc = lines("rpc.jsonl");
    let mut snapshots: Vec<Snapshot> = Vec::new();
    for line in lines("pods.jsonl") {
        let label = line["scenario"].as_str().unwrap().to_owned();
        match snapshots.last_mut().filter(|last| last.label == label) {
            Some(last) => last.lines.push(line),
            None => snapshots.push(Snapshot { label, lines: vec![line] }),
        }
    }
    let start = |label: &str, title: &str| Scenario {
        label: label.to_owned(),
        title: title.to_owned(),
        steps: vec![Step { act: None, calls: Vec::new() }],
        snapshots: Vec::new(),
    };
    let mut scenarios = vec![start("0", "start")];
    for mut line in rpc {
        let scenario = scenarios.last_mut().unwrap();
        if let Some(title) = line["scenario"].as_str() {
            let label = title.split(' ').next().unwrap();
            scenarios.push(start(label, title));
        } else if !line["pod"].is_null() {
            let pod = line["pod"].take();
            match scenario.steps.last_mut() {
                Some(Step { act: Some(Act::Pods(pods)), calls }) if calls.is_empty() => pods.push(pod),
                _ => scenario.steps.push(Step { act: Some(Act::Pods(vec![pod])), calls: Vec::new() }),
            }
        } else if let Some(who) = line["control"].as_str() {
            let act = match line["set"].as_str() {
                Some("plugin restarts") => Act::PluginRestart(who.to_owned()),
                Some("restart") => Act::KubeletRestart,
                Some(other) => panic!("unknown control {other}"),
                None => Act::Control(who.to_owned(), line["set"].clone()),
            };
            scenario.steps.push(Step { act: Some(act), calls: Vec::new() });
        } else {
            // Times are of the recording's machine.
            let fields = line.as_object_mut().unwrap();
            fields.remove("t");
            fields.remove("ms");
            scenario.steps.last_mut().unwrap().calls.push(line);
        }
    }
    let labels: Vec<String> = scenarios.iter().map(|scenario| scenario.label.clone()).collect();
    for snapshot in snapshots {
        // `8b` is a later snapshot of scenario 8, unless there is a scenario of that name.
        let own = labels.iter().position(|label| *label == snapshot.label);
        let at = own.or_else(|| labels.iter().position(|label| *label == snapshot.label.trim_end_matches('b')));
        scenarios[at.expect("each snapshot has its scenario")].snapshots.push(snapshot);
    }
    scenarios
}

fn lines(name: &str) -> Vec<Value> {
    lines_of("kubelet", name)
}

/// The lines of a recording, of this repository or of `BATON_FIXTURES`.
pub fn lines_of(folder: &str, name: &str) -> Vec<Value> {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let root = std::env::var_os("BATON_FIXTURES").map_or(own, PathBuf::from);
    let path = root.join(folder).join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}: {line}")))
        .collect()
}
