//! The bind attempt of one pod.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::core::RetryPolicy;
use crate::core::agenda::Scene;
use crate::core::effect::{Effect, Effects, Ticket};
use crate::core::rules::Annotations;
use crate::core::select::eligible::keeps_away;
use crate::lock::LockClaim;
use crate::pause::doubled;
use crate::world::{NodeId, PodId, World};
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
    /// Place in the node's lock queue.
    pub turn: Turn,
    /// Monotonic time of the decision.
    pub since: Duration,
    /// How far it has come.
    pub phase: BindPhase,
    /// A lock value of this attempt that may stand on the node.
    pub lock_value: Option<Box<str>>,
    /// Monotonic time until which a Binding may still be made that is not answered: one of this attempt whose answer was lost, or one of
    /// the leader before, whose lock the attempt has taken over. Until then the attempt ends only with its pod.
    pub may_arrive: Option<Duration>,
    /// Failed tries.
    pub trouble: Trouble,
    /// Why the attempt ends as soon as the request under way is answered.
    pub cancelled: Option<Cancel>,
}

/// Position in a lock queue: higher priority first, then the earlier attempt.
pub type Turn = (i64, u64, PodId);

/// How far a bind attempt has come, with what is valid only there. Times are monotonic.
#[derive(Debug, Clone)]
pub enum BindPhase {
    /// The PreBind rules (volumes) are not satisfied; they run again at `again`, or when a volume changes.
    Volumes {
        /// When.
        again: Duration,
        /// Their requests under way: they are not repeated at once.
        requested: Requested,
    },
    /// In the node's lock queue.
    Queue {
        /// Since when.
        since: Duration,
        /// Not tried before.
        not_before: Duration,
    },
    /// The lock is being written.
    Lock {
        /// The write.
        ticket: Ticket,
        /// Since when the attempt waits for the lock.
        since: Duration,
    },
    /// The Binding is being posted.
    Post(Ticket),
    /// It failed transiently, and is posted again at this time.
    PostAgain(Duration),
    /// The pod is being read since it is unknown whether it is bound; with what the API server refused the Binding, if it did.
    Confirm(Option<String>),
    /// The read failed, or a posted Binding may still be made: it is read again at this time.
    ConfirmAgain(Duration, Option<String>),
}

impl BindPhase {
    /// When it goes on by itself; `None` while something is awaited.
    pub const fn due(&self) -> Option<Duration> {
        match self {
            Self::Volumes { again: at, .. }
            | Self::Queue { not_before: at, .. }
            | Self::PostAgain(at)
            | Self::ConfirmAgain(at, _) => Some(*at),
            Self::Lock { .. } | Self::Post(_) | Self::Confirm(_) => None,
        }
    }

    /// No Binding of this attempt has been posted, nor is one about to be: room or lock are awaited.
    pub const fn is_before_post(&self) -> bool {
        matches!(self, Self::Volumes { .. } | Self::Queue { .. } | Self::Lock { .. })
    }
}

/// Failed tries in a row.
#[derive(Debug, Clone, Default)]
pub struct Trouble {
    failures: u32,
    /// Monotonic time of the first one.
    since: Option<Duration>,
}

impl Trouble {
    /// No try has failed since the last one that succeeded.
    pub const fn is_none(&self) -> bool {
        self.failures == 0
    }

    /// One more failure: until when to pause. `None` when failures have lasted for too long.
    pub(super) fn pause(&mut self, now: Duration, retry: RetryPolicy, at_least: Option<Duration>) -> Option<Duration> {
        if now >= *self.since.get_or_insert(now) + retry.limit {
            return None;
        }
        let wait = doubled(retry.pauses, self.failures).max(at_least.unwrap_or_default());
        self.failures += 1;
        Some(now + wait)
    }

    /// It waits regularly: earlier failures do not count towards the limit, and keep the length of the next pause.
    pub(super) fn is_past(&mut self) {
        self.since = None;
    }
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
    /// A Binding that was posted may still be made.
    pub fn may_arrive(&self, now: Duration) -> bool {
        self.may_arrive.is_some_and(|until| now < until)
    }

    /// It may end while it waits for its volumes or its turn. Of a commit other members may be bound: its member in the line gives up only
    /// without its node or its devices; for all else, which may be gone by then, at its turn.
    pub(super) fn may_give_up(&self, world: &World) -> bool {
        let (.., id) = self.turn;
        let is_there = || world.node(self.node).is_some_and(|node| node.facts.is_some());
        let keeps_room = || is_there() && world.contested_device(id).is_none();
        match self.phase {
            _ if self.may_arrive.is_some() => false,
            BindPhase::Volumes { .. } => true,
            BindPhase::Queue { .. } => self.commit.is_none() || !keeps_room(),
            _ => false,
        }
    }

    /// The claim under which the lock is acquired.
    pub fn claim(&self) -> LockClaim {
        LockClaim { pod: PodRef::clone(&self.pod), time: self.time }
    }

    /// Why the decision behind it is void; `None` while it holds.
    pub(super) fn outdated(&self, scene: Scene<'_>) -> Option<String> {
        let world = scene.world;
        let Some(node) = world.node(self.node).filter(|node| node.facts.is_some()) else {
            return Some(format!("node {} is gone", self.node_name));
        };
        if let Some(name) = self.calls.iter().find(|name| !node.serves(name)) {
            return Some(format!("the node daemon of {} does not serve {name} any more", self.node_name));
        }
        let (.., id) = self.turn;
        let pod = world.pod(id)?;
        // What another scheduler has chosen it has judged by its own rules.
        if scene.terms.is_ours(pod)
            && let Some(why) = keeps_away(scene.view(), scene.terms.rules, pod, (self.node, node))
        {
            return Some(format!("node {} takes it no more: {why}", self.node_name));
        }
        let devices = pod.devices.as_ref()?;
        if let Some(device) = world.contested_device(id) {
            return Some(format!("device {device} of node {} is assigned to another pod", self.node_name));
        }
        if let Some((suspect, true)) = node.suspect() {
            return Some(format!("node {} is suspect: {}", self.node_name, suspect.message));
        }
        let stock = node.stock.as_ref()?;
        if let Some(refusal) = stock.refusal_of_shares(pod) {
            return Some(format!("node {} serves no GPU shares to the pod: {refusal}", self.node_name));
        }
        let (device, why) = stock.out_of_use(devices)?;
        Some(format!("device {device} of node {} {why}", self.node_name))
    }

    /// Monotonic time since which it waits in the lock queue, if it does.
    pub const fn queued_since(&self) -> Option<Duration> {
        match self.phase {
            BindPhase::Queue { since, .. } => Some(since),
            _ => None,
        }
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
