//! What makes a TYJob impossible to run, each with its field. The API server refuses most of it by the schema; this is the same
//! in Rust, for objects that are older than the schema and for what a schema cannot say.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::keys;
use super::spec::{MAX_PODS, MAX_WORKER_SETS, TyJob, TyJobSpec, worker_pod};
use super::template::PodTemplate;
use crate::gang::key::{PREFERRED_TOPOLOGY, REQUIRED_TOPOLOGY};
use crate::quota::PodAsk;

/// One field that cannot be as it is, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InvalidField {
    /// Path below the object, e.g. `spec.workerSets[1].counts`.
    pub field: String,
    /// What was expected.
    pub message: String,
}

impl fmt::Display for InvalidField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Longest label, and so the longest pod name of a job: host names are labels.
const MAX_LABEL: usize = 63;

/// Everything wrong with a job; empty when it can run.
pub fn validate(job: &TyJob) -> Vec<InvalidField> {
    validate_spec(job.metadata.name.as_deref().unwrap_or_default(), &job.spec)
}

/// Everything wrong with the spec of a job of that name.
pub fn validate_spec(job: &str, spec: &TyJobSpec) -> Vec<InvalidField> {
    let mut found = Findings::default();
    found.label("metadata.name", job);
    found.label("spec.leader.name", &spec.leader.name);
    found.generated("spec.leader.name", &spec.leader_pod(job));
    found.template("spec.leader.template", &spec.leader.template, spec);
    if spec.leader.template.restart_policy() == "Always" {
        found.add("spec.leader.template.spec.restartPolicy", "Always never ends: expected Never or OnFailure");
    }
    found.range("spec.restartLimit", spec.restart_limit, 0, i32::MAX);
    found.range("spec.priority", spec.priority, 1, 10);
    found.range("spec.minWorkersNum", spec.min_workers_num, 0, i32::MAX);
    volumes(&mut found, spec);
    worker_sets(&mut found, job, spec);
    found.0
}

fn worker_sets(found: &mut Findings, job: &str, spec: &TyJobSpec) {
    let sets = &spec.worker_sets;
    if sets.is_empty() || sets.len() > MAX_WORKER_SETS {
        found.add("spec.workerSets", format!("{} sets: expected 1 to {MAX_WORKER_SETS}", sets.len()));
    }
    let mut names = BTreeSet::new();
    for (index, set) in sets.iter().enumerate() {
        let at = format!("spec.workerSets[{index}]");
        found.label(&format!("{at}.name"), &set.name);
        if !names.insert(set.name.as_str()) {
            found.add(format!("{at}.name"), format!("{:?} is the name of another worker set too", set.name));
        }
        if set.name == spec.leader.name {
            found.add(format!("{at}.name"), format!("{:?} is the name of the leader too", set.name));
        }
        found.range(&format!("{at}.counts"), set.counts, 1, MAX_PODS);
        found.generated(&format!("{at}.name"), &worker_pod(job, &set.name, set.counts.max(1) - 1));
        let taken = spec.leader.name.strip_prefix(&format!("{}-", set.name)).and_then(index_of);
        if taken.is_some_and(|taken| taken < set.counts) {
            let pod = spec.leader_pod(job);
            found.add(format!("{at}.name"), format!("the leader and a worker of this set would both be {pod}"));
        }
        found.template(&format!("{at}.template"), &set.template, spec);
    }
    let total = spec.total_workers();
    if total > i64::from(MAX_PODS) {
        found.add("spec.workerSets", format!("{total} workers in all: at most {MAX_PODS}"));
    }
    if i64::from(spec.min_workers_num) > total {
        let message = format!("{} is more than the {total} workers of all sets", spec.min_workers_num);
        found.add("spec.minWorkersNum", message);
    }
}

/// An index as names carry it: decimal, without leading zeros.
fn index_of(text: &str) -> Option<i32> {
    let index: i32 = text.parse().ok()?;
    (index >= 0 && index.to_string() == text).then_some(index)
}

fn volumes(found: &mut Findings, spec: &TyJobSpec) {
    let mut names = BTreeSet::new();
    for (index, volume) in spec.volumes.iter().enumerate() {
        let at = format!("spec.volumes[{index}].name");
        match volume["name"].as_str() {
            Some(name) if names.insert(name) => found.label(&at, name),
            Some(name) => found.add(at, format!("{name:?} is the name of another volume too")),
            None => found.add(at, "a volume has a name"),
        }
    }
}

#[derive(Default)]
struct Findings(Vec<InvalidField>);

impl Findings {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(InvalidField { field: field.into(), message: message.into() });
    }

    fn label(&mut self, field: &str, value: &str) {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let ends = !value.starts_with('-') && !value.ends_with('-');
        if value.is_empty() || value.len() > MAX_LABEL || !ends || !value.bytes().all(inner) {
            let rule = "an RFC 1123 label: at most 63 of a-z, 0-9 and -, no - at either end";
            self.add(field, format!("{:?} is not {rule}", value.chars().take(80).collect::<String>()));
        }
    }

    fn generated(&mut self, field: &str, pod: &str) {
        if pod.len() > MAX_LABEL {
            let message = format!("the pod would be named {pod}: {} characters, at most {MAX_LABEL}", pod.len());
            self.add(field, message);
        }
    }

    fn range(&mut self, field: &str, value: i32, least: i32, most: i32) {
        if value < least {
            self.add(field, format!("{value}: at least {least}"));
        } else if value > most {
            self.add(field, format!("{value}: at most {most}"));
        }
    }

    fn template(&mut self, at: &str, template: &PodTemplate, spec: &TyJobSpec) {
        let pod = template.spec();
        let containers = pod["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
        if containers.is_empty() {
            self.add(format!("{at}.spec.containers"), "a pod has at least one container");
        }
        for (index, container) in containers.iter().enumerate() {
            if container["name"].as_str().is_none_or(str::is_empty) {
                self.add(format!("{at}.spec.containers[{index}].name"), "a container has a name");
            }
        }
        if let Err(why) = PodAsk::read(pod) {
            self.add(format!("{at}.spec"), why);
        }
        let policy = &pod["restartPolicy"];
        if !policy.is_null() && !["", "Always", "OnFailure", "Never"].iter().any(|known| policy == known) {
            let message = format!("{policy}: expected Always, OnFailure or Never");
            self.add(format!("{at}.spec.restartPolicy"), message);
        }
        for (field, reason) in [
            ("schedulerName", "is set by the controller: leave it out"),
            ("nodeName", "is chosen by the scheduler: leave it out"),
            ("schedulingGroup", "a job is scheduled as a job, not as a gang: leave it out"),
        ] {
            if !pod[field].is_null() && pod[field] != "" {
                self.add(format!("{at}.spec.{field}"), reason);
            }
        }
        for map in ["labels", "annotations"] {
            for (key, _) in template.metadata(map) {
                if [REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY].contains(&key) {
                    self.add(format!("{at}.metadata.{map}[{key}]"), "is an annotation of the TYJob: move it there");
                } else if keys::is_gang_key(key) {
                    let message = "a job is scheduled as a job, not as a gang: leave it out";
                    self.add(format!("{at}.metadata.{map}[{key}]"), message);
                } else if key.starts_with(keys::PREFIX) {
                    self.add(format!("{at}.metadata.{map}[{key}]"), "is written by the controller: leave it out");
                }
            }
        }
        let own = pod["volumes"].as_array().into_iter().flatten().filter_map(|volume| volume["name"].as_str());
        let shared: BTreeSet<&str> = spec.volumes.iter().filter_map(|volume| volume["name"].as_str()).collect();
        for name in own.filter(|name| shared.contains(name)) {
            self.add(format!("{at}.spec.volumes[{name}]"), "spec.volumes has a volume of this name too");
        }
        if !pod.is_null() && !matches!(pod, Value::Object(_)) {
            self.add(format!("{at}.spec"), "expected an object");
        }
    }
}
