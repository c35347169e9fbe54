//! May this pod have the lock now, and if not, what would change that?

use std::time::Duration;

use jiff::Timestamp;

use baton_contract::word::word_enum;
use baton_contract::{AgentStatus, Holder, LockFormat, LockRead, LockValue, PodRef};

use super::age::LockAge;
use super::holder::HolderState;
use super::release::ReleaseReason;
use crate::pod::HandoffPod;

/// A claim on the lock: the pod, and the time that its Binding will carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockClaim {
    /// The pod to bind.
    pub pod: PodRef,
    /// Written into the lock and into `bind-timestamp`.
    pub time: Timestamp,
}

impl LockClaim {
    /// The annotation's value.
    pub fn value(&self, format: LockFormat) -> String {
        let holder = Some(Holder { pod: self.pod.key.clone(), uid: Some(self.pod.uid.clone()) });
        LockValue { time: self.time, holder }.print(format)
    }
}

/// What the reader knows of the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockView {
    /// The annotation.
    pub read: LockRead,
    /// Monotonic time at which the reader first saw exactly this value.
    pub first_seen: Duration,
    /// The holder; irrelevant when free.
    pub holder: HolderState,
    /// How far a holder is that is bound to the node; irrelevant for any other.
    pub bound: BoundHolder,
}

/// How far a holder is that is bound to the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BoundHolder {
    /// Its calls may still come.
    #[default]
    Waits,
    /// One of its containers has started: the kubelet has made all its calls.
    Started,
    /// The node's daemon says that it has served it and could not remove this very lock.
    Served,
}

impl BoundHolder {
    /// Of the pod `holder`, on a node whose daemon said `status` last.
    pub fn of(lock: &LockRead, holder: &HandoffPod, status: Option<&AgentStatus>) -> Self {
        let unreleased = status.and_then(|status| status.unreleased.as_deref());
        if unreleased.is_some_and(|raw| lock.raw() == Some(raw)) {
            Self::Served
        } else if holder.has_started() {
            Self::Started
        } else {
            Self::Waits
        }
    }
}

/// Whether the node daemon is there to release locks of served pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentLiveness {
    /// Its Lease has been fresh without a gap since this monotonic time.
    LiveSince(Duration),
    /// No Lease, or unchanged for too long.
    Stale,
}

word_enum! {
    /// `--node-lock` of scheduler and node daemon: which hand-offs need the node lock.
    #[derive(Default)]
    LockMode {
        /// All: a bind takes it wherever the kubelet will call, and the node daemon serves a pod only under it.
        #[default]
        Always = "always",
        /// A bind takes it only where the node's live daemon does not identify callers exactly; the node daemon also serves a pod
        /// without a lock that a known scheduler placed.
        Auto = "auto",
    }
}

/// Times of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockPolicy {
    /// Age from which a lock is suspect. 5 minutes.
    pub expiry: Duration,
    /// How long the agent must have been live before a suspicion is acted on. 30 seconds.
    pub agent_settled: Duration,
}

impl Default for LockPolicy {
    fn default() -> Self {
        Self { expiry: Duration::from_secs(300), agent_settled: Duration::from_secs(30) }
    }
}

/// What the claimant does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intent {
    /// Set the annotation if it is absent.
    Set,
    /// The lock is already ours (a lost response, or a bind that is resumed): bind with this time.
    Own {
        /// The time in the lock, for `bind-timestamp`.
        time: Timestamp,
    },
    /// Replace exactly this value.
    TakeOver {
        /// The value that was judged.
        old: Box<str>,
        /// The proof that its holder is gone, or that it has expired.
        reason: ReleaseReason,
    },
    /// Another pod's. Decide again when the lock or its holder changes, and at the latest at `recheck` (monotonic).
    Wait {
        /// Why.
        reason: WaitReason,
        /// When time alone changes the answer.
        recheck: Option<Duration>,
    },
}

/// Why a claimant waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitReason {
    /// A live holder within its time: normal.
    Contended(PodRef),
    /// A holder that cannot be identified, within its time.
    UnknownHolder,
    /// Expired, but the node's agent is not there to say whether the holder was served.
    AgentNotSettled(PodRef),
}

/// Clocks of schedulers differ by no more than this, where a written time decides.
const SKEW: Duration = Duration::from_secs(30);

/// Decides what `claim` may do about the lock it sees.
///
/// The lock of a pod whose Binding or calls may still come is taken over when this process has watched it for the whole expiry, and of a
/// bound one a daemon that is settled has not released it. A bound pod keeps its devices: no other pod gets what it was assigned, and a
/// late call of it is judged by the lock that stands then. A written time alone takes no such lock.
pub fn acquire(
    lock: &LockView,
    claim: &LockClaim,
    agent: AgentLiveness,
    policy: &LockPolicy,
    now: Duration,
    wall: Timestamp,
) -> Intent {
    let Some(raw) = lock.read.raw() else { return Intent::Set };
    let value = match &lock.read {
        LockRead::Held { value, .. } => Some(value),
        LockRead::Free | LockRead::Malformed { .. } => None,
    };
    let take_over = |reason| Intent::TakeOver { old: raw.into(), reason };
    let expired = || expired(lock, value, policy, now, wall);
    let watched = lock.first_seen + policy.expiry;
    match (&lock.holder, lock.bound) {
        (HolderState::Unbound(pod) | HolderState::BoundHere(pod), _) if *pod == claim.pod => {
            Intent::Own { time: value.map_or(claim.time, |value| value.time) }
        }
        (HolderState::Gone(reason), _) => take_over(ReleaseReason::Gone(*reason)),
        (HolderState::Unknown, _) => match expired() {
            Ok(()) => take_over(ReleaseReason::Expired),
            Err(at) => Intent::Wait { reason: WaitReason::UnknownHolder, recheck: Some(at) },
        },
        // Its Binding may be on its way, by a scheduler that has just led and whose clock is another one.
        (HolderState::Unbound(pod), _) if now < watched => contended(pod, watched),
        (HolderState::Unbound(_), _) => take_over(ReleaseReason::Expired),
        (HolderState::BoundHere(_), BoundHolder::Served) => take_over(ReleaseReason::Served),
        (HolderState::BoundHere(pod), BoundHolder::Started) => match expired() {
            Ok(()) => take_over(ReleaseReason::Started),
            Err(at) => contended(pod, at),
        },
        (HolderState::BoundHere(pod), BoundHolder::Waits) => {
            let recheck = match agent {
                _ if now < watched => return contended(pod, watched),
                AgentLiveness::LiveSince(since) if now >= since + policy.agent_settled => {
                    return take_over(ReleaseReason::Unserved);
                }
                AgentLiveness::LiveSince(since) => Some(since + policy.agent_settled),
                AgentLiveness::Stale => None,
            };
            Intent::Wait { reason: WaitReason::AgentNotSettled(pod.clone()), recheck }
        }
    }
}

fn contended(holder: &PodRef, recheck: Duration) -> Intent {
    Intent::Wait { reason: WaitReason::Contended(holder.clone()), recheck: Some(recheck) }
}

/// An error says at which monotonic time it will have. Age counts by the time that is written, with [`SKEW`] because clocks differ, and
/// on the reader's own clock since it first saw this value.
fn expired(
    lock: &LockView,
    value: Option<&LockValue>,
    policy: &LockPolicy,
    now: Duration,
    wall: Timestamp,
) -> Result<(), Duration> {
    let seen = now.saturating_sub(lock.first_seen);
    let written = value.and_then(|value| LockAge::of(value, wall).known()).unwrap_or_default();
    if seen >= policy.expiry || written >= policy.expiry + SKEW {
        return Ok(());
    }
    let by_clock = lock.first_seen + policy.expiry;
    let by_writing = value.map(|_| now + (policy.expiry + SKEW).saturating_sub(written));
    Err(by_writing.map_or(by_clock, |at| at.min(by_clock)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{GoneReason, Lookup, judge_holder};
    use crate::pod::{AssignmentText, Deletion, HandoffPod, Phase};
    use baton_contract::PodKey;

    const T0: &str = "2026-11-21T02:00:00.000000001Z";
    const MIN: Duration = Duration::from_secs(60);

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn pod(name: &str, node: Option<&str>) -> HandoffPod {
        HandoffPod {
            pod: PodRef::new("ml", name, &format!("uid-{name}")),
            node: node.map(Into::into),
            scheduler_name: "baton-scheduler".into(),
            phase: Phase::Pending,
            deleting: None,
            grace_seconds: 30,
            scheduled_condition: node.is_some(),
            resizing: false,
            created: at(T0),
            containers: vec![].into(),
            assignment: AssignmentText::default(),
        }
    }

    struct Pods(Vec<HandoffPod>);
    impl Lookup for Pods {
        fn by_key(&self, key: &PodKey) -> Option<&HandoffPod> {
            self.0.iter().find(|pod| pod.pod.key == *key)
        }
        fn by_bind_timestamp(&self, nanos: &str) -> Option<&HandoffPod> {
            self.0.iter().find(|pod| pod.assignment.bind_timestamp.as_deref() == Some(nanos))
        }
    }

    fn claim() -> LockClaim {
        LockClaim { pod: PodRef::new("ml", "me", "uid-me"), time: at("2026-11-21T02:00:01Z") }
    }

    /// The intent of `me` when `raw` stands on node `n` since monotonic 0, at monotonic `now` (wall = T0 + now).
    fn intent(raw: Option<&str>, pods: &Pods, agent: AgentLiveness, now: Duration) -> Intent {
        let wall = at(T0) + now;
        let read = LockRead::parse(raw);
        let holder = HolderState::of(&read, "n", pods, wall).unwrap_or(HolderState::Unknown);
        let view = LockView { read, first_seen: Duration::ZERO, holder, bound: BoundHolder::Waits };
        acquire(&view, &claim(), agent, &LockPolicy::default(), now, wall)
    }

    /// The intent of `me` about the lock of a live, bound holder, ten minutes after it was set and `watched` for that long.
    fn late(bound: BoundHolder, watched: Duration) -> Intent {
        aged(bound, 10 * MIN, watched)
    }

    fn aged(bound: BoundHolder, age: Duration, watched: Duration) -> Intent {
        let (now, wall) = (60 * MIN, at(T0) + age);
        let holder = HolderState::BoundHere(PodRef::new("ml", "other", "uid-other"));
        let read = LockRead::parse(Some(&held_by("other")));
        let view = LockView { read, first_seen: now.saturating_sub(watched), holder, bound };
        acquire(&view, &claim(), LIVE, &LockPolicy::default(), now, wall)
    }

    #[test]
    fn the_lock_of_a_pod_that_waits_is_taken_over_once_watched_for_the_expiry() {
        for watched in [MIN, 4 * MIN + Duration::from_secs(59)] {
            let Intent::Wait { reason: WaitReason::Contended(_), recheck } = late(BoundHolder::Waits, watched) else {
                panic!("an old lock that has just been written")
            };
            assert_eq!(recheck.map(|at| at + watched), Some(65 * MIN));
        }
        for watched in [5 * MIN, 10 * MIN] {
            let intent = late(BoundHolder::Waits, watched);
            assert!(matches!(intent, Intent::TakeOver { reason: ReleaseReason::Unserved, .. }), "{intent:?}");
        }
    }

    #[test]
    fn the_lock_of_a_holder_whose_containers_run_is_taken_over_at_its_own_time() {
        let intent = late(BoundHolder::Started, MIN);
        assert!(matches!(intent, Intent::TakeOver { reason: ReleaseReason::Started, .. }), "{intent:?}");
        for (age, watched, more) in [(4 * MIN, MIN, MIN + SKEW), (MIN, 3 * MIN, 2 * MIN)] {
            let intent = aged(BoundHolder::Started, age, watched);
            let Intent::Wait { recheck, .. } = intent else { panic!("{intent:?}") };
            assert_eq!(recheck, Some(60 * MIN + more), "by the time in it, or watched for as long");
        }
    }

    #[test]
    fn a_lock_that_its_daemon_cannot_remove_is_taken_over_at_once() {
        for watched in [Duration::from_secs(1), 10 * MIN] {
            let intent = late(BoundHolder::Served, watched);
            assert!(matches!(intent, Intent::TakeOver { reason: ReleaseReason::Served, .. }), "{intent:?}");
        }
        let status = |raw: &str| {
            let text = format!(r#"{{"version":"1","registered":[],"identity":"exact","unreleased":"{raw}"}}"#);
            AgentStatus::parse(&text).unwrap()
        };
        let (read, mut holder) = (LockRead::parse(Some(&held_by("other"))), pod("other", Some("n")));
        let of = |holder: &HandoffPod, raw: &str| BoundHolder::of(&read, holder, Some(&status(raw)));
        assert_eq!(of(&holder, &held_by("other")), BoundHolder::Served);
        assert_eq!(of(&holder, &held_by("one before")), BoundHolder::Waits, "another lock");
        holder.phase = Phase::Running;
        assert_eq!(of(&holder, &held_by("one before")), BoundHolder::Started);
    }

    const LIVE: AgentLiveness = AgentLiveness::LiveSince(Duration::ZERO);
    fn held_by(name: &str) -> String {
        format!("{T0},ml,{name},uid-{name}")
    }

    #[test]
    fn a_claim_is_written_with_its_pod_and_time() {
        assert_eq!(claim().value(LockFormat::Uid), "2026-11-21T02:00:01.000000000Z,ml,me,uid-me");
    }

    #[test]
    fn a_free_lock_is_set() {
        assert_eq!(intent(None, &Pods(vec![]), LIVE, MIN), Intent::Set);
    }

    #[test]
    fn our_own_lock_is_success_with_the_time_it_carries() {
        for node in [None, Some("n")] {
            let pods = Pods(vec![pod("me", node)]);
            assert_eq!(intent(Some(&held_by("me")), &pods, LIVE, MIN), Intent::Own { time: at(T0) });
        }
    }

    #[test]
    fn a_lock_of_another_live_pod_is_contended_until_it_expires() {
        for node in [None, Some("n")] {
            let pods = Pods(vec![pod("other", node)]);
            let Intent::Wait { reason: WaitReason::Contended(holder), recheck } =
                intent(Some(&held_by("other")), &pods, LIVE, MIN)
            else {
                panic!("expected to wait")
            };
            assert_eq!((&*holder.key.name, recheck), ("other", Some(5 * MIN)), "{node:?}");
        }
    }

    #[test]
    fn a_holder_that_can_never_be_served_is_taken_over_at_once() {
        let mut ended = pod("other", Some("n"));
        ended.phase = Phase::Failed;
        let mut recreated = pod("other", None);
        recreated.pod.uid = baton_contract::PodUid::new("uid-new");
        let mut dying = pod("other", Some("n"));
        dying.deleting = Some(Deletion { at: at(T0), grace_seconds: 30 });
        for (pods, proof) in [
            (vec![], GoneReason::NotFound),
            (vec![recreated], GoneReason::Recreated),
            (vec![ended], GoneReason::Terminal),
            (vec![pod("other", Some("elsewhere"))], GoneReason::Elsewhere),
            (vec![dying], GoneReason::PastGrace),
        ] {
            let raw = held_by("other");
            assert_eq!(
                intent(Some(&raw), &Pods(pods), AgentLiveness::Stale, Duration::from_secs(1)),
                Intent::TakeOver { old: raw.as_str().into(), reason: ReleaseReason::Gone(proof) }
            );
        }
    }

    #[test]
    fn a_holder_without_uid_that_somebody_bound_here_without_a_time_may_be_alive() {
        let raw = "2026-11-21T02:00:00Z,ml,other";
        let unproven = Pods(vec![pod("other", Some("n"))]);
        let young = intent(Some(raw), &unproven, LIVE, MIN);
        assert!(matches!(young, Intent::Wait { .. }), "{young:?}");
        assert!(matches!(
            intent(Some(raw), &unproven, LIVE, 5 * MIN),
            Intent::TakeOver { reason: ReleaseReason::Expired, .. }
        ));
        let mut rebound = pod("other", Some("n"));
        rebound.assignment.bind_timestamp = Some("1".into());
        let proven = intent(Some(raw), &Pods(vec![rebound]), LIVE, MIN);
        assert!(
            matches!(proven, Intent::TakeOver { reason: ReleaseReason::Gone(GoneReason::Recreated), .. }),
            "{proven:?}"
        );
        let gone = intent(Some(raw), &Pods(vec![pod("other", Some("elsewhere"))]), LIVE, MIN);
        assert!(
            matches!(gone, Intent::TakeOver { reason: ReleaseReason::Gone(GoneReason::Elsewhere), .. }),
            "{gone:?}"
        );
    }

    #[test]
    fn the_lock_of_a_pod_that_waits_stands_until_the_agent_has_been_live_for_a_while() {
        let pods = Pods(vec![pod("other", Some("n"))]);
        let raw = held_by("other");
        let now = 5 * MIN;
        assert!(matches!(
            intent(Some(&raw), &pods, LIVE, now),
            Intent::TakeOver { reason: ReleaseReason::Unserved, .. }
        ));
        let young = AgentLiveness::LiveSince(now.saturating_sub(Duration::from_secs(29)));
        assert_eq!(
            intent(Some(&raw), &pods, young, now),
            Intent::Wait {
                reason: WaitReason::AgentNotSettled(pods.0[0].pod.clone()),
                recheck: Some(now + Duration::from_secs(1))
            }
        );
        assert!(matches!(intent(Some(&raw), &pods, AgentLiveness::Stale, now), Intent::Wait { recheck: None, .. }));
    }

    #[test]
    fn an_expired_holder_that_was_never_bound_is_taken_over() {
        let pods = Pods(vec![pod("other", None)]);
        assert!(matches!(
            intent(Some(&held_by("other")), &pods, LIVE, 5 * MIN),
            Intent::TakeOver { reason: ReleaseReason::Expired, .. }
        ));
    }

    #[test]
    fn a_malformed_or_bare_lock_is_taken_over_after_five_minutes_unchanged() {
        for raw in ["gibberish", T0] {
            let pods = Pods(vec![pod("other", Some("n"))]);
            assert!(
                matches!(
                    intent(Some(raw), &pods, LIVE, Duration::from_secs(299)),
                    Intent::Wait { reason: WaitReason::UnknownHolder, .. }
                ),
                "{raw}"
            );
            assert!(
                matches!(
                    intent(Some(raw), &pods, AgentLiveness::Stale, 5 * MIN),
                    Intent::TakeOver { reason: ReleaseReason::Expired, .. }
                ),
                "{raw}"
            );
        }
    }

    #[test]
    fn a_bare_time_is_the_lock_of_the_pod_with_that_bind_timestamp() {
        let mut bound = pod("other", Some("n"));
        bound.assignment.bind_timestamp = Some(at(T0).as_nanosecond().to_string().into());
        let value = LockValue::parse(T0).unwrap();
        assert_eq!(
            judge_holder(&value, "n", &Pods(vec![bound.clone()]), at(T0)),
            HolderState::BoundHere(bound.pod.clone())
        );
        let triple = LockValue::parse("2026-11-21T02:00:00Z,ml,other").unwrap();
        assert_eq!(
            judge_holder(&triple, "n", &Pods(vec![bound]), at(T0)),
            HolderState::Gone(GoneReason::Recreated),
            "other time"
        );
    }

    #[test]
    fn a_lock_from_the_future_expires_on_our_own_clock() {
        let pods = Pods(vec![pod("other", Some("n"))]);
        let raw = "2030-01-01T00:00:00Z,ml,other,uid-other";
        assert!(matches!(intent(Some(raw), &pods, LIVE, MIN), Intent::Wait { recheck: Some(at), .. } if at == 5 * MIN));
        assert!(matches!(intent(Some(raw), &pods, LIVE, 5 * MIN), Intent::TakeOver { .. }));
    }

    #[test]
    fn a_lock_old_by_its_own_time_is_taken_from_no_holder_that_may_be_bound_or_served() {
        let holder = |node| Pods(vec![pod("other", node)]);
        for pods in [holder(None), holder(Some("n")), Pods(Vec::new())] {
            // Of a pod that is known not to be, and of one that is not known.
            let (raw, is_gone) = ("2026-11-21T01:50:00Z,ml,other,uid-other", pods.0.is_empty());
            let standing = intent(Some(raw), &pods, LIVE, MIN);
            assert_eq!(is_gone, matches!(standing, Intent::TakeOver { .. }), "{standing:?}");
            assert!(matches!(intent(Some(raw), &pods, LIVE, 5 * MIN), Intent::TakeOver { .. }));
        }
    }
}
