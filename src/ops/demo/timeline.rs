//! The events of the pods, from watches: each change that matters is one line with its time, and the duration of every lock is
//! measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::contract::{LockRead, PodKey};
use crate::decide::pod::{HandoffPod, Phase};

use super::report::Devices;

/// One line of the story.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Since the start.
    pub at: Duration,
    /// Pod or node that it is about.
    pub subject: String,
    /// What happened.
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3}s  {:<18} {}", self.at.as_secs_f64(), self.subject, self.text)
    }
}

/// The story so far.
#[derive(Debug, Default)]
pub struct Timeline {
    /// The lock on each node, and since when.
    locks: BTreeMap<String, (String, Option<PodKey>, Duration)>,
    pods: BTreeMap<PodKey, Printed>,
    held: BTreeMap<PodKey, Duration>,
    /// Lines that were not printed yet.
    kept: Vec<Line>,
}

/// What was already printed of one pod.
#[derive(Debug, Default)]
struct Printed {
    bound: bool,
    running: bool,
    ended: bool,
    answered: BTreeSet<(String, String)>,
}

impl Timeline {
    /// A node's lock annotation, as a watch shows it.
    pub fn node(&mut self, at: Duration, node: &str, lock: Option<&str>) -> Vec<Line> {
        let mut lines = Vec::new();
        let before = self.locks.get(node).map(|(raw, ..)| raw.as_str());
        if before == lock {
            return lines;
        }
        if let Some((raw, holder, since)) = self.locks.remove(node) {
            let held = at.saturating_sub(since);
            let subject = subject(holder.as_ref(), &raw);
            if let Some(holder) = holder {
                self.held.insert(holder, held);
            }
            let text = format!("lock on {node} released after {:.1} ms", held.as_secs_f64() * 1e3);
            lines.push(Line { at, subject, text });
        }
        if let Some(raw) = lock {
            let holder = match LockRead::parse(Some(raw)) {
                LockRead::Held { value, .. } => value.holder.map(|holder| holder.pod),
                LockRead::Free | LockRead::Malformed { .. } => None,
            };
            lines.push(Line { at, subject: subject(holder.as_ref(), raw), text: format!("lock set on {node}") });
            self.locks.insert(node.to_owned(), (raw.to_owned(), holder, at));
        }
        lines
    }

    /// A pod, as a watch shows it.
    pub fn pod(&mut self, at: Duration, pod: &HandoffPod) -> Vec<Line> {
        let shown = self.pods.entry(pod.pod.key.clone()).or_default();
        let mut lines = Vec::new();
        let mut show = |text: String| lines.push(Line { at, subject: pod.pod.key.name.to_string(), text });
        if let Some(node) = pod.node.as_deref().filter(|_| !shown.bound) {
            shown.bound = true;
            let annotation = pod.assignment.device_allocated.as_deref().unwrap_or_default();
            let devices = Devices::of_annotation(annotation).unwrap_or_default();
            show(format!("bound to {node} with {}", count(&devices)));
        }
        if pod.phase == Phase::Running && !shown.running {
            shown.running = true;
            show("running".to_owned());
        }
        if pod.phase.is_terminal() && !shown.ended {
            shown.ended = true;
            show(format!("{:?}", pod.phase).to_lowercase());
        }
        lines
    }

    /// The kubelet holds an answer for one container and resource.
    pub fn answered(
        &mut self,
        at: Duration,
        pod: &PodKey,
        container: &str,
        resource: &str,
        ids: usize,
    ) -> Option<Line> {
        let shown = self.pods.entry(pod.clone()).or_default();
        shown.answered.insert((container.to_owned(), resource.to_owned())).then(|| Line {
            at,
            subject: pod.name.to_string(),
            text: format!(
                "Allocate answered: container {container}, {resource}, {ids} id{}",
                if ids == 1 { "" } else { "s" }
            ),
        })
    }

    /// Keeps lines until they are due.
    pub fn keep(&mut self, lines: impl IntoIterator<Item = Line>) {
        self.kept.extend(lines);
    }

    /// The lines up to `until`, in the order of their times.
    pub fn due(&mut self, until: Duration) -> Vec<Line> {
        self.kept.sort_by_key(|line| line.at);
        let later = self.kept.partition_point(|line| line.at <= until);
        self.kept.drain(..later).collect()
    }

    /// How long the pod's lock was held, once it was set and released.
    pub fn held(&self, pod: &PodKey) -> Option<Duration> {
        self.held.get(pod).copied()
    }

    /// Nodes that are locked now.
    pub fn locked(&self) -> impl Iterator<Item = &str> {
        self.locks.keys().map(String::as_str)
    }
}

fn subject(holder: Option<&PodKey>, raw: &str) -> String {
    holder.map_or_else(|| raw.to_owned(), |holder| holder.name.to_string())
}

fn count(devices: &Devices) -> String {
    let part = |ids: &BTreeSet<String>, what: &str| match ids.first() {
        None => None,
        Some(one) if ids.len() == 1 => Some(one.clone()),
        Some(_) => Some(format!("{} {what}s", ids.len())),
    };
    let parts: Vec<String> = [part(&devices.gpu, "GPU"), part(&devices.rdma, "NIC")].into_iter().flatten().collect();
    if parts.is_empty() { "no devices".to_owned() } else { parts.join(" and ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "2026-11-21T02:35:12.123456789Z,default,p,u1";

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_lock_is_told_when_set_and_measured_when_released() {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.node(ms(1), "n", None), []);
        assert_eq!(timeline.node(ms(10), "n", Some(LOCK))[0].text, "lock set on n");
        assert_eq!(timeline.node(ms(12), "n", Some(LOCK)), [], "another change of the node");
        assert_eq!(timeline.locked().collect::<Vec<_>>(), ["n"]);
        let released = timeline.node(ms(25), "n", None);
        assert_eq!(
            (released[0].subject.as_str(), released[0].text.as_str()),
            ("p", "lock on n released after 15.0 ms")
        );
        assert_eq!(timeline.held(&PodKey::new("default", "p")), Some(ms(15)));
        assert_eq!(timeline.locked().count(), 0);
    }

    #[test]
    fn a_lock_handed_over_is_told_as_released_and_set() {
        let mut timeline = Timeline::default();
        timeline.node(ms(10), "n", Some(LOCK));
        let lines = timeline.node(ms(30), "n", Some("garbage"));
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1].subject, "garbage");
    }

    #[test]
    fn what_comes_late_is_told_in_its_place() {
        let mut timeline = Timeline::default();
        let line = |at, text: &str| Line { at: ms(at), subject: "p".to_owned(), text: text.to_owned() };
        timeline.keep([line(30, "released"), line(10, "bound")]);
        assert_eq!(timeline.due(ms(9)), []);
        timeline.keep([line(20, "answered"), line(30, "running")]);
        assert_eq!(timeline.due(ms(20)), [line(10, "bound"), line(20, "answered")]);
        assert_eq!(timeline.due(Duration::MAX), [line(30, "released"), line(30, "running")]);
    }

    #[test]
    fn an_answer_is_told_once() {
        let mut timeline = Timeline::default();
        let pod = PodKey::new("default", "p");
        assert!(timeline.answered(ms(1), &pod, "main", "nvidia.com/gpu", 1).is_some());
        assert!(timeline.answered(ms(2), &pod, "main", "nvidia.com/gpu", 1).is_none());
        assert!(timeline.answered(ms(2), &pod, "side", "nvidia.com/gpu", 1).is_some());
    }
}
