//! When the node lock goes. Only the value that was judged is ever removed; a call that was not the holder's never touches
//! it.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::inventory::NodeInventory;
use super::ledger::Ledger;
use super::pods::NodePods;
use crate::contract::{LockRead, PodKey, PodUid};
use crate::decide::lock::{GoneReason, HolderState, Named, judge_pod, names};
use crate::decide::pod::HandoffPod;

/// What to do with the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Nothing: no lock, or its holder still waits.
    Keep,
    /// The holder is not among this node's pods: read it live. It may be unbound yet, or gone.
    Ask(PodKey),
    /// Remove exactly this value.
    Release {
        /// The annotation's value.
        raw: Box<str>,
        /// Why.
        why: Why,
    },
}

/// Why a lock goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The last expected call of the holder was served.
    Served,
    /// The holder will never be served.
    Gone(GoneReason),
    /// The holder is being deleted and is not served any more.
    Deleting,
    /// The holder's own annotations cannot be used.
    Unusable,
}

impl Why {
    /// One word for metrics and logs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Gone(_) => "holder-gone",
            Self::Deleting => "holder-deleting",
            Self::Unusable => "unusable-assignment",
        }
    }
}

/// What is known of the holder beyond the watch.
#[derive(Debug, Clone, Copy)]
pub enum LiveHolder<'a> {
    /// Not read.
    NotRead,
    /// Read: there is no pod of that name.
    NotFound,
    /// Read: this pod.
    Found(&'a HandoffPod),
}

/// What a lock is judged by.
#[derive(Debug, Clone, Copy)]
pub struct LockSight<'a> {
    /// This node.
    pub node: &'a str,
    /// Its pods.
    pub pods: &'a NodePods,
    /// The holder, where it is not one of them.
    pub live: LiveHolder<'a>,
    /// What was served.
    pub ledger: &'a Ledger,
    /// What there is, and which names this agent serves.
    pub inventory: &'a NodeInventory,
    /// Holders whose own annotation was refused.
    pub unusable: &'a BTreeSet<PodUid>,
    /// For the end of a holder's grace period.
    pub wall: Timestamp,
}

/// Judges the lock of a node.
pub fn fate(lock: &LockRead, sight: &LockSight<'_>) -> Fate {
    let LockRead::Held { value, raw } = lock else { return Fate::Keep };
    let release = |why| Fate::Release { raw: raw.clone(), why };
    let holder = match sight.pods.iter().find(|pod| names(value, pod) == Named::Yes) {
        Some(pod) => pod,
        None => match (&value.holder, sight.live) {
            // A bare time that no pod of this node carries: its pod may be unbound yet. The scheduler's rules end it.
            (None, _) => return Fate::Keep,
            (Some(named), LiveHolder::NotRead) => return Fate::Ask(named.pod.clone()),
            (Some(_), LiveHolder::NotFound) => return release(Why::Gone(GoneReason::NotFound)),
            (Some(_), LiveHolder::Found(pod)) => pod,
        },
    };
    match judge_pod(value, holder, sight.node, sight.wall) {
        HolderState::Gone(reason) => release(Why::Gone(reason)),
        HolderState::Unknown | HolderState::Unbound(_) => Fate::Keep,
        // Bound here by another bind than this lock's: this lock never served anybody.
        HolderState::BoundHere(_) if names(value, holder) != Named::Yes => release(Why::Gone(GoneReason::Recreated)),
        HolderState::BoundHere(_) => fate_of(holder, sight).map_or(Fate::Keep, release),
    }
}

/// Why the lock of a holder that is bound here and alive goes, if it does.
fn fate_of(pod: &HandoffPod, sight: &LockSight<'_>) -> Option<Why> {
    if sight.ledger.fully_served(pod, sight.inventory) {
        return Some(Why::Served);
    }
    // Calls of a pod that is being deleted are refused, so it will never be served.
    if pod.deleting.is_some() {
        return Some(Why::Deleting);
    }
    sight.unusable.contains(&pod.pod.uid).then_some(Why::Unusable)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{
        NODE, container, gpu_pod, grant, granted, inventory, lock_of, pod, pods, with_assignment,
    };
    use super::*;
    use crate::contract::key;
    use crate::decide::pod::{ContainerKind, Deletion, Phase};

    fn judge(lock: &LockRead, all: &[&HandoffPod], live: LiveHolder<'_>, ledger: &Ledger) -> Fate {
        judge_with(lock, all, live, ledger, &BTreeSet::new())
    }

    fn judge_with(
        lock: &LockRead,
        all: &[&HandoffPod],
        live: LiveHolder<'_>,
        ledger: &Ledger,
        unusable: &BTreeSet<PodUid>,
    ) -> Fate {
        let (pods, inventory, wall) = (pods(all), inventory(8), Timestamp::UNIX_EPOCH);
        fate(lock, &LockSight { node: NODE, pods: &pods, live, ledger, inventory: &inventory, unusable, wall })
    }

    fn why(fate: Fate) -> Why {
        match fate {
            Fate::Release { why, .. } => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_lock_goes_after_the_last_expected_call_and_not_after_the_first() {
        let gpu = [(key::NVIDIA_GPU, 1)];
        let both = [(key::NVIDIA_GPU, 1), (key::RDMA, 100)];
        let pod =
            pod("a", vec![container("init", ContainerKind::Init, &gpu), container("main", ContainerKind::App, &both)]);
        let pod = with_assignment(pod, &[("init", &["GPU-0"]), ("main", &["GPU-0", "nic-0"])]);
        let lock = lock_of(&pod);
        let mut ledger = granted(&pod, &[("init", &["GPU-0"])]);
        assert_eq!(judge(&lock, &[&pod], LiveHolder::NotRead, &ledger), Fate::Keep);
        grant(&mut ledger, &pod, &[("main", &["GPU-0"])]);
        assert_eq!(judge(&lock, &[&pod], LiveHolder::NotRead, &ledger), Fate::Keep, "the NIC is still to come");
        grant(&mut ledger, &pod, &[("main", &["nic-0"])]);
        let raw = lock.raw().unwrap().into();
        assert_eq!(judge(&lock, &[&pod], LiveHolder::NotRead, &ledger), Fate::Release { raw, why: Why::Served });
    }

    #[test]
    fn a_holder_that_ended_or_is_being_deleted_or_has_a_bad_annotation_frees_the_lock() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let lock = lock_of(&pod);
        let ledger = Ledger::default();
        let mut failed = pod.clone();
        failed.phase = Phase::Failed;
        assert_eq!(why(judge(&lock, &[&failed], LiveHolder::NotRead, &ledger)), Why::Gone(GoneReason::Terminal));
        let mut deleting = pod.clone();
        deleting.deleting = Some(Deletion { at: Timestamp::MAX, grace_seconds: 30 });
        assert_eq!(why(judge(&lock, &[&deleting], LiveHolder::NotRead, &ledger)), Why::Deleting);
        let unusable = BTreeSet::from([pod.pod.uid.clone()]);
        let fate = judge_with(&lock, &[&pod], LiveHolder::NotRead, &ledger, &unusable);
        assert_eq!(why(fate), Why::Unusable);
    }

    #[test]
    fn a_holder_that_is_not_here_is_asked_for_and_only_proof_frees_its_lock() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let (lock, ledger) = (lock_of(&pod), Ledger::default());
        assert_eq!(judge(&lock, &[], LiveHolder::NotRead, &ledger), Fate::Ask(pod.pod.key.clone()));
        assert_eq!(why(judge(&lock, &[], LiveHolder::NotFound, &ledger)), Why::Gone(GoneReason::NotFound));
        let mut unbound = gpu_pod("a", 1);
        unbound.node = None;
        assert_eq!(judge(&lock, &[], LiveHolder::Found(&unbound), &ledger), Fate::Keep, "its bind is on the way");
        let mut recreated = unbound.clone();
        recreated.pod.uid = PodUid::new("new");
        assert_eq!(why(judge(&lock, &[], LiveHolder::Found(&recreated), &ledger)), Why::Gone(GoneReason::Recreated));
        let mut elsewhere = pod.clone();
        elsewhere.node = Some("node-b".into());
        assert_eq!(why(judge(&lock, &[], LiveHolder::Found(&elsewhere), &ledger)), Why::Gone(GoneReason::Elsewhere));
    }

    #[test]
    fn an_unknown_holder_is_left_to_the_schedulers_expiry() {
        for raw in ["yes", "2026-11-21T02:35:12Z"] {
            let lock = LockRead::parse(Some(raw));
            assert_eq!(judge(&lock, &[&gpu_pod("a", 1)], LiveHolder::NotRead, &Ledger::default()), Fate::Keep);
        }
        assert_eq!(judge(&LockRead::Free, &[], LiveHolder::NotRead, &Ledger::default()), Fate::Keep);
    }
}
