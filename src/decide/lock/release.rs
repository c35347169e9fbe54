//! Why a node lock ends, and the node daemon's rule for the lock of its node. Only the exact value that was judged is ever removed.
//!
//! | who | where the rule stands | its reasons |
//! | --- | --- | --- |
//! | node daemon | [`judge_release`] | Served, Gone, Deleting, Unusable |
//! | scheduler that wants the lock, or sweeps it | [`acquire`](super::acquire()) | Gone, Expired, Started, Served; Unserved only where it wants it |
//! | scheduler, for a lock of its own | `crate::bind`: `bound`, `withdraw`, `release_abandoned` | NoCall, BindFailed, Abandoned |
//!
//! TYJob controller and commands end no lock. Every writer goes through `cluster::node_lock`.

use std::fmt;

use jiff::Timestamp;

use super::holder::{GoneReason, HolderState, judge_pod};
use super::owner::{LockMatch, names};
use crate::pod::HandoffPod;
use baton_contract::{LockRead, PodKey};

/// Why a lock ends: why it is removed, or why another pod takes it over ([`Intent::TakeOver`](super::Intent::TakeOver)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseReason {
    /// The last expected call of the holder was served.
    Served,
    /// The holder will never be served.
    Gone(GoneReason),
    /// The holder is being deleted: its calls are refused, so it will not be served any more.
    Deleting,
    /// The holder's own annotations cannot be used.
    Unusable,
    /// The lock has expired, and its holder is unknown or was never bound.
    Expired,
    /// The lock has expired, and containers of its holder have started: no Allocate call will come.
    Started,
    /// The lock has expired, and its holder is bound and was not served, although the node's daemon is there.
    Unserved,
    /// The holder is not bound and no bind of it is under way.
    Abandoned,
    /// The bind under this lock failed or was given up.
    BindFailed,
    /// The holder is bound, and its containers cause no Allocate call that would end the lock.
    NoCall,
}

impl ReleaseReason {
    /// One word, for the metric of releases by the node daemon.
    pub fn word(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Gone(_) => "holder-gone",
            Self::Deleting => "holder-deleting",
            Self::Unusable => "unusable-assignment",
            Self::Expired => "expired",
            Self::Started => "holder-started",
            Self::Unserved => "holder-unserved",
            Self::Abandoned => "abandoned",
            Self::BindFailed => "bind-failed",
            Self::NoCall => "no-call",
        }
    }
}

impl fmt::Display for ReleaseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Served => "its holder has all its devices",
            Self::Gone(reason) => return write!(f, "its holder {reason}"),
            Self::Deleting => "its holder is being deleted",
            Self::Unusable => "the assignment of its holder cannot be used",
            Self::Expired => "it has expired",
            Self::Started => "it has expired, and its holder runs already",
            Self::Unserved => "it has expired, and its holder was not served",
            Self::Abandoned => "its bind was abandoned",
            Self::BindFailed => "its bind did not succeed",
            Self::NoCall => "no Allocate call will come",
        })
    }
}

/// How far the node daemon has served a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderProgress {
    /// Every expected call was answered.
    Served,
    /// Calls are still to come.
    Waiting,
    /// The pod's own annotations were refused.
    Unusable,
}

/// What the node daemon does with the lock of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReleaseIntent {
    /// Nothing: there is no lock, or its holder still waits.
    Keep,
    /// Read the holder from the API server: it is not among the pods of this node, so it is not bound yet, or gone.
    ReadHolder(PodKey),
    /// Remove exactly this value.
    Release {
        /// The annotation's value.
        raw: Box<str>,
        /// Why.
        reason: ReleaseReason,
    },
}

/// The holder as the API server answered a live read.
#[derive(Debug, Clone, Copy)]
pub enum LiveHolder<'a> {
    /// Not read.
    NotRead,
    /// There is no pod of that name.
    NotFound,
    /// This pod.
    Found(&'a HandoffPod),
}

/// Judges the lock of `node` for its node daemon: by the pods that are bound there, by `live` where the holder is none of them,
/// and by what the daemon has served.
pub fn judge_release<'a>(
    lock: &LockRead,
    node: &str,
    mut pods: impl Iterator<Item = &'a HandoffPod>,
    live: LiveHolder<'a>,
    progress: impl FnOnce(&HandoffPod) -> HolderProgress,
    wall: Timestamp,
) -> ReleaseIntent {
    let LockRead::Held { value, raw } = lock else { return ReleaseIntent::Keep };
    let release = |reason| ReleaseIntent::Release { raw: raw.clone(), reason };
    let holder = match pods.find(|pod| names(value, pod) == LockMatch::ThisBind) {
        Some(pod) => pod,
        None => match (&value.holder, live) {
            // A bare time that no pod of this node carries: its pod may not be bound yet. The scheduler's rules end it.
            (None, _) => return ReleaseIntent::Keep,
            (Some(named), LiveHolder::NotRead) => return ReleaseIntent::ReadHolder(named.pod.clone()),
            (Some(_), LiveHolder::NotFound) => return release(ReleaseReason::Gone(GoneReason::NotFound)),
            (Some(_), LiveHolder::Found(pod)) => pod,
        },
    };
    match judge_pod(value, holder, node, wall) {
        HolderState::Gone(reason) => release(ReleaseReason::Gone(reason)),
        HolderState::Unknown | HolderState::Unbound(_) => ReleaseIntent::Keep,
        // Bound here by another bind than this lock's: no pod is served under this lock.
        HolderState::BoundHere(_) if names(value, holder) != LockMatch::ThisBind => {
            release(ReleaseReason::Gone(GoneReason::Recreated))
        }
        HolderState::BoundHere(_) => match progress(holder) {
            HolderProgress::Served => release(ReleaseReason::Served),
            _ if holder.deleting.is_some() => release(ReleaseReason::Deleting),
            HolderProgress::Unusable => release(ReleaseReason::Unusable),
            HolderProgress::Waiting => ReleaseIntent::Keep,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::handoff::testing::{NODE, container, gpu_pod, grant, granted, inventory, lock_of, pod, with_assignment};
    use crate::handoff::{Admission, Ledger};
    use crate::pod::{ContainerKind, Deletion, Phase};
    use baton_contract::{LockFormat, LockValue, PodUid, key};
    use jiff::SignedDuration;

    fn judge(lock: &LockRead, all: &[&HandoffPod], live: LiveHolder<'_>, ledger: &Ledger) -> ReleaseIntent {
        let progress = |pod: &HandoffPod| ledger.progress(pod, &inventory(8));
        judge_release(lock, NODE, all.iter().copied(), live, progress, Timestamp::UNIX_EPOCH)
    }

    fn reason(intent: ReleaseIntent) -> ReleaseReason {
        match intent {
            ReleaseIntent::Release { reason, .. } => reason,
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
        assert_eq!(judge(&lock, &[&pod], LiveHolder::NotRead, &ledger), ReleaseIntent::Keep);
        grant(&mut ledger, &pod, &[("main", &["GPU-0"])]);
        assert_eq!(
            judge(&lock, &[&pod], LiveHolder::NotRead, &ledger),
            ReleaseIntent::Keep,
            "the NIC is still to come"
        );
        grant(&mut ledger, &pod, &[("main", &["nic-0"])]);
        let raw = lock.raw().unwrap().into();
        assert_eq!(
            judge(&lock, &[&pod], LiveHolder::NotRead, &ledger),
            ReleaseIntent::Release { raw, reason: ReleaseReason::Served }
        );
    }

    #[test]
    fn a_holder_that_ended_or_is_being_deleted_or_has_a_bad_annotation_frees_the_lock() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let lock = lock_of(&pod);
        let ledger = Ledger::default();
        let mut failed = pod.clone();
        failed.phase = Phase::Failed;
        assert_eq!(
            reason(judge(&lock, &[&failed], LiveHolder::NotRead, &ledger)),
            ReleaseReason::Gone(GoneReason::Terminal)
        );
        let mut deleting = pod.clone();
        deleting.deleting = Some(Deletion { at: Timestamp::MAX, grace_seconds: 30 });
        assert_eq!(reason(judge(&lock, &[&deleting], LiveHolder::NotRead, &ledger)), ReleaseReason::Deleting);
        let mut refused = ledger;
        refused.ends([pod.pod.uid.clone()], Admission::Unusable);
        assert_eq!(reason(judge(&lock, &[&pod], LiveHolder::NotRead, &refused)), ReleaseReason::Unusable);
    }

    #[test]
    fn a_holder_that_is_not_here_is_asked_for_and_only_proof_frees_its_lock() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let (lock, ledger) = (lock_of(&pod), Ledger::default());
        assert_eq!(judge(&lock, &[], LiveHolder::NotRead, &ledger), ReleaseIntent::ReadHolder(pod.pod.key.clone()));
        assert_eq!(reason(judge(&lock, &[], LiveHolder::NotFound, &ledger)), ReleaseReason::Gone(GoneReason::NotFound));
        let mut unbound = gpu_pod("a", 1);
        unbound.node = None;
        assert_eq!(
            judge(&lock, &[], LiveHolder::Found(&unbound), &ledger),
            ReleaseIntent::Keep,
            "its bind is on the way"
        );
        let mut recreated = unbound.clone();
        recreated.pod.uid = PodUid::new("new");
        assert_eq!(
            reason(judge(&lock, &[], LiveHolder::Found(&recreated), &ledger)),
            ReleaseReason::Gone(GoneReason::Recreated)
        );
        let mut elsewhere = pod.clone();
        elsewhere.node = Some("node-b".into());
        assert_eq!(
            reason(judge(&lock, &[], LiveHolder::Found(&elsewhere), &ledger)),
            ReleaseReason::Gone(GoneReason::Elsewhere)
        );
    }

    #[test]
    fn the_lock_of_an_earlier_bind_of_its_holder_goes() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let LockRead::Held { value, .. } = lock_of(&pod) else { panic!("a lock") };
        let earlier = LockValue { time: value.time - SignedDuration::from_secs(1), ..value };
        let lock = LockRead::parse(Some(&earlier.print(LockFormat::Uid)));
        let intent = judge(&lock, &[&pod], LiveHolder::Found(&pod), &Ledger::default());
        assert_eq!(reason(intent), ReleaseReason::Gone(GoneReason::Recreated));
    }

    #[test]
    fn a_deletion_is_over_only_after_its_grace() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let LockRead::Held { value, .. } = lock_of(&pod) else { panic!("a lock") };
        let at = |seconds| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
        let deleting = HandoffPod { deleting: Some(Deletion { at: at(30), grace_seconds: 30 }), ..pod };
        assert_eq!(judge_pod(&value, &deleting, NODE, at(30)), HolderState::BoundHere(deleting.pod.clone()));
        assert_eq!(judge_pod(&value, &deleting, NODE, at(31)), HolderState::Gone(GoneReason::PastGrace));
    }

    #[test]
    fn every_reason_has_a_word_and_a_text_of_its_own() {
        use ReleaseReason::{Abandoned, BindFailed, Deleting, Expired, Gone, NoCall, Served, Started, Unusable};
        let all =
            [Served, Gone(GoneReason::NotFound), Deleting, Unusable, Expired, Started, Abandoned, BindFailed, NoCall];
        let words: BTreeSet<&str> = all.iter().map(|reason| reason.word()).collect();
        let texts: BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!((words.len(), texts.len()), (all.len(), all.len()));
        assert!(texts.contains("its holder does not exist"), "{texts:?}");
    }

    #[test]
    fn an_unknown_holder_is_left_to_the_schedulers_expiry() {
        for raw in ["yes", "2026-11-21T02:35:12Z"] {
            let lock = LockRead::parse(Some(raw));
            assert_eq!(judge(&lock, &[&gpu_pod("a", 1)], LiveHolder::NotRead, &Ledger::default()), ReleaseIntent::Keep);
        }
        assert_eq!(judge(&LockRead::Free, &[], LiveHolder::NotRead, &Ledger::default()), ReleaseIntent::Keep);
    }
}
