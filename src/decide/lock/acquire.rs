//! May this pod have the lock now, and if not, what would change that?

use std::time::Duration;

use jiff::Timestamp;

use baton_contract::word::word_enum;
use baton_contract::{AgentStatus, Holder, LockFormat, LockRead, LockValue, PodRef};

use super::holder::HolderState;
use super::owner::{LockMatch, names};
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
    /// More of a holder that is bound to the node; irrelevant for any other.
    pub bound: BoundHolder,
}

/// What is known of a holder that is bound to the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BoundHolder {
    /// One of its containers has started: the kubelet has made all its calls.
    pub started: bool,
    /// It asks for a name that the node's daemon has registered: the kubelet makes a call for it.
    pub called: bool,
    /// Its `bind-timestamp` is the lock's time: it was bound under this very lock.
    pub same_bind: bool,
    /// The node's daemon says that it has served it and could not remove this very lock.
    pub served: bool,
}

impl BoundHolder {
    /// Of the pod `holder`, on a node whose daemon said `status` last.
    pub fn of(lock: &LockRead, holder: &HandoffPod, status: Option<&AgentStatus>) -> Self {
        let registers = |name: &str| status.is_some_and(|status| status.registers(name));
        Self {
            started: holder.has_started(),
            called: holder.expected_calls(registers).next().is_some(),
            same_bind: matches!(lock, LockRead::Held { value, .. } if names(value, holder) == LockMatch::ThisBind),
            served: status.and_then(|status| status.unreleased.as_deref()).is_some_and(|raw| lock.raw() == Some(raw)),
        }
    }

    /// The proof without which a holder that has not started is never deleted, whatever the time.
    pub fn missing(self) -> Option<Missing> {
        match self {
            Self { started: true, .. } => None,
            Self { called: false, .. } => Some(Missing::Call),
            Self { same_bind: false, .. } => Some(Missing::Bind),
            Self { .. } => None,
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

word_enum! {
    /// What to do with a live holder whose lock has expired.
    #[derive(Default)]
    ExpiredHolder {
        /// Delete the pod, with its uid as precondition.
        #[default]
        Evict = "evict",
        /// Wait for an operator.
        Wait = "wait",
    }
}

/// Times of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockPolicy {
    /// Age from which a lock is suspect. 5 minutes.
    pub expiry: Duration,
    /// How long the agent must have been live before a suspicion is acted on. 30 seconds.
    pub agent_settled: Duration,
    /// What to do with a live holder whose lock has expired.
    pub expired_holder: ExpiredHolder,
}

impl Default for LockPolicy {
    fn default() -> Self {
        Self {
            expiry: Duration::from_secs(300),
            agent_settled: Duration::from_secs(30),
            expired_holder: ExpiredHolder::Evict,
        }
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
    /// Delete this pod (uid as precondition), then decide again: it holds an expired lock and was never served.
    Fence {
        /// The holder.
        pod: PodRef,
        /// Age of the lock.
        age: Duration,
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
    /// Expired, and `--expired-holder=wait`.
    Operator(PodRef),
    /// Expired, and its live holder may not be deleted: this is missing.
    Standing(PodRef, Missing),
}

/// Why a live, bound holder of an expired lock is not deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// It asks for nothing that the node's daemon has registered.
    Call,
    /// It was bound under another lock than this.
    Bind,
    /// This process has not watched this very lock for the whole expiry.
    Watch,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Call => "it asks for nothing that the node's daemon serves",
            Self::Bind => "it was bound under another lock",
            Self::Watch => "this scheduler has not watched the lock for long enough",
        })
    }
}

/// Clocks of schedulers differ by no more than this, where a written time decides.
const SKEW: Duration = Duration::from_secs(30);
/// A lock that stands for want of a proof is judged again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Decides what `claim` may do about the lock it sees.
///
/// A written time justifies taking a lock over, never a deletion. A live pod is deleted only when it was bound under this very lock,
/// none of its containers has started although the kubelet calls the node's daemon for it, that daemon is settled and has not
/// served it, and this process has watched the lock for the whole expiry.
pub fn acquire(
    lock: &LockView,
    claim: &LockClaim,
    agent: AgentLiveness,
    policy: &LockPolicy,
    now: Duration,
    wall: Timestamp,
) -> Intent {
    let Some(raw) = lock.read.raw() else { return Intent::Set };
    let time = match &lock.read {
        LockRead::Held { value, .. } => Some(value.time),
        LockRead::Free | LockRead::Malformed { .. } => None,
    };
    let take_over = |reason| Intent::TakeOver { old: raw.into(), reason };
    let (pod, bound) = match &lock.holder {
        HolderState::Unbound(pod) | HolderState::BoundHere(pod) if *pod == claim.pod => {
            return Intent::Own { time: time.unwrap_or(claim.time) };
        }
        HolderState::Gone(reason) => return take_over(ReleaseReason::Gone(*reason)),
        HolderState::Unknown => {
            return match expired(lock, time, policy, now, wall) {
                Ok(_) => take_over(ReleaseReason::Expired),
                Err(at) => Intent::Wait { reason: WaitReason::UnknownHolder, recheck: Some(at) },
            };
        }
        HolderState::Unbound(pod) => (pod, None),
        HolderState::BoundHere(_) if lock.bound.served => return take_over(ReleaseReason::Served),
        HolderState::BoundHere(pod) => (pod, Some(lock.bound)),
    };
    let age = match expired(lock, time, policy, now, wall) {
        Ok(age) => age,
        Err(at) => return Intent::Wait { reason: WaitReason::Contended(pod.clone()), recheck: Some(at) },
    };
    // The bind of an unbound holder never came; one that still came would carry another time than the lock, and be refused.
    let Some(bound) = bound else { return take_over(ReleaseReason::Expired) };
    if bound.started {
        return take_over(ReleaseReason::Started);
    }
    let standing = |missing, recheck| {
        let reason = WaitReason::Standing(pod.clone(), missing);
        Intent::Wait { reason, recheck: Some(recheck) }
    };
    if let Some(missing) = bound.missing() {
        return standing(missing, now + LOOK_AGAIN);
    }
    if now < lock.first_seen + policy.expiry {
        return standing(Missing::Watch, lock.first_seen + policy.expiry);
    }
    match agent {
        AgentLiveness::LiveSince(since) if now >= since + policy.agent_settled => {}
        AgentLiveness::LiveSince(since) => {
            let reason = WaitReason::AgentNotSettled(pod.clone());
            return Intent::Wait { reason, recheck: Some(since + policy.agent_settled) };
        }
        AgentLiveness::Stale => {
            return Intent::Wait { reason: WaitReason::AgentNotSettled(pod.clone()), recheck: None };
        }
    }
    match policy.expired_holder {
        ExpiredHolder::Evict => Intent::Fence { pod: pod.clone(), age },
        ExpiredHolder::Wait => Intent::Wait { reason: WaitReason::Operator(pod.clone()), recheck: None },
    }
}

/// The lock's age when it has expired, else the monotonic time at which it will have. Age counts by the time that is written, with
/// [`SKEW`] because clocks differ, and on the reader's own clock since it first saw this value.
fn expired(
    lock: &LockView,
    time: Option<Timestamp>,
    policy: &LockPolicy,
    now: Duration,
    wall: Timestamp,
) -> Result<Duration, Duration> {
    let seen = now.saturating_sub(lock.first_seen);
    let written = time.and_then(|time| Duration::try_from(wall.duration_since(time)).ok()).unwrap_or_default();
    if seen >= policy.expiry || written >= policy.expiry + SKEW {
        return Ok(seen.max(written));
    }
    let by_clock = lock.first_seen + policy.expiry;
    let by_writing = time.map(|_| now + (policy.expiry + SKEW).saturating_sub(written));
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
        let view = LockView { read, first_seen: Duration::ZERO, holder, bound: UNSERVED };
        acquire(&view, &claim(), agent, &LockPolicy::default(), now, wall)
    }

    /// Bound under this lock, called for, and not started.
    const UNSERVED: BoundHolder = BoundHolder { started: false, called: true, same_bind: true, served: false };

    /// The intent of `me` about the lock of a live, bound holder, ten minutes after it was set and `watched` for that long.
    fn late(bound: BoundHolder, watched: Duration) -> Intent {
        let (now, wall) = (60 * MIN, at(T0) + 10 * MIN);
        let holder = HolderState::BoundHere(PodRef::new("ml", "other", "uid-other"));
        let read = LockRead::parse(Some(&held_by("other")));
        let view = LockView { read, first_seen: now.saturating_sub(watched), holder, bound };
        acquire(&view, &claim(), LIVE, &LockPolicy::default(), now, wall)
    }

    #[test]
    fn a_live_holder_is_deleted_only_when_every_proof_is_there() {
        assert!(matches!(late(UNSERVED, 10 * MIN), Intent::Fence { .. }));
        let missing = |bound, watched| match late(bound, watched) {
            Intent::Wait { reason: WaitReason::Standing(_, missing), recheck: Some(_) } => missing,
            other => panic!("{other:?}"),
        };
        assert_eq!(missing(BoundHolder { called: false, ..UNSERVED }, 10 * MIN), Missing::Call);
        assert_eq!(missing(BoundHolder { same_bind: false, ..UNSERVED }, 10 * MIN), Missing::Bind);
        assert_eq!(missing(UNSERVED, MIN), Missing::Watch, "an old lock that has just been written");
        let recheck = |bound, watched| match late(bound, watched) {
            Intent::Wait { recheck, .. } => recheck,
            other => panic!("{other:?}"),
        };
        let watched_for_long = 59 * MIN + LockPolicy::default().expiry;
        assert_eq!(recheck(UNSERVED, MIN), Some(watched_for_long));
        assert_eq!(recheck(BoundHolder { called: false, ..UNSERVED }, 10 * MIN), Some(60 * MIN + LOOK_AGAIN));
    }

    #[test]
    fn the_lock_of_a_holder_whose_containers_run_is_taken_over_and_the_pod_stays() {
        for bound in
            [BoundHolder { started: true, ..UNSERVED }, BoundHolder { started: true, ..BoundHolder::default() }]
        {
            assert!(matches!(late(bound, MIN), Intent::TakeOver { reason: ReleaseReason::Started, .. }));
        }
    }

    #[test]
    fn a_lock_that_its_daemon_cannot_remove_is_taken_over_and_the_pod_stays() {
        for watched in [Duration::from_secs(1), 10 * MIN] {
            let intent = late(BoundHolder { served: true, ..UNSERVED }, watched);
            assert!(matches!(intent, Intent::TakeOver { reason: ReleaseReason::Served, .. }), "{intent:?}");
        }
        let status = |raw: &str| {
            let text = format!(r#"{{"version":"1","registered":[],"identity":"exact","unreleased":"{raw}"}}"#);
            AgentStatus::parse(&text).unwrap()
        };
        let (read, holder) = (LockRead::parse(Some(&held_by("other"))), pod("other", Some("n")));
        assert!(BoundHolder::of(&read, &holder, Some(&status(&held_by("other")))).served);
        assert!(!BoundHolder::of(&read, &holder, Some(&status(&held_by("one before")))).served, "another lock");
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
    fn what_is_missing_has_words_of_its_own() {
        let all = [Missing::Call, Missing::Bind, Missing::Watch].map(|missing| missing.to_string());
        assert!(all.iter().all(|text| text.len() > 10) && all[0] != all[1] && all[1] != all[2], "{all:?}");
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
        let pods = Pods(vec![pod("other", Some("n"))]);
        let Intent::Wait { reason: WaitReason::Contended(holder), recheck } =
            intent(Some(&held_by("other")), &pods, LIVE, MIN)
        else {
            panic!("expected to wait")
        };
        assert_eq!((&*holder.key.name, recheck), ("other", Some(5 * MIN)));
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
    fn an_expired_live_holder_is_fenced_only_when_the_agent_has_been_live_for_a_while() {
        let pods = Pods(vec![pod("other", Some("n"))]);
        let raw = held_by("other");
        let now = 5 * MIN;
        assert!(matches!(intent(Some(&raw), &pods, LIVE, now), Intent::Fence { .. }));
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
        assert!(matches!(intent(Some(raw), &pods, LIVE, 5 * MIN), Intent::Fence { .. }));
    }

    #[test]
    fn a_lock_old_by_its_own_time_is_taken_from_an_unbound_holder_without_deletion() {
        let (unbound, bound) = (Pods(vec![pod("other", None)]), Pods(vec![pod("other", Some("n"))]));
        let raw = "2026-11-21T01:55:20Z,ml,other,uid-other";
        assert!(matches!(intent(Some(raw), &unbound, AgentLiveness::Stale, MIN), Intent::TakeOver { .. }));
        let standing = intent(Some(raw), &bound, LIVE, MIN);
        assert!(
            matches!(standing, Intent::Wait { reason: WaitReason::Standing(_, Missing::Watch), .. }),
            "{standing:?}"
        );
        let young = "2026-11-21T01:56:00Z,ml,other,uid-other";
        assert!(matches!(intent(Some(young), &unbound, LIVE, MIN), Intent::Wait { .. }), "clocks differ");
    }

    #[test]
    fn an_operator_may_ask_to_wait_for_an_expired_holder() {
        let holder = HolderState::BoundHere(PodRef::new("ml", "other", "uid-other"));
        let read = LockRead::parse(Some(&held_by("other")));
        let view = LockView { read, first_seen: Duration::ZERO, holder, bound: UNSERVED };
        let policy = LockPolicy { expired_holder: ExpiredHolder::Wait, ..LockPolicy::default() };
        let intent = acquire(&view, &claim(), LIVE, &policy, 6 * MIN, at(T0) + 6 * MIN);
        assert!(matches!(intent, Intent::Wait { reason: WaitReason::Operator(_), .. }));
    }
}
