//! Health of RDMA NICs by the state of their ports: down at the first bad poll, up after several good ones.

use std::collections::BTreeMap;
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
}

/// Health of the NICs of a node, by id (PCI address): each is healthy until a poll says otherwise.
#[derive(Clone, Debug, Default)]
pub struct NicHealth {
    down: BTreeMap<String, NicDown>,
}

impl NicHealth {
    /// Forgets NICs that left the machine.
    pub fn retain(&mut self, present: impl Fn(&str) -> bool) {
        self.down.retain(|id, _| present(id));
    }

    /// Judges one poll: `Ok` when the NIC is up by its policy, `Err` with what is wrong. Returns the new health when it
    /// changed.
    pub fn poll(&mut self, id: &str, up: Result<(), LinkFault>, now: Duration) -> Option<bool> {
        match (up, self.down.get_mut(id)) {
            (Ok(()), None) => None,
            (Ok(()), Some(down)) => {
                down.good += 1;
                let back = down.good >= GOOD_POLLS;
                if back {
                    self.down.remove(id);
                }
                back.then_some(true)
            }
            (Err(fault), Some(down)) => {
                (down.good, down.fault) = (0, fault);
                None
            }
            (Err(fault), None) => {
                self.down.insert(id.to_owned(), NicDown { since: now, fault, good: 0 });
                Some(false)
            }
        }
    }

    /// What is wrong with a NIC and since when; `None` when it is healthy.
    pub fn fault(&self, id: &str) -> Option<(&LinkFault, Duration)> {
        self.down.get(id).map(|down| (&down.fault, down.since))
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

    #[test]
    fn a_nic_goes_down_at_the_first_bad_poll_and_up_after_three_good_ones() {
        let mut health = NicHealth::default();
        let polls = [true, false, false, true, true, true, true];
        let changes: Vec<_> = polls.iter().zip(0..).map(|(up, at)| poll(&mut health, *up, at)).collect();
        assert_eq!(changes, [None, Some(false), None, None, None, Some(true), None]);
        assert_eq!(health.fault(NIC), None);
    }

    #[test]
    fn a_flapping_link_stays_down() {
        let mut health = NicHealth::default();
        assert_eq!(poll(&mut health, false, 0), Some(false));
        for at in 1..50 {
            assert_eq!(poll(&mut health, at % 3 != 0, at), None, "{at}");
        }
        assert_eq!(health.fault(NIC), Some((&down(), Duration::ZERO)));
    }

    #[test]
    fn one_nic_says_nothing_about_another() {
        let mut health = NicHealth::default();
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
