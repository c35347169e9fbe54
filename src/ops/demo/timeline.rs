//! The events of the pods, from watches: each change that matters is one line with its time, and the duration of every lock is
//! measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use baton_contract::{LockRead, PodKey};
use baton_decide::pod::{HandoffPod, Phase};

use super::report::DeviceIds;

/// One line of the story.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoryLine {
    /// Since the start.
    pub at: Duration,
    /// Pod or node that it is about.
    pub subject: String,
    pub text: String,
    /// The part of a pod's way that it is.
    pub step: StoryStep,
    /// The node whose lock it is about.
    pub node: Option<String>,
}

/// The parts of a pod's way, each the cause of the next. Two watches may show an effect before its cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoryStep {
    /// Created.
    Submitted,
    /// The lock of its node names it.
    Locked,
    /// It has its node.
    Bound,
    /// The node daemon has handed devices out.
    Answered,
    /// The lock is gone.
    Released,
    /// It runs.
    Running,
    /// It has ended.
    Ended,
}

impl StoryLine {
    /// A line about no lock.
    pub fn new(at: Duration, subject: &str, text: String, step: StoryStep) -> Self {
        Self { at, subject: subject.to_owned(), text, step, node: None }
    }

    /// It happened before `other`, whenever they were seen: a pod runs whether its lock is released or not.
    fn causes(&self, other: &Self) -> bool {
        let own = self.subject == other.subject && self.step != StoryStep::Released && self.step < other.step;
        let next = self.step == StoryStep::Released && other.step == StoryStep::Locked && self.node == other.node;
        own || next
    }
}

impl fmt::Display for StoryLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3}s  {:<18} {}", self.at.as_secs_f64(), self.subject, self.text)
    }
}

/// The story so far.
#[derive(Debug, Default)]
pub struct Timeline {
    /// The lock on each node, and since when.
    locks: BTreeMap<String, (String, Option<PodKey>, Duration)>,
    pods: BTreeMap<PodKey, PrintedSteps>,
    held: BTreeMap<PodKey, Duration>,
    /// Lines that were not printed yet.
    kept: Vec<StoryLine>,
}

/// What was already printed of one pod.
#[derive(Debug, Default)]
struct PrintedSteps {
    steps: BTreeSet<StoryStep>,
    answered: BTreeSet<(String, String)>,
}

impl Timeline {
    /// A node's lock annotation, as a watch shows it.
    pub fn node(&mut self, at: Duration, node: &str, lock: Option<&str>) -> Vec<StoryLine> {
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
            lines.push(StoryLine { at, subject, text, step: StoryStep::Released, node: Some(node.to_owned()) });
        }
        if let Some(raw) = lock {
            let holder = match LockRead::parse(Some(raw)) {
                LockRead::Held { value, .. } => value.holder.map(|holder| holder.pod),
                LockRead::Free | LockRead::Malformed { .. } => None,
            };
            let (subject, text) = (subject(holder.as_ref(), raw), format!("lock set on {node}"));
            lines.push(StoryLine { at, subject, text, step: StoryStep::Locked, node: Some(node.to_owned()) });
            self.locks.insert(node.to_owned(), (raw.to_owned(), holder, at));
        }
        lines
    }

    /// A pod, as a watch shows it.
    pub fn pod(&mut self, at: Duration, pod: &HandoffPod) -> Vec<StoryLine> {
        let shown = self.pods.entry(pod.pod.key.clone()).or_default();
        let mut lines = Vec::new();
        let mut show = |text: String, step| lines.push(StoryLine::new(at, &pod.pod.key.name, text, step));
        if let Some(node) = pod.node.as_deref().filter(|_| shown.steps.insert(StoryStep::Bound)) {
            let annotation = pod.assignment.device_allocated.as_deref().unwrap_or_default();
            let devices = DeviceIds::of_annotation(annotation).unwrap_or_default();
            show(format!("bound to {node} with {}", count(&devices)), StoryStep::Bound);
        }
        if pod.phase == Phase::Running && shown.steps.insert(StoryStep::Running) {
            show("running".to_owned(), StoryStep::Running);
        }
        if pod.phase.is_terminal() && shown.steps.insert(StoryStep::Ended) {
            show(format!("{:?}", pod.phase).to_lowercase(), StoryStep::Ended);
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
    ) -> Option<StoryLine> {
        let shown = self.pods.entry(pod.clone()).or_default();
        shown.answered.insert((container.to_owned(), resource.to_owned())).then(|| {
            let ids = format!("{ids} id{}", if ids == 1 { "" } else { "s" });
            let text = format!("Allocate answered: container {container}, {resource}, {ids}");
            StoryLine::new(at, &pod.name, text, StoryStep::Answered)
        })
    }

    /// Keeps lines until they are due.
    pub fn keep(&mut self, lines: impl IntoIterator<Item = StoryLine>) {
        self.kept.extend(lines);
    }

    /// The lines up to `until`, in the order of their times. A cause that was seen after its effect happened no later than that.
    pub fn due(&mut self, until: Duration) -> Vec<StoryLine> {
        loop {
            let earliest = |at: usize| {
                let line = &self.kept[at];
                let later =
                    self.kept[at + 1..].iter().filter(|other| line.step == StoryStep::Released && line.causes(other));
                let own = self.kept.iter().filter(|other| other.subject == line.subject && line.causes(other));
                later.chain(own).map(|other| other.at).min().filter(|earliest| *earliest < line.at)
            };
            let Some((at, time)) = (0..self.kept.len()).find_map(|at| Some((at, earliest(at)?))) else { break };
            self.kept[at].at = time;
        }
        self.kept.sort_by_key(|line| (line.at, line.step));
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

fn count(devices: &DeviceIds) -> String {
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
        let line = |at, step| StoryLine::new(ms(at), "p", String::new(), step);
        timeline.keep([line(30, StoryStep::Released), line(10, StoryStep::Bound)]);
        assert_eq!(timeline.due(ms(9)), []);
        timeline.keep([line(20, StoryStep::Answered), line(30, StoryStep::Running)]);
        assert_eq!(timeline.due(ms(20)), [line(10, StoryStep::Bound), line(20, StoryStep::Answered)]);
        assert_eq!(timeline.due(Duration::MAX), [line(30, StoryStep::Released), line(30, StoryStep::Running)]);
    }

    #[test]
    fn no_effect_is_told_before_its_cause_whichever_watch_was_first() {
        let mut timeline = Timeline::default();
        let line = |at, pod: &str, step| StoryLine {
            node: matches!(step, StoryStep::Locked | StoryStep::Released).then(|| "n".to_owned()),
            ..StoryLine::new(ms(at), pod, String::new(), step)
        };
        // The watch of pods is ahead of that of nodes: b is bound before a's lock is seen to go.
        timeline.keep([
            line(10, "a", StoryStep::Locked),
            line(20, "b", StoryStep::Bound),
            line(12, "a", StoryStep::Answered),
        ]);
        timeline.keep([
            line(25, "a", StoryStep::Released),
            line(26, "b", StoryStep::Locked),
            line(9, "a", StoryStep::Bound),
        ]);
        let printed: Vec<_> =
            timeline.due(Duration::MAX).iter().map(|line| (line.subject.clone(), line.step)).collect();
        let at = |subject: &str, step| printed.iter().position(|line| *line == (subject.to_owned(), step)).unwrap();
        assert_eq!(printed.len(), 6);
        assert!(
            at("a", StoryStep::Locked) < at("a", StoryStep::Bound)
                && at("a", StoryStep::Bound) < at("a", StoryStep::Answered)
        );
        assert!(
            at("a", StoryStep::Released) < at("b", StoryStep::Locked)
                && at("b", StoryStep::Locked) < at("b", StoryStep::Bound),
            "{printed:?}"
        );
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
