//! A lock whose holder is bound and not served: whether that is as it should be, and what does not answer. Every surface says the
//! same sentence of it.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::acquire::BoundHolder;
use super::age::LockAge;
use super::daemon::{DaemonState, rough};
use super::holder::HolderState;
use crate::help::Help;
use baton_contract::{LockRead, PodKey};

/// Where all answer, a hand-off takes less.
pub const USUAL: Duration = Duration::from_secs(2);
/// For longer than this no kubelet is merely busy: it asks for a pod's devices before it pulls an image.
pub const SLOW: Duration = Duration::from_secs(15);

/// The kubelet admits pods one after the other and waits for each answer without an end: it neither probes nor stops a pod meanwhile. Seen
/// with 1.37.2. The pattern is of the program's name alone: a shell or a log reader that names it has another first word.
const HANGS: &str = "if the node daemon hangs, kill it on its machine: `pkill -KILL -f '^[^ ]*baton.device-plugin'`; it starts again, and \
                     running pods keep their devices; to delete the daemon's pod does nothing while the kubelet waits for its answer; a pod that \
                     the kubelet refuses meanwhile fails: its owner, or you, create another one";

/// What is known of such a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockDelay<'a> {
    /// The node.
    pub node: &'a str,
    /// The pod that is bound there and has no devices yet.
    pub holder: &'a PodKey,
    /// How old the lock is.
    pub age: LockAge,
    /// The node's daemon.
    pub daemon: DaemonState,
}

impl LockAge {
    /// How it is judged.
    pub fn judge(self) -> Delay {
        self.known().map_or(Delay::Ahead, Delay::of)
    }
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
    /// Its time is in the future: it may be as bad as a stuck one.
    Ahead,
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

/// It stands until something is done or it is taken over: no other pod with devices comes meanwhile. What its holder needs no more is
/// taken over at once.
pub fn stands(lock: &LockRead, holder: &HolderState, bound: BoundHolder, wall: Timestamp) -> bool {
    match (lock, holder) {
        (LockRead::Free, _) | (_, HolderState::Gone(_)) => false,
        (LockRead::Malformed { .. }, _) => true,
        (LockRead::Held { .. }, _) if bound == BoundHolder::Served => false,
        (LockRead::Held { value, .. }, _) => LockAge::of(value, wall).judge() >= Delay::Stuck,
    }
}

impl LockDelay<'_> {
    /// How it is judged.
    pub fn judge(&self) -> Delay {
        self.age.judge()
    }

    /// What `explain pod` itself advises.
    pub fn advice(&self) -> String {
        let LockDelay { node, holder, daemon, .. } = self;
        let look = daemon.look(node);
        match daemon {
            DaemonState::Fresh => format!(
                "Read the logs of the kubelet of {node} and of the node daemon, whose pod is named by `{look}`; {HANGS}; the lock also \
                 goes once {holder} is deleted, which waits for that kubelet, too"
            ),
            _ if daemon.help() == Help::Kubelet => format!(
                "Look at the kubelet of {node}: on the machine `systemctl status kubelet` and `journalctl -u kubelet` say why. Once the \
                 kubelet answers, {holder} starts and the lock goes; to delete {holder} does not help before that"
            ),
            _ => format!(
                "Look at what does not answer: `{look}`; {holder} starts and the lock goes once it does; {HANGS}"
            ),
        }
    }

    /// The command that says what does not answer, and what helps.
    pub fn look(&self) -> String {
        format!("baton explain pod {}", self.holder)
    }
}

/// Without the node's and the pod's names at the beginning: the row or the sentence before has them. Durations are rough, so that a row
/// that is followed does not change every second.
impl fmt::Display for LockDelay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.node;
        let fault = self.daemon.fault(node);
        match self.judge() {
            Delay::Usual if fault.is_none() => return f.write_str("normal: the kubelet is admitting the pod"),
            Delay::Usual => f.write_str("not served yet; ")?,
            Delay::Slow => write!(f, "slow: not served yet, usually within {} s; ", USUAL.as_secs())?,
            Delay::Stuck => write!(f, "stuck: not served for over {}; ", rough(self.age.distance()))?,
            Delay::Ahead => write!(f, "not served yet; the time in its lock is in the future: {}; ", LockAge::AHEAD)?,
        }
        let unknown = "the kubelet has not asked for all of its devices, or the node daemon has not answered";
        f.write_str(fault.as_deref().unwrap_or(unknown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_judged_by_its_age_and_names_what_does_not_answer() {
        let holder = PodKey::new("ml", "a");
        let delay = |age, daemon| {
            let age = LockAge::Since(Duration::from_secs(age));
            let delay = LockDelay { node: "n", holder: &holder, age, daemon };
            (delay.judge(), delay.to_string(), delay.advice())
        };
        assert_eq!(delay(2, DaemonState::Fresh).1, "normal: the kubelet is admitting the pod");
        let away = "not served yet; the kubelet of n is away";
        assert!(delay(2, DaemonState::Unregistered).1.starts_with(away));
        for (age, daemon, judged, words, look) in [
            (15, DaemonState::Fresh, Delay::Slow, "slow: not served yet", "Read the logs"),
            (
                16,
                DaemonState::Fresh,
                Delay::Stuck,
                "the kubelet has not asked for all of its devices, or the node daemon has not answered",
                "pkill -KILL",
            ),
            (
                84,
                DaemonState::Late(Duration::from_secs(84)),
                Delay::Stuck,
                "stuck: not served for over a minute; the node daemon of n has not been heard for over a minute",
                "spec.nodeName=n",
            ),
            (84, DaemonState::Missing, Delay::Stuck, "no node daemon has reported from n", "spec.nodeName=n"),
            (84, DaemonState::NotStarted, Delay::Stuck, "; the kubelet of n is away", "kubelet of n: on the machine"),
            (84, DaemonState::Ended, Delay::Stuck, "; the node daemon of n was stopped", "get daemonsets,pods"),
            (84, DaemonState::Unregistered, Delay::Stuck, "; the kubelet of n is away", "kubelet of n: on the machine"),
            (
                84,
                DaemonState::KubeletAway,
                Delay::Stuck,
                "the kubelet of n is away or not well: the Node",
                "kubelet of n: on the machine",
            ),
        ] {
            let (is, said, by) = delay(age, daemon);
            assert!(is == judged && said.contains(words) && by.contains(look), "{is:?} {said} {by}");
        }
    }

    #[test]
    fn a_lock_whose_time_is_in_the_future_is_never_normal() {
        let lock = LockRead::parse(Some("2026-11-21T02:00:10Z,ml,a,u"));
        let LockRead::Held { value, .. } = &lock else { unreachable!() };
        let holder = PodKey::new("ml", "a");
        let unbound = HolderState::Unbound(baton_contract::PodRef::new("ml", "a", "u"));
        for (wall, judged, words) in [
            ("2026-11-21T02:00:12Z", Delay::Usual, "for 2 s"),
            ("2026-11-21T02:00:08Z", Delay::Usual, "for 0 s"),
            ("2026-11-21T02:00:07Z", Delay::Ahead, "with a time 3 s in the future"),
            ("2026-11-20T02:00:10Z", Delay::Ahead, "with a time 86400 s in the future"),
        ] {
            let wall: Timestamp = wall.parse().unwrap();
            let age = LockAge::of(value, wall);
            assert_eq!((age.judge(), &*age.to_string()), (judged, words));
            let said = LockDelay { node: "n", holder: &holder, age, daemon: DaemonState::Fresh }.to_string();
            assert_eq!(said.starts_with("normal"), judged == Delay::Usual, "{said}");
            assert_eq!(said.contains("in the future: a clock is wrong"), judged == Delay::Ahead, "{said}");
            assert_eq!(stands(&lock, &unbound, BoundHolder::Waits, wall), judged == Delay::Ahead, "{said}");
        }
    }

    #[test]
    fn a_lock_stands_once_it_is_stuck_and_its_holder_needs_it() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let held = LockRead::parse(Some("2026-11-21T02:00:00.000000001Z,ml,a,u"));
        let (soon, late) = (at("2026-11-21T02:00:10Z"), at("2026-11-21T02:05:00Z"));
        let of = |lock: &LockRead, bound, wall| stands(lock, &HolderState::Unknown, bound, wall);
        for (lock, bound, wall, is_so) in [
            (&LockRead::parse(None), BoundHolder::Waits, late, false),
            (&LockRead::parse(Some("nonsense")), BoundHolder::Waits, late, true),
            (&held, BoundHolder::Waits, soon, false),
            (&held, BoundHolder::Waits, late, true),
            (&held, BoundHolder::Served, late, false),
        ] {
            assert_eq!(of(lock, bound, wall), is_so, "{lock:?} {bound:?} {wall}");
        }
    }
}
