//! The annotation of the agent's Lease: what this node's agent serves right now.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::allocation::Entries;
use super::id::PodUid;
use super::lock::LockFormat;

/// Start of a Lease's name, before the node's.
pub const LEASE_PREFIX: &str = "baton-agent-";
/// End of the name of the Leases' namespace, after the daemons' namespace.
pub const LEASES_SUFFIX: &str = "-nodes";

/// How the agent identifies the pod that calls Allocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Identity {
    /// By the kubelet's pod-resources: the node lock is not needed.
    Exact,
    /// By the node lock alone.
    Lock,
}

/// Value of [`super::key::AGENT`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Version of the agent.
    pub version: String,
    /// Resource names that the kubelet has registered and whose stream is open.
    pub registered: Vec<String>,
    /// Identification method.
    pub identity: Identity,
    /// Schedulers (`spec.schedulerName`) whose pods it serves without a node lock, where it identifies callers exactly; none
    /// under `--node-lock=always`. `None`, when absent: every scheduler's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lockless: Option<Vec<String>>,
    /// Pods of this node whose devices are not those of their annotation, and what they hold in truth; nothing where a pod runs
    /// without having been served. It is empty in normal operation. `None` while the daemon does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exceptions: Option<Exceptions>,
    /// Exceptions that the API server does not have any more, or has as ended, and whose processes use their devices still.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub leaving: BTreeMap<PodUid, LeavingPod>,
    /// How it locks its node.
    #[serde(default, deserialize_with = "known_lock", skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockWord>,
    /// There are more exceptions than an annotation can hold: the node takes no device pods.
    #[serde(default, rename = "tooManyExceptions", skip_serializing_if = "std::ops::Not::not")]
    pub too_many_exceptions: bool,
    /// It has ended by itself, and this is its last word.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// Value of the node lock that the daemon could not remove although it has served the lock's holder. Absent in normal operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreleased: Option<Box<str>>,
    /// It names pods in its metrics: schedulers may name namespaces in theirs.
    #[serde(default, rename = "podMetrics", skip_serializing_if = "std::ops::Not::not")]
    pub pod_metrics: bool,
}

/// The lock's word; `None` for one of a later version that says it otherwise: the rest of the status still counts.
fn known_lock<'de, D: serde::Deserializer<'de>>(text: D) -> Result<Option<LockWord>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(text)?).ok())
}

/// Which annotation is the node lock, and how its value is written. Scheduler and node daemons must agree on the annotation; every
/// format is read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LockWord {
    /// Annotation of the Node.
    pub key: Box<str>,
    /// Format of the value: a [`LockFormat`], or one of a later version.
    pub format: Box<str>,
}

impl LockWord {
    /// The word of a process with these options.
    pub fn new(key: &str, format: LockFormat) -> Self {
        Self { key: key.into(), format: format.to_string().into() }
    }

    /// The word that the leading scheduler has written into an annotation of its Lease.
    pub fn read(annotation: &str) -> Option<Self> {
        serde_json::from_str(annotation).ok()
    }

    /// For that annotation.
    pub fn print(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Default for LockWord {
    fn default() -> Self {
        Self::new(super::key::NODE_LOCK, LockFormat::default())
    }
}

impl std::fmt::Display for LockWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "--node-lock-key={} --node-lock-format={}", self.key, self.format)
    }
}

/// A pod that has left the API server, or was written as ended there, before its processes have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeavingPod {
    /// Namespace.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
    /// When the node's daemon saw it leave, by the node's clock.
    pub since: Timestamp,
}

/// What pods hold in truth, by uid.
pub type Exceptions = BTreeMap<PodUid, Entries>;

impl AgentStatus {
    /// Pods that have left before their processes, and what these use.
    pub fn leaving(&self) -> impl Iterator<Item = (&PodUid, &LeavingPod, &Entries)> {
        self.leaving.iter().filter_map(|(uid, pod)| Some((uid, pod, self.exceptions.as_ref()?.get(uid)?)))
    }

    /// Reads the annotation; `None` when it is absent, too large or not of this shape: then the node has no usable agent.
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() <= super::key::MAX_ANNOTATION).then(|| serde_json::from_str(text).ok()).flatten()
    }

    /// `true` where pods of `scheduler` need no node lock: the agent identifies callers exactly and serves those pods without
    /// one.
    pub fn needs_no_lock(&self, scheduler: &str) -> bool {
        let serves = |names: &Vec<String>| names.iter().any(|name| name == scheduler);
        self.identity == Identity::Exact && self.lockless.as_ref().is_none_or(serves)
    }

    /// The annotation's text. What would make it too large to be read is left out: the names of pods that have left, which are for
    /// people, and then the exceptions, and it says so.
    pub fn print(&self) -> String {
        let print = |status: &Self| serde_json::to_string(status).unwrap_or_default();
        let fits = |text: &String| text.len() <= super::key::MAX_ANNOTATION;
        let unnamed = || Self { leaving: BTreeMap::new(), ..self.clone() };
        let short = || Self { exceptions: Some(Exceptions::new()), too_many_exceptions: true, ..unnamed() };
        Some(print(self))
            .filter(fits)
            .or_else(|| Some(print(&unnamed())).filter(fits))
            .unwrap_or_else(|| print(&short()))
    }

    /// The kubelet has registered `resource`.
    pub fn registers(&self, resource: &str) -> bool {
        self.registered.iter().any(|name| name == resource)
    }

    /// It is known of every pod whether it is an exception.
    pub fn names_exceptions(&self) -> bool {
        self.exceptions.is_some() && !self.too_many_exceptions
    }

    /// The pod runs without its devices: the kubelet never called for them.
    pub fn is_unserved(&self, uid: &PodUid) -> bool {
        self.exceptions.as_ref().and_then(|all| all.get(uid)).is_some_and(|held| held.values().all(Vec::is_empty))
    }

    /// Name of the Lease that carries the status of `node`'s agent.
    pub fn lease_name(node: &str) -> String {
        format!("{LEASE_PREFIX}{node}")
    }

    /// The namespace of these Leases, beside the daemons' own: there, a node daemon's rights do not reach the leaders' Leases.
    pub fn lease_namespace(namespace: &str) -> String {
        format!("{namespace}{LEASES_SUFFIX}")
    }

    /// The daemons' namespace, by that of their Leases.
    pub fn namespace_of_leases(namespace: &str) -> Option<&str> {
        namespace.strip_suffix(LEASES_SUFFIX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_golden_status_is_read_and_printed_back() {
        let golden = include_str!("../../tests/golden/agent-status.json").trim_end();
        let status = AgentStatus::parse(golden).unwrap();
        assert_eq!(status.identity, Identity::Exact);
        assert_eq!(status.print(), golden);
        assert_eq!(AgentStatus::parse("{}"), None);
    }

    #[test]
    fn a_lock_of_a_later_version_leaves_the_rest_of_the_status_readable() {
        let with = |lock: &str| {
            let text =
                format!(r#"{{"version":"9","registered":["a"],"identity":"exact","exceptions":{{}},"lock":{lock}}}"#);
            let status = AgentStatus::parse(&text).unwrap();
            assert!(status.registers("a") && status.exceptions.is_some());
            status.lock.map(|lock| lock.to_string())
        };
        let later = "--node-lock-key=k --node-lock-format=both";
        assert_eq!(with(r#"{"key":"k","format":"both","more":1}"#).as_deref(), Some(later));
        assert_eq!((with(r#""k""#), with("null")), (None, None));
    }

    #[test]
    fn more_exceptions_than_an_annotation_holds_are_said_to_be_too_many() {
        let golden = AgentStatus::parse(include_str!("../../tests/golden/agent-status.json").trim_end()).unwrap();
        let with = |count: usize| {
            let exceptions =
                (0..count).map(|k| (PodUid::new(&format!("00000000-0000-0000-0000-{k:012}")), Entries::new()));
            AgentStatus { exceptions: Some(exceptions.collect()), ..golden.clone() }
        };
        let few = AgentStatus::parse(&with(1000).print()).unwrap();
        assert_eq!((few.exceptions.as_ref().unwrap().len(), few.too_many_exceptions), (1000, false));
        assert!(few.is_unserved(&PodUid::new("00000000-0000-0000-0000-000000000007")));
        let leaving = |k: usize| {
            let pod = LeavingPod { namespace: "ml".into(), name: "train".into(), since: Timestamp::UNIX_EPOCH };
            (PodUid::new(&format!("00000000-0000-0000-0000-{k:012}")), pod)
        };
        let named = AgentStatus { leaving: (0..1000).map(leaving).collect(), ..with(1000) };
        let unnamed = AgentStatus::parse(&named.print()).unwrap();
        assert_eq!((unnamed.exceptions.unwrap().len(), unnamed.leaving.len()), (1000, 0), "names go first");
        let many = AgentStatus::parse(&with(3000).print()).unwrap();
        assert!(many.exceptions.unwrap().is_empty() && many.too_many_exceptions);
    }

    #[test]
    fn the_lock_is_needed_unless_the_agent_identifies_callers_without_it() {
        let status = |identity: &str, more: &str| {
            AgentStatus::parse(&format!(r#"{{"version":"1","registered":[],"identity":"{identity}"{more}}}"#)).unwrap()
        };
        assert!(status("exact", "").needs_no_lock("any"));
        assert!(status("exact", r#","lockless":["a","b"]"#).needs_no_lock("b"));
        assert!(!status("exact", r#","lockless":["a"]"#).needs_no_lock("b"));
        assert!(!status("exact", r#","lockless":[]"#).needs_no_lock("a"));
        assert!(!status("lock", r#","lockless":["a"]"#).needs_no_lock("a"));
    }
}
