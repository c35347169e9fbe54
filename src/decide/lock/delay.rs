//! A lock whose holder is bound and not served: whether that is as it should be, and what does not answer. Every surface says the
//! same sentence of it.

use std::fmt;
use std::time::Duration;

use baton_contract::PodKey;
use serde::Serialize;

/// Where all answer, a hand-off takes less.
pub const USUAL: Duration = Duration::from_secs(2);
/// For longer than this no kubelet is merely busy: it asks for a pod's devices before it pulls an image.
pub const SLOW: Duration = Duration::from_secs(15);
/// A node daemon renews its Lease every 30 s. One that has missed two renewals is late.
pub const LATE: Duration = Duration::from_secs(60);

/// What is known of such a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockDelay<'a> {
    /// The node.
    pub node: &'a str,
    /// The pod that is bound there and has no devices yet.
    pub holder: &'a PodKey,
    /// How long the lock has been standing.
    pub age: Duration,
    /// How long ago the node's daemon renewed its Lease; `None` where there is none.
    pub daemon: Option<Duration>,
    /// The Node is Ready: its kubelet reports.
    pub kubelet_ready: bool,
}

/// How a lock is judged, by its age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Delay {
    /// Most locks are as old.
    Usual,
    /// The kubelet is busy, with many pods at once say.
    Slow,
    /// Something does not answer.
    Stuck,
}

impl Delay {
    /// Of a lock of this age.
    pub fn of(age: Duration) -> Self {
        match age {
            age if age <= USUAL => Self::Usual,
            age if age <= SLOW => Self::Slow,
            _ => Self::Stuck,
        }
    }
}

impl LockDelay<'_> {
    /// How it is judged.
    pub fn judge(&self) -> Delay {
        Delay::of(self.age)
    }

    /// The command that shows more of what does not answer.
    pub fn look(&self) -> String {
        let LockDelay { node, holder, .. } = self;
        if self.daemon.is_none_or(|daemon| daemon > LATE) {
            format!(
                "kubectl get pods -A -o wide -l app.kubernetes.io/name=baton-device-plugin --field-selector spec.nodeName={node}"
            )
        } else if self.kubelet_ready {
            format!("kubectl -n {} describe pod {}", holder.namespace, holder.name)
        } else {
            format!("kubectl describe node {node}")
        }
    }
}

/// Without the node's and the pod's names at the beginning: the row or the sentence before has them. Durations are rough, so that a row
/// that is followed does not change every second.
impl fmt::Display for LockDelay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.node;
        match self.judge() {
            Delay::Usual => return f.write_str("normal: the kubelet is admitting the pod"),
            Delay::Slow => write!(f, "slow: not served yet, usual are less than {} s; ", USUAL.as_secs())?,
            Delay::Stuck => write!(f, "stuck: not served for over {}; ", rough(self.age))?,
        }
        match self.daemon {
            None => write!(f, "no node daemon has reported from {node}"),
            Some(silent) if silent > LATE => {
                write!(f, "the node daemon of {node} has not been heard for over {}", rough(silent))
            }
            Some(_) if !self.kubelet_ready => write!(f, "the kubelet of {node} does not report: the Node is not Ready"),
            Some(_) => f.write_str("the kubelet has not asked for all of its devices"),
        }
    }
}

fn rough(duration: Duration) -> &'static str {
    let steps = [(86_400, "a day"), (3600, "an hour"), (900, "15 min"), (300, "5 min"), (60, "a minute")];
    steps.into_iter().find(|(step, _)| duration.as_secs() >= *step).map_or("15 s", |(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_judged_by_its_age_and_names_what_does_not_answer() {
        let holder = PodKey::new("ml", "a");
        let delay = |age, daemon: Option<u64>, kubelet_ready| {
            let daemon = daemon.map(Duration::from_secs);
            let delay = LockDelay { node: "n", holder: &holder, age: Duration::from_secs(age), daemon, kubelet_ready };
            (delay.judge(), delay.to_string(), delay.look())
        };
        assert_eq!(delay(2, None, false).1, "normal: the kubelet is admitting the pod");
        for (age, daemon, ready, judged, words, look) in [
            (15, Some(3), true, Delay::Slow, "slow: not served yet", "describe pod a"),
            (16, Some(3), true, Delay::Stuck, "the kubelet has not asked for all of its devices", "-n ml describe pod"),
            (
                84,
                Some(84),
                true,
                Delay::Stuck,
                "stuck: not served for over a minute; the node daemon of n has not been heard for over a minute",
                "spec.nodeName=n",
            ),
            (84, None, true, Delay::Stuck, "no node daemon has reported from n", "spec.nodeName=n"),
            (84, Some(60), false, Delay::Stuck, "the kubelet of n does not report", "describe node n"),
        ] {
            let (is, said, by) = delay(age, daemon, ready);
            assert!(is == judged && said.contains(words) && by.contains(look), "{is:?} {said} {by}");
        }
    }
}
