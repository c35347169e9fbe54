//! Health of RDMA NICs by the state of their ports: down when a link stays down for a while, or at once where nothing is known of it; up
//! after several good polls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton_contract::HealthReason;
use baton_contract::word::word_enum;

word_enum! {
    /// Which ports of a NIC must be active.
    #[derive(Default)]
    PortPolicy {
        /// At least one.
        #[default]
        Any = "any",
        /// Every one.
        All = "all",
    }
}

impl PortPolicy {
    /// Whether a NIC whose ports are active as given is up. A NIC without ports is not.
    pub fn is_up(self, active: impl IntoIterator<Item = bool>) -> bool {
        let mut ports = active.into_iter().peekable();
        let some = ports.peek().is_some();
        match self {
            Self::Any => ports.any(|active| active),
            Self::All => some && ports.all(|active| active),
        }
    }
}

/// Good polls in a row that bring a NIC back.
const GOOD_POLLS: u32 = 3;

/// Why a NIC is out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFault {
    /// Reason.
    pub reason: HealthReason,
    /// What was seen.
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NicDown {
    since: Duration,
    fault: LinkFault,
    good: u32,
    /// It is out of service: the link did not come back in time.
    out: bool,
}

/// Health of the NICs of a node, by id (PCI address): each is healthy until a poll says otherwise.
#[derive(Clone, Debug)]
pub struct NicHealth {
    /// A link that was up is down when it has stayed so for this long.
    patience: Duration,
    down: BTreeMap<String, NicDown>,
    /// NICs that were up at some poll.
    proven: BTreeSet<String>,
}

impl NicHealth {
    /// Nothing known yet. A link that was up counts as down when it has stayed so for `patience`.
    pub fn new(patience: Duration) -> Self {
        Self { patience, down: BTreeMap::new(), proven: BTreeSet::new() }
    }

    /// Forgets NICs that left the machine.
    pub fn retain(&mut self, present: impl Fn(&str) -> bool) {
        self.down.retain(|id, _| present(id));
        self.proven.retain(|id| present(id));
    }

    /// It was up at some poll.
    pub fn is_proven(&self, id: &str) -> bool {
        self.proven.contains(id)
    }

    /// Judges one poll: `Ok` when the NIC is up by its policy, `Err` with what is wrong. Returns the new health when it
    /// changed.
    pub fn poll(&mut self, id: &str, up: Result<(), LinkFault>, now: Duration) -> Option<bool> {
        let Err(fault) = up else {
            self.proven.insert(id.to_owned());
            let down = self.down.get_mut(id)?;
            down.good += 1;
            let back = down.out && down.good >= GOOD_POLLS;
            if back || !down.out {
                self.down.remove(id);
            }
            return back.then_some(true);
        };
        // What was never seen up has no link that could come back in a moment, and what cannot be read is not served in hope.
        let at_once = fault.reason != HealthReason::LinkDown || !self.proven.contains(id);
        let down = NicDown { since: now, fault: fault.clone(), good: 0, out: false };
        let down = self.down.entry(id.to_owned()).or_insert(down);
        let goes = !down.out && (at_once || now.saturating_sub(down.since) >= self.patience);
        (down.good, down.fault, down.out) = (0, fault, down.out || goes);
        goes.then_some(false)
    }

    /// What is wrong with a NIC and since when; `None` when it is healthy.
    pub fn fault(&self, id: &str) -> Option<(&LinkFault, Duration)> {
        self.down.get(id).filter(|down| down.out).map(|down| (&down.fault, down.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NIC: &str = "0000:3b:00.0";

    fn down() -> LinkFault {
        LinkFault { reason: HealthReason::LinkDown, message: "port 1 is Down".into() }
    }

    fn poll(health: &mut NicHealth, up: bool, at: u64) -> Option<bool> {
        health.poll(NIC, if up { Ok(()) } else { Err(down()) }, Duration::from_secs(at))
    }

    /// Polls every five seconds, `+` good and `-` bad; the changes, as `U` and `D`.
    fn changes(health: &mut NicHealth, polls: &str) -> String {
        let word = |change| match change {
            None => '.',
            Some(true) => 'U',
            Some(false) => 'D',
        };
        polls.chars().zip(0..).map(|(sign, at)| word(poll(health, sign == '+', at * 5))).collect()
    }

    #[test]
    fn a_link_counts_as_down_after_ten_seconds_and_as_up_after_three_good_polls() {
        for (polls, expected) in [
            ("+---+++", "...D..U"),
            ("+--+--+--+", ".........."),
            ("+---++-+++", "...D.....U"),
            ("+----", "...D."),
            // One that was never seen up is down at once.
            ("---+++---", "D....U..D"),
            ("-++-+++", "D.....U"),
        ] {
            assert_eq!(changes(&mut NicHealth::new(Duration::from_secs(10)), polls), expected, "{polls}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_out_of_service_at_once_and_keeps_its_time() {
        let mut health = NicHealth::new(Duration::from_secs(10));
        assert_eq!(changes(&mut health, "+--"), "...");
        assert_eq!((health.fault(NIC), health.is_proven(NIC)), (None, true));
        let hangs = LinkFault { reason: HealthReason::NicTimeout, message: "stuck".into() };
        assert_eq!(health.poll(NIC, Err(hangs.clone()), Duration::from_secs(12)), Some(false));
        assert_eq!(health.fault(NIC), Some((&hangs, Duration::from_secs(5))), "since it was last well");
    }

    #[test]
    fn one_nic_says_nothing_about_another() {
        let mut health = NicHealth::new(Duration::ZERO);
        poll(&mut health, false, 0);
        assert_eq!(health.fault("0000:5e:00.0"), None);
        health.retain(|_| false);
        assert_eq!(health.fault(NIC), None);
    }

    #[test]
    fn any_needs_one_active_port_and_all_needs_every_one() {
        let up = |policy: PortPolicy, ports: &[bool]| policy.is_up(ports.iter().copied());
        assert!(up(PortPolicy::Any, &[false, true]));
        assert!(!up(PortPolicy::All, &[false, true]));
        assert!(up(PortPolicy::All, &[true, true]));
        assert!(!up(PortPolicy::Any, &[false]));
        assert!(!up(PortPolicy::Any, &[]) && !up(PortPolicy::All, &[]), "no port, no traffic");
        assert_eq!("all".parse(), Ok(PortPolicy::All));
        assert!("some".parse::<PortPolicy>().is_err());
    }
}
