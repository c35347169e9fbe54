//! The bind attempt of one pod.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::lock::LockClaim;
use crate::scheduler::effect::{Effect, Effects, Ticket};
use crate::scheduler::rules::Annotations;
use crate::world::{NodeId, PodId};
use baton_contract::{PodRef, Shared};

/// A PreBind request is repeated after this time.
const REPEAT_AFTER: Duration = Duration::from_secs(5);

/// A pod whose node is chosen and whose room is taken, on its way to a Binding.
#[derive(Debug, Clone)]
pub struct BindAttempt {
    /// The pod.
    pub pod: Arc<PodRef>,
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub node_name: Arc<str>,
    /// Written into the lock and into `bind-timestamp`.
    pub time: Timestamp,
    /// Resource names for which the kubelet will call Allocate; without any, no lock is needed.
    pub calls: Shared<Vec<Box<str>>>,
    /// The node lock is taken before the Binding.
    pub locks: bool,
    /// The Binding's annotations, all but the time.
    pub annotations: Shared<Annotations>,
    /// The commit of its group.
    pub commit: Option<u64>,
    /// Its stage.
    pub stage: BindStage,
    /// A lock value of this attempt that may stand on the node.
    pub lock_value: Option<Box<str>>,
    /// Place in the node's lock queue.
    pub turn: Turn,
    /// Monotonic time of the decision.
    pub since: Duration,
    /// Monotonic time since which it waits in the lock queue.
    pub queued: Duration,
    /// Not tried before this monotonic time.
    pub not_before: Duration,
    /// Failed tries in a row.
    pub failures: u32,
    /// Monotonic time of the first of these failures.
    pub trouble_since: Option<Duration>,
    /// Requests of PreBind rules under way and their times: they are not repeated at once.
    pub requested: Requested,
    /// A Binding may have been made already: one of this attempt whose answer was lost, or one of the leader before, whose lock the
    /// attempt has taken over.
    pub may_be_bound: bool,
    /// Why the API server refused the Binding, while the pod is read because it may be bound.
    pub refused: Option<String>,
    /// Why the attempt ends as soon as the request under way is answered.
    pub cancelled: Option<Cancel>,
}

/// Position in a lock queue: higher priority first, then the earlier attempt.
pub type Turn = (i64, u64, PodId);

/// The stage of a bind attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindStage {
    /// Waits for the PreBind rules (volumes), which run again at [`BindAttempt::not_before`] or when a volume changes.
    Preparing,
    /// In the node's lock queue.
    Queued,
    /// The lock is being written.
    Locking(Ticket),
    /// The Binding is being posted.
    Binding(Ticket),
    /// The Binding failed transiently; posted again at [`BindAttempt::not_before`].
    BindAgain,
    /// The pod is being read since it is unknown whether it is bound.
    Reading,
    /// The read failed; repeated at [`BindAttempt::not_before`].
    ReadAgain,
}

/// Why a bind attempt ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancel {
    /// The pod is gone, ended or being deleted.
    PodGone,
    /// The pod goes back to the queue.
    Requeue(String),
}

impl BindAttempt {
    /// The claim under which the lock is acquired.
    pub fn claim(&self) -> LockClaim {
        LockClaim { pod: PodRef::clone(&self.pod), time: self.time }
    }

    /// `true` while a request is under way on whose outcome the attempt depends.
    pub const fn awaits_answer(&self) -> bool {
        matches!(self.stage, BindStage::Locking(_) | BindStage::Binding(_) | BindStage::Reading)
    }
}

/// Requests of PreBind rules under way, and their times.
#[derive(Debug, Clone, Default)]
pub struct Requested(Vec<(Effect, Duration)>);

impl Requested {
    /// Of these requests, the ones that are not under way; they are now. Every change of a volume runs the rules again, and no
    /// request is sent twice for that.
    pub(super) fn add(&mut self, mut requests: Effects, now: Duration) -> Effects {
        self.0.retain(|(_, at)| now < *at + REPEAT_AFTER);
        requests.retain(|effect| !self.0.iter().any(|(known, _)| known == effect));
        self.0.extend(requests.iter().map(|effect| (effect.clone(), now)));
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_contract::PodKey;

    #[test]
    fn a_request_is_sent_again_only_after_its_time() {
        let read = |name| Effect::ReadPod { pod: PodKey::new("ml", name) };
        let at = |seconds| Duration::from_secs(100) + Duration::from_secs(seconds);
        let mut requested = Requested::default();
        assert_eq!(requested.add(vec![read("a")], at(0)), [read("a")]);
        assert_eq!(requested.add(vec![read("a"), read("b")], at(1)), [read("b")], "another one is sent at once");
        let again = at(0) + REPEAT_AFTER;
        assert_eq!(requested.add(vec![read("a")], again.saturating_sub(Duration::from_millis(1))), []);
        assert_eq!(requested.add(vec![read("a"), read("b")], again), [read("a")]);
    }
}
