//! What is heard of a node's daemon. Every surface has its word, its sentence and the command that shows more from here.

use std::time::Duration;

use crate::help::Help;
use crate::pod::HandoffPod;

/// A node daemon renews its Lease every 30 s. One that has missed two renewals is late.
const LATE: Duration = Duration::from_secs(60);

/// Of one that has died.
const GONE: &str = "is gone: the kubelet offers";
/// Of one that has ended by itself.
const ENDED: &str = "was stopped";
/// Of a kubelet that has not registered its daemon.
const AWAY: &str = "is away: the node daemon runs and is not registered";
/// Of a kubelet that does not report, or reports that it is not ready.
const NOT_READY: &str = "is away or not well: the Node is not Ready";

/// What a daemon's state is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// How long ago its Lease was renewed; `None` without a Lease.
    pub renewed: Option<Duration>,
    /// Schedulers believe the Lease.
    pub is_live: bool,
    /// It has ended by itself, by its last word.
    pub has_ended: bool,
    /// The kubelet has registered it, by its own word, or there is nothing to register.
    pub is_registered: bool,
    /// The Node is Ready: its kubelet reports, and is well.
    pub is_ready: bool,
    /// Healthy devices of which the kubelet offers none.
    pub not_offered: Option<(usize, &'static str)>,
}

/// The state of a node's daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonState {
    /// It has never reported.
    Missing,
    /// It has never reported, and could not: the Node is not Ready, so that its kubelet starts no daemon either.
    NotStarted,
    /// The Node is not Ready: whatever the daemon says, its kubelet starts no pod.
    KubeletAway,
    /// It has died: the kubelet offers none of so many healthy GPUs or NICs, for which the daemon was registered.
    Gone(usize, &'static str),
    /// Its Lease has not been renewed for so long that schedulers do not believe it.
    Stale(Duration),
    /// It has missed two renewals.
    Late(Duration),
    /// It has ended by itself.
    Ended,
    /// It reports, and no kubelet has registered it.
    Unregistered,
    /// It reports.
    Fresh,
}

impl DaemonState {
    /// Judges a daemon. One that ends by itself takes its registrations back from its Lease first: that of one that has died names some.
    pub fn of(heard: Heard) -> Self {
        let Some(renewed) = heard.renewed else {
            return if heard.is_ready { Self::Missing } else { Self::NotStarted };
        };
        match heard.not_offered {
            _ if !heard.is_ready => Self::KubeletAway,
            Some((healthy, what)) if heard.is_registered => Self::Gone(healthy, what),
            _ if heard.has_ended => Self::Ended,
            _ if !heard.is_live => Self::Stale(renewed),
            _ if !heard.is_registered => Self::Unregistered,
            _ if renewed > LATE => Self::Late(renewed),
            _ => Self::Fresh,
        }
    }

    /// New pods with devices can come.
    pub fn serves(self) -> bool {
        matches!(self, Self::Late(_) | Self::Fresh)
    }

    /// One word, for tables and programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Missing | Self::NotStarted => "none",
            Self::KubeletAway => "away",
            Self::Gone(..) => "gone",
            Self::Stale(_) => "stale",
            Self::Late(_) => "late",
            Self::Ended => "stopped",
            Self::Unregistered => "unregistered",
            Self::Fresh => "fresh",
        }
    }

    /// What is wrong with the daemon of `node`. Durations are rough, so that a text which is followed does not change every second.
    pub fn fault(self, node: &str) -> Option<String> {
        Some(match self {
            Self::Missing => format!("no node daemon has reported from {node}"),
            Self::NotStarted => format!("{}; {}", Self::KubeletAway.fault(node)?, Self::Missing.fault(node)?),
            Self::KubeletAway => format!("the kubelet of {node} {NOT_READY}"),
            Self::Gone(healthy, what) => {
                format!("the node daemon of {node} {GONE} 0 of {healthy} {what}")
            }
            Self::Stale(silent) | Self::Late(silent) => {
                format!("the node daemon of {node} has not been heard for over {}", rough(silent))
            }
            Self::Ended => format!("the node daemon of {node} {ENDED}"),
            Self::Unregistered => format!("the kubelet of {node} {AWAY}"),
            Self::Fresh => return None,
        })
    }

    /// The same of a daemon that has died, for a rule that counts nodes.
    pub fn gone_with(name: &str) -> String {
        format!("have a node daemon that {GONE} no {name}")
    }

    /// What is wrong for a pod that is bound to `node`: the kubelet, or what its devices come from as long as it has not started.
    pub fn fault_for(self, pod: &HandoffPod, node: &str) -> Option<String> {
        let waits = !pod.has_started() && pod.asks_for_devices();
        let concerns =
            matches!(self, Self::KubeletAway | Self::NotStarted) || (waits && !self.serves() && self != Self::Missing);
        // A pod without devices needs no daemon.
        let state = if self == Self::NotStarted && !pod.asks_for_devices() { Self::KubeletAway } else { self };
        state.fault(node).filter(|_| concerns && pod.is_live())
    }

    /// The same of one that does not serve this resource.
    pub fn not_serving(self, name: &str) -> String {
        match self {
            Self::Ended => format!("have a node daemon that {ENDED}"),
            Self::Unregistered => format!("have a kubelet that {AWAY}"),
            Self::Missing | Self::NotStarted => "have no live node daemon".to_owned(),
            _ => format!("have a node daemon that does not serve {name}"),
        }
    }

    /// What an operator can do about one that serves nothing.
    pub fn help(self) -> Help {
        match self {
            Self::Unregistered | Self::KubeletAway | Self::NotStarted => Help::Kubelet,
            Self::Fresh | Self::Late(_) => Help::Registration,
            Self::Ended => Help::Stopped,
            _ => Help::Daemon,
        }
    }

    /// The command that shows the daemon's pod on `node`, or why its kubelet is away.
    pub fn look(self, node: &str) -> String {
        match self.help() {
            Help::Kubelet => format!("systemctl status kubelet, on the machine of {node}"),
            Help::Stopped => {
                "kubectl get daemonsets,pods -A -o wide -l app.kubernetes.io/name=baton-device-plugin".to_owned()
            }
            _ => format!(
                "kubectl get pods -A -o wide -l app.kubernetes.io/name=baton-device-plugin --field-selector spec.nodeName={node}"
            ),
        }
    }
}

/// The greatest of a few steps that has passed.
pub(super) fn rough(duration: Duration) -> &'static str {
    let steps = [(86_400, "a day"), (3600, "an hour"), (900, "15 min"), (300, "5 min"), (60, "a minute")];
    steps.into_iter().find(|(step, _)| duration.as_secs() >= *step).map_or("15 s", |(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handoff::testing::gpu_pod;
    use crate::pod::Phase;
    use baton_contract::key;

    #[test]
    fn a_daemon_is_judged_by_what_is_heard_and_offered() {
        let said = |state: DaemonState| (state.word(), state.serves(), state.fault("n").unwrap_or_default());
        let of = |renewed: Option<u64>, is_live, has_ended, is_registered, not_offered| {
            let renewed = renewed.map(Duration::from_secs);
            Heard { renewed, is_live, has_ended, is_registered, is_ready: true, not_offered }
        };
        let judged = |renewed, is_live, has_ended, is_registered, offers| {
            said(DaemonState::of(of(renewed, is_live, has_ended, is_registered, offers)))
        };
        let not_ready = |heard: Heard| said(DaemonState::of(Heard { is_ready: false, ..heard }));
        let heard = |renewed, is_live, is_registered, offers| judged(renewed, is_live, false, is_registered, offers);
        let ended = |renewed, is_live, offers| judged(Some(renewed), is_live, true, false, offers);
        let away = "the kubelet of n is away: the node daemon runs and is not registered";
        let gone = Some((8, "GPUs"));
        for (said, word, serves, fault) in [
            (heard(None, false, false, None), "none", false, "no node daemon has reported from n"),
            (heard(Some(3), true, true, None), "fresh", true, ""),
            (heard(Some(60), true, true, None), "fresh", true, ""),
            (heard(Some(61), true, true, None), "late", true, "of n has not been heard for over a minute"),
            (heard(Some(400), false, true, None), "stale", false, "of n has not been heard for over 5 min"),
            (heard(Some(3), true, false, None), "unregistered", false, away),
            (heard(Some(61), true, false, None), "unregistered", false, away),
            // The kubelet offers nothing because the daemon has ended: that is no death.
            (ended(3, true, gone), "stopped", false, "the node daemon of n was stopped"),
            (ended(400, false, None), "stopped", false, "the node daemon of n was stopped"),
            (heard(Some(3), true, true, gone), "gone", false, "of n is gone: the kubelet offers 0 of 8 GPUs"),
            (heard(Some(400), false, true, gone), "gone", false, "is gone"),
            (not_ready(of(None, false, false, false, None)), "none", false, "not Ready; no node daemon has"),
            (
                not_ready(of(Some(3), true, false, true, None)),
                "away",
                false,
                "of n is away or not well: the Node is not",
            ),
            (not_ready(of(Some(400), false, false, true, gone)), "away", false, "of n is away or not well"),
        ] {
            assert!(said.0 == word && said.1 == serves && said.2.contains(fault), "{said:?} {word} {fault}");
            assert_eq!(said.2.is_empty(), fault.is_empty(), "{said:?}");
        }
        assert_eq!(DaemonState::gone_with("GPUs"), "have a node daemon that is gone: the kubelet offers no GPUs");
    }

    #[test]
    fn a_bound_pod_hears_of_what_keeps_it_from_starting_and_of_a_kubelet_that_is_away() {
        let waits = gpu_pod("waits", 1);
        let runs = HandoffPod { phase: Phase::Running, ..waits.clone() };
        let plain = HandoffPod { containers: vec![].into(), ..waits.clone() };
        let ended = HandoffPod { phase: Phase::Failed, ..waits.clone() };
        let stale = DaemonState::Stale(Duration::from_secs(100));
        for (state, of_waiting, of_others) in [
            (DaemonState::Fresh, "", ""),
            (DaemonState::Late(Duration::from_secs(70)), "", ""),
            (DaemonState::Missing, "", ""),
            (stale, "the node daemon of n", ""),
            (DaemonState::KubeletAway, "the kubelet of n", "the kubelet of n"),
            (DaemonState::NotStarted, "the kubelet of n", "the kubelet of n"),
        ] {
            let said = |pod| state.fault_for(pod, "n").unwrap_or_default();
            assert!(!said(&plain).contains("daemon"), "it needs none");
            for (pod, words) in [(&waits, of_waiting), (&runs, of_others), (&plain, of_others), (&ended, "")] {
                let said = said(pod);
                assert!(said.starts_with(words) && said.is_empty() == words.is_empty(), "{state:?} {words}: {said}");
            }
        }
    }

    #[test]
    fn what_does_not_serve_a_resource_says_why_and_where_to_look() {
        let logs = "kubectl get pods -A -o wide -l app.kubernetes.io/name=baton-device-plugin --field-selector spec.nodeName=n";
        let kubelet = "systemctl status kubelet, on the machine of n";
        let both = "kubectl get daemonsets,pods -A -o wide -l app.kubernetes.io/name=baton-device-plugin";
        for (state, words, help, look) in [
            (DaemonState::Ended, "have a node daemon that was stopped", Help::Stopped, both),
            (DaemonState::Unregistered, "have a kubelet that is away", Help::Kubelet, kubelet),
            (DaemonState::Missing, "have no live node daemon", Help::Daemon, logs),
            (DaemonState::NotStarted, "have no live node daemon", Help::Kubelet, kubelet),
            (DaemonState::Fresh, "have a node daemon that does not serve nvidia.com/gpu", Help::Registration, logs),
        ] {
            let said = state.not_serving(key::NVIDIA_GPU);
            assert!(said.starts_with(words), "{state:?}: {said}");
            assert!(
                state.help() == help && state.look("n") == look,
                "{state:?}: {:?} {}",
                state.help(),
                state.look("n")
            );
        }
    }
}
