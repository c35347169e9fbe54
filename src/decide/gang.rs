//! Gangs in the scheduler: groups of gangs are queued, tried and committed as one. Facts of gangs live in
//! [`world::gangs`](crate::decide::world::gangs).
//!
//! ```text
//!              review (every change of a gang)
//!                 │                      ┌──────────── Strict: all or nothing, again in another order ─┐
//!   not ready ◀───┴──▶ queued ──pop──▶ attempt ──▶ satisfied ──▶ commit: volumes of all, then locks and Bindings
//!   (reason reported)    ▲                 │
//!                        └── parked ◀──────┴── NonStrict: reservations stay, the clock runs ──▶ expired: released, marked
//! ```
//!
//! A group attempt is a transaction on the world: members are reserved one by one, and when the group cannot be satisfied in
//! Strict mode all of it is undone before anything else is decided.

mod alike;
mod attempt;
mod clock;
mod commit;
mod deadlock;
mod joint_preempt;
pub mod members;
mod offer;
mod pod_groups;
pub mod policy;
mod preempt;
mod report;
mod review;
mod search;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::contract::gang::{Committed, GangId, MatchPolicy, Mode, PodGroupStatus};
use crate::decide::world::gangs::{Gang, GangProgress, GroupId, NotReady, Warning};
use crate::decide::world::{PodId, Resources};

use alike::Kind;
pub use members::{is_ours, waiting};
pub use policy::{GangPolicy, OnBindFailure, TimeoutClock};

/// Every group of gangs, what its attempts came to, and its members that are being bound.
#[derive(Debug, Default)]
pub struct Gangs {
    groups: BTreeMap<GroupId, GroupRecord>,
    /// The group of each gang at its last review.
    group_of: BTreeMap<GangId, GroupId>,
    /// Groups that are being bound, by number.
    commits: BTreeMap<u64, Commit>,
    /// Pods that were evicted with their gang, and why.
    evicted: BTreeMap<PodId, String>,
    /// From creation to satisfaction, of groups since the last report.
    waits: Vec<Duration>,
}

impl Gangs {
    /// What is kept of a group.
    pub fn record(&self, group: &GroupId) -> Option<&GroupRecord> {
        self.groups.get(group)
    }

    /// What is kept of every group.
    pub const fn records(&self) -> &BTreeMap<GroupId, GroupRecord> {
        &self.groups
    }

    /// Every gang of the group was satisfied at once, now or before.
    pub fn satisfied_once(&self, group: &GroupId) -> bool {
        self.groups.get(group).is_some_and(|record| record.progress.satisfied_once)
    }

    /// How long groups waited that were satisfied since the last call.
    pub fn take_waits(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.waits)
    }

    /// Forgets everything but the waits: this process starts or stops leading.
    pub fn clear(&mut self) {
        *self = Self { waits: std::mem::take(&mut self.waits), ..Self::default() };
    }
}

/// What the scheduler keeps of a group between attempts.
#[derive(Debug, Clone, Default)]
pub struct GroupRecord {
    /// What explanations show.
    pub progress: GangProgress,
    /// Why it was not ready at the last review: reason and message.
    pub not_ready: Option<(&'static str, String)>,
    /// The same as each of its gangs has it.
    reasons: Vec<NotReady>,
    /// Monotonic time of the first reservation that waits for others.
    holding: Option<Duration>,
    /// Monotonic time since which the wait runs.
    clock: Option<Duration>,
    /// Reason of the last event about why the group waits.
    reported: Option<&'static str>,
    /// Kinds of members that failed since the last useful event; they are offered last.
    failed: Vec<Kind>,
    /// What the gangs looked like at the last attempt that failed.
    tried: Option<Vec<Look>>,
    /// The member that found no place at the last attempt.
    pub root_cause: Option<RootCause>,
    /// What was last written to the PodGroups.
    written: BTreeMap<GangId, Written>,
    /// When a PodGroup that was made is made again, should the watch not show it.
    made: BTreeMap<GangId, Duration>,
    /// What was reported to be wrong with the declarations.
    warned: BTreeSet<(GangId, Warning)>,
    /// Wall time of the latest commit that this process has decided.
    attempt: Option<Timestamp>,
    /// The latest commit that was seen whole: what its members come to later does not break it.
    whole: Option<Committed>,
    /// Its latest commit was taken back, or none of its members lives any more: what a PodGroup says of having been satisfied is of
    /// another generation, whatever the whole seconds of its time may suggest.
    outlived: bool,
    /// Members that are to be marked as timed out and are not yet.
    pub marking: BTreeSet<PodId>,
    /// Bindings of its members that were refused one after the other.
    bind_failures: u32,
    /// Monotonic time before which it is not tried, after a Binding that was refused.
    rest_until: Option<Duration>,
}

/// What of a gang makes another attempt worthwhile when it changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    min: Option<u32>,
    policy: MatchPolicy,
    mode: Mode,
    /// What its PodGroup asks for in all.
    resources: Option<Resources>,
    pending: u32,
    /// Members that count without being offered.
    counted: u32,
}

impl Look {
    /// The gang as it stands.
    fn of(gang: &Gang) -> Self {
        let (config, counts) = (gang.config(), gang.counts());
        let counted = crate::decide::world::gangs::rule::weight(config.policy, counts);
        let resources = gang.pod_group().filter(|object| !object.min_resources.is_zero());
        Self {
            min: config.min,
            policy: config.policy,
            mode: config.mode,
            resources: resources.map(|object| object.min_resources.clone()),
            pending: counts.pending,
            counted,
        }
    }
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RootCause {
    /// `namespace/name`.
    pub pod: String,
    /// What the nodes said.
    pub summary: String,
}

/// Under what a pod that waits is queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// By itself.
    Alone,
    /// With its group, to complete a commit that broke off, whatever else the group's rule says.
    Completes(GroupId),
    /// With its group.
    Group(GroupId),
    /// Not at all until something changes.
    NotReady(NotReady),
}

/// Members that were committed together and are being bound.
#[derive(Debug, Clone)]
struct Commit {
    /// Their group.
    group: GroupId,
    /// Members whose bind attempt has not ended.
    members: BTreeSet<PodId>,
    /// Of these, the ones whose volumes are not settled. While there is one, no member locks.
    unprepared: BTreeSet<PodId>,
    /// The group had been satisfied before.
    once: bool,
    /// It completes one that broke off: each member that finds a place goes.
    rest: bool,
    /// What the Bindings say.
    committed: Committed,
    /// How many more members are to be bound until all that it names were.
    missing: u32,
}

/// What was written last for one gang.
#[derive(Debug, Clone)]
struct Written {
    wanted: PodGroupStatus,
    /// Version of the object that it was written to.
    version: Box<str>,
    /// Monotonic.
    at: Duration,
    /// What the API server made of it; `None` while the answer is awaited or when it failed.
    stored: Option<PodGroupStatus>,
    /// Monotonic time before which nothing is tried after a failure.
    not_before: Duration,
    under_way: bool,
    failures: u32,
}
