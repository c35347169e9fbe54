//! Gangs in the scheduler: groups of gangs are queued, tried and committed as one. Facts of gangs live in
//! [`world::gangs`](crate::world::gangs).
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
mod pod_groups;
pub mod preempt;
mod report;
mod review;
mod search;
mod shortage;
mod topology;
mod try_order;
mod trying;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pause::doubled;
use crate::world::gangs::{Gang, GangConfig, GangProgress, GroupId, NotReady, Warning, rule};
use crate::world::{PodId, Resources, World};
use baton_contract::gang::{Committed, GangId, PodGroupStatus, TimeoutClock, TopologySpec};

use alike::{AntiAffinityTerms, MemberKind};
use baton_contract::ConditionReason;
pub use members::{is_ours, waiting};
pub use shortage::beyond;
use shortage::{LastNearest, UnfitMember};

/// First and longest pause of a group after a Binding that was refused.
const REFUSED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Every group of gangs with the results of its attempts, and its members that are being bound.
#[derive(Debug, Clone, Default)]
pub struct Gangs {
    groups: BTreeMap<GroupId, GroupRecord>,
    /// The group of each gang at its last review.
    group_of: BTreeMap<GangId, GroupId>,
    /// Groups that are being bound, by number.
    commits: BTreeMap<u64, Commit>,
    /// Those whose members are prepared and take no lock yet: commits of a group go one after the other, each when it is known which
    /// Bindings of the ones before are made.
    waiting: BTreeSet<u64>,
    /// Pods that were evicted with their gang, and why.
    evicted: BTreeMap<PodId, String>,
    /// From creation to satisfaction, of groups since the last report.
    waits: Vec<Duration>,
    nearest: LastNearest,
}

impl Gangs {
    /// The record of a group.
    pub fn record(&self, group: &GroupId) -> Option<&GroupRecord> {
        self.groups.get(group)
    }

    /// The records of all groups.
    pub const fn records(&self) -> &BTreeMap<GroupId, GroupRecord> {
        &self.groups
    }

    /// `true` once every gang of the group was satisfied at the same time.
    pub fn satisfied_once(&self, group: &GroupId) -> bool {
        self.groups.get(group).is_some_and(|record| record.progress.satisfied_once())
    }

    /// The members of every commit that is under way.
    pub fn committed(&self) -> impl Iterator<Item = PodId> + '_ {
        self.commits.values().flat_map(|commit| commit.members.keys().copied())
    }

    /// How long each group waited that was satisfied since the last call.
    pub fn take_waits(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.waits)
    }

    /// Forgets everything but the waits, because this process starts or stops leading.
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
    pub not_ready: Option<(ConditionReason, String)>,
    /// The member that fitted no node at the last attempt.
    pub root_cause: Option<RootCause>,
    /// Members that are to be marked as timed out; the watch does not show the mark yet.
    pub marking: BTreeSet<PodId>,
    waits: GroupWait,
    attempt: LastAttempt,
    commits: GroupCommits,
    refusals: BindRefusals,
    reports: GroupReports,
    pod_groups: PodGroupWrites,
}

impl GroupRecord {
    /// The group holds no room any more, and its waiting time ends.
    fn stop_waiting(&mut self) {
        self.waits = GroupWait::default();
        self.progress.holding_since = None;
    }
}

/// Since when a group waits; monotonic.
#[derive(Debug, Clone, Default)]
struct GroupWait {
    /// The first reservation that waits for others.
    held: Option<Duration>,
    /// The first failed attempt.
    failed: Option<Duration>,
}

impl GroupWait {
    /// When the waiting time began.
    const fn since(&self, clock: TimeoutClock) -> Option<Duration> {
        match clock {
            TimeoutClock::Holding => self.held,
            TimeoutClock::Pending => self.failed,
        }
    }
}

/// What attempts have left.
#[derive(Debug, Clone, Default)]
struct LastAttempt {
    /// Monotonic time of the last one: what is reported of the group is as old.
    at: Duration,
    /// The gangs at the last one.
    gangs: Option<Vec<GangState>>,
    /// Kinds of members that failed since the last useful event; they are tried last.
    failed: Vec<MemberKind>,
    /// Percent of GPUs that were missing then, at least; `None` where the group has changed since.
    least: Option<i64>,
}

/// Commits of a group, those of earlier leaders as far as its members show them.
#[derive(Debug, Clone, Default)]
struct GroupCommits {
    /// The latest one that this process has begun to bind.
    last: Option<Committed>,
    /// The latest one of which every member was seen bound: members that end later do not break it.
    whole: Option<Committed>,
    /// Those under way and the latest one, and how many Bindings that name them are still to be made.
    unbound: BTreeMap<Committed, u32>,
}

impl GroupCommits {
    /// How many Bindings of a commit are still to be made: as this process has counted them, or else as its members show. A member that
    /// is gone shows nothing.
    fn unbound_of(&self, world: &World, group: &GroupId, commit: Committed) -> u32 {
        self.unbound.get(&commit).copied().unwrap_or_else(|| {
            let landed: u32 = world.gangs().listing(group).filter_map(|gang| gang.landed().get(&commit)).sum();
            commit.members.saturating_sub(landed)
        })
    }

    /// The last one that this process has begun to bind, unless all its members were bound.
    fn broken(&self) -> Option<Committed> {
        self.last.filter(|last| self.whole.is_none_or(|whole| whole < *last))
    }

    /// A Binding that names this commit was made. All members were bound with the last, even those that have ended by now: the commit
    /// did not break off.
    fn bound(&mut self, commit: Committed) {
        let Some(unbound) = self.unbound.get_mut(&commit) else { return };
        *unbound = unbound.saturating_sub(1);
        if *unbound == 0 && commit.members > 1 {
            self.whole = self.whole.max(Some(commit));
        }
    }
}

/// The pause of a group after Bindings that were refused. A group whose attempt failed has none: it is parked.
#[derive(Debug, Clone, Default)]
struct BindRefusals {
    /// Those in a row.
    in_a_row: u32,
    /// Monotonic time before which the group is not tried.
    until: Option<Duration>,
}

impl BindRefusals {
    /// A Binding was refused. Members that are refused together count as one.
    fn count(&mut self, now: Duration) {
        if self.until.is_none_or(|until| until <= now) {
            self.until = Some(now + doubled(REFUSED, self.in_a_row));
            self.in_a_row += 1;
        }
    }
}

/// What was reported of a group.
#[derive(Debug, Clone, Default)]
struct GroupReports {
    /// Why each of its gangs was not ready.
    reasons: Vec<NotReady>,
    /// How far each of its gangs had come then, see [`NotReady::step`].
    steps: Vec<u32>,
    /// Warnings about the declarations.
    warned: BTreeSet<(GangId, Warning)>,
}

/// Writes of the PodGroups of a group.
#[derive(Debug, Clone, Default)]
struct PodGroupWrites {
    /// The last status that was written.
    written: BTreeMap<GangId, StatusWrite>,
    /// Monotonic time when one is created or removed again, should the watch not show it.
    asked: BTreeMap<GangId, Duration>,
}

/// What an attempt and its report depend on: a group is tried again when this differs for one of its gangs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangState {
    config: GangConfig,
    /// `minResources` of its PodGroup.
    resources: Option<Resources>,
    /// Where it is gathered.
    topology: Option<Arc<TopologySpec>>,
    pending: u32,
    /// Members that count towards the minimum without being tried.
    counted: u32,
}

impl GangState {
    /// Those of a group.
    fn of_group(world: &World, group: &GroupId) -> Vec<Self> {
        world.gangs().listing(group).map(Self::of).collect()
    }

    /// What the gang declares is the same.
    fn declares_the_same(&self, other: &Self) -> bool {
        (&self.config, &self.resources, &self.topology) == (&other.config, &other.resources, &other.topology)
    }

    fn of(gang: &Gang) -> Self {
        let (config, counts) = (gang.config(), gang.counts());
        let resources = gang.pod_group().filter(|object| !object.min_resources.is_zero());
        Self {
            config: *config,
            resources: resources.map(|object| object.min_resources.clone()),
            topology: gang.topology().cloned(),
            pending: counts.pending,
            counted: rule::weight(config.policy, counts),
        }
    }
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RootCause {
    /// `namespace/name`.
    pub pod: String,
    /// Why no node fits.
    pub summary: String,
}

/// How a waiting pod is queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// By itself.
    Alone,
    /// With its group: as its policy says, or as the rest of a commit that broke off, whatever the policy says.
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
    members: BTreeMap<PodId, CommitMember>,
    kind: CommitKind,
    /// What it is called. Members that complete a commit that broke off join that one.
    committed: Committed,
}

/// What a commit does for its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommitKind {
    /// It satisfies the group for the first time.
    First,
    /// Or once more.
    Again,
    /// It completes one that broke off: each member that fits is bound.
    Rest,
}

/// A member that is being bound.
#[derive(Debug, Clone, Copy)]
struct CommitMember {
    /// What its Binding states: a later commit that counts it, where there is one.
    states: Committed,
    step: MemberStep,
}

/// How far a member has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberStep {
    /// Its volumes are not prepared. No member takes a lock before all are.
    Prepares,
    Prepared,
    /// Its Binding has been requested: what it states is final.
    Requested,
}

impl Commit {
    /// The volumes of every member are prepared.
    fn is_prepared(&self) -> bool {
        self.members.values().all(|member| member.step != MemberStep::Prepares)
    }

    /// The Binding of a member is on its way.
    fn is_requested(&self) -> bool {
        self.members.values().any(|member| member.step == MemberStep::Requested)
    }
}

/// The last status write for one gang.
#[derive(Debug, Clone)]
struct StatusWrite {
    wanted: PodGroupStatus,
    /// `resourceVersion` of the object that it was written to.
    version: Box<str>,
    /// Monotonic.
    at: Duration,
    /// The status as the API server stored it; `None` while the answer is awaited and after a failure.
    stored: Option<PodGroupStatus>,
    /// Monotonic time before which it is not retried after a failure.
    not_before: Duration,
    under_way: bool,
    failures: u32,
}

/// The waiting members of a group in the order in which they are tried.
struct TryOrder {
    /// In id order.
    gangs: Vec<GangOrder>,
    anti_affinity: AntiAffinityTerms,
}

/// The waiting members of one gang.
struct GangOrder {
    /// How many of them the gang needs to be satisfied.
    needed: usize,
    /// Best first: failed kinds last, then larger requests, creation, name.
    pending: Vec<PodId>,
    /// How many of these are of no failed kind.
    fresh: usize,
    /// `true` only when all of them are of one kind.
    alike: bool,
}
