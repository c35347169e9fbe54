//! The items of `/gangs`, and the explanation of one gang.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::answer::OneMove;
use super::judged::{GANG_CHANGES, frees, wakes};
use super::pod::next_try;
use crate::core::queue::{Item, QueueState};
use crate::core::timers::Moment;
use crate::core::{other_scheduler_text, wants_of_another};
use crate::gang::{RootCause, beyond, is_ours};
use crate::lock::Delay;
use crate::scheduler::Scheduler;
use crate::world::Pod;
use crate::world::gangs::{Gang, GroupId, Member, MemberCounts, MemberState, NotReady, after_satisfaction, rule};
use baton_contract::ConditionReason;
use baton_contract::gang::{GangId, MatchPolicy, PodGroupPhase};

/// An item of `/gangs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GangView {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Fewest members that may run; 0 where there is no rule.
    pub min_required_number: u32,
    /// `total-number`, never below the minimum. Shown only.
    pub total_children_num: u32,
    /// `Strict` or `NonStrict`.
    pub mode: String,
    /// Which members count.
    pub match_policy: String,
    /// How long reserved members wait for the others, as a Go duration.
    pub wait_time: String,
    /// Gangs that start together, `namespace/name`.
    pub gang_group: Vec<String>,
    /// Members that may be scheduled or are, `namespace/name`.
    pub children: Vec<String>,
    /// Every member by its state, those that are no children too.
    #[serde(default)]
    pub counts: MemberCounts,
    /// How many pods the minimum lacks, whatever the state of those that there are.
    #[serde(default)]
    pub not_created: u32,
    /// Creation time of its PodGroup, else of its oldest living member.
    #[serde(default)]
    pub create_time: Option<Timestamp>,
    /// Of the children, those that wait for a place.
    #[serde(default)]
    pub pending_children: Vec<String>,
    /// Of the children, those for which room is reserved.
    pub waiting_for_bind_children: Vec<String>,
    /// Of the children, those that have a node.
    pub bound_children: Vec<String>,
    /// Number of the group's schedule cycle.
    pub schedule_cycle: u32,
    /// No member failed in it.
    pub schedule_cycle_valid: bool,
    /// By child: the last cycle in which it was offered; 0 when it was not yet.
    pub children_schedule_round_map: BTreeMap<String, u32>,
    /// Every gang of the group was satisfied at once.
    pub resource_satisfied: bool,
    /// Since when room is held for members that wait for others.
    pub holding_since: Option<Timestamp>,
    /// Attempts of the group.
    pub attempts: u64,
    /// When the group is tried again, if only time has to pass.
    pub next_try: Option<Timestamp>,
    /// Why the last attempt failed, or why there is none.
    pub last_failure: Option<String>,
}

impl GangView {
    /// Its members in the words of table and page: `2 bound, 1 started, 1 not created`.
    pub fn members(&self) -> String {
        let of = &self.counts;
        let bound = (of.placed() > 0).then(|| format!("{} bound, {} started", of.placed(), of.running));
        let others = [
            (of.reserved, "reserved"),
            (of.pending, "pending"),
            (of.gated, "gated"),
            (of.timed_out, "marked"),
            (of.succeeded, "succeeded"),
            (of.failed, "failed"),
            (of.terminating, "being deleted"),
            (self.not_created, "not created"),
        ];
        let others = others.into_iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}"));
        let words: Vec<String> = bound.into_iter().chain(others).collect();
        if words.is_empty() { "no members".to_owned() } else { words.join(", ") }
    }
}

/// The answer for one gang.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GangExplanation {
    /// `namespace/name`.
    pub gang: String,
    /// `otherScheduler`, `held`, `marked`, `waiting`, `tooLarge`, `holding`, `binding`, `satisfied` or `finished`.
    pub state: String,
    /// Reason of its members' condition while they wait.
    pub reason: Option<String>,
    /// What holds it back.
    pub message: String,
    /// What to do.
    pub advice: String,
    /// Every gang that starts together with it, itself included.
    pub group: Vec<GangStanding>,
    /// The member that found no place, and every node's verdict on it.
    pub root_cause: Option<RootCause>,
    /// A move of another pod after which its members would start.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub one_move: Option<OneMove>,
    /// Attempts of the group.
    pub attempts: u64,
    /// Changes after which it is tried again, as of a pod that waits.
    #[serde(default)]
    pub wakes: Vec<String>,
    /// Seconds until it is tried even without one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next_try_seconds: Option<u64>,
    /// Since when room is held for members that wait for others.
    pub holding_since: Option<Timestamp>,
    /// How long that may last.
    pub wait_time: String,
    /// Its members.
    pub members: Vec<MemberView>,
}

/// One gang of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GangStanding {
    /// `namespace/name`.
    pub gang: String,
    /// Members that count for satisfaction.
    pub placed: u32,
    /// How many are needed.
    pub needed: u32,
    /// Members that may be scheduled or are.
    pub children: u32,
    /// Phase of its PodGroup.
    pub phase: Option<PodGroupPhase>,
    /// What is wrong with its declaration.
    pub warnings: Vec<String>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberView {
    /// `namespace/name`.
    pub pod: String,
    /// `Pending`, `Reserved`, `Bound`, `Running`, `Succeeded`, `Failed`, `Gated`, `TimedOut` or `Terminating`.
    pub state: String,
    /// Its node, chosen or bound.
    pub node: Option<String>,
}

impl Scheduler {
    /// Every gang that has members or a PodGroup, by id.
    pub fn gang_views(&self, now: Moment) -> Vec<GangView> {
        self.world().gangs().gangs().map(|gang| self.gang_view(gang, now)).collect()
    }

    /// Number of our groups with a waiting member that the rules of gangs hold back.
    pub fn waiting_groups(&self) -> usize {
        let waits = |group: &GroupId, once: bool| {
            let gangs = self.world().gangs().of_group(group).filter(|gang| gang.group() == group);
            let bound_by_rule = |gang: &Gang| !rule::is_over(gang.config().policy, once);
            let free = |gang: &Gang| gang.config().min == Some(0) && group.is_alone();
            let mut ours = gangs
                .filter(|gang| is_ours(&self.config().scheduler_names, gang) && bound_by_rule(gang) && !free(gang));
            ours.any(|gang| gang.counts().unplaced() > 0)
        };
        self.gangs().records().iter().filter(|(group, record)| waits(group, record.progress.satisfied_once())).count()
    }

    fn gang_view(&self, gang: &Gang, now: Moment) -> GangView {
        let (config, group) = (gang.config(), gang.group());
        let progress = self.gangs().record(group).map(|record| record.progress.clone()).unwrap_or_default();
        let named = |wanted: fn(MemberState) -> bool| -> Vec<String> {
            let mut names: Vec<String> = members(gang, wanted).map(|member| member.identity.key.to_string()).collect();
            names.sort_unstable();
            names
        };
        let round = |member: &Member| progress.rounds.get(&member.pod).copied().unwrap_or(0);
        GangView {
            name: gang.id().name().to_owned(),
            namespace: gang.id().namespace().to_owned(),
            min_required_number: config.min.unwrap_or(0),
            total_children_num: config.total,
            mode: config.mode.to_string(),
            match_policy: config.policy.to_string(),
            wait_time: go_duration(config.wait),
            gang_group: group.gangs().iter().map(GangId::to_string).collect(),
            children: named(MemberState::is_child),
            counts: *gang.counts(),
            not_created: config.min.unwrap_or(0).saturating_sub(gang.counts().all()),
            create_time: gang.created(),
            pending_children: named(|state| state == MemberState::Pending),
            waiting_for_bind_children: named(|state| state == MemberState::Reserved),
            bound_children: named(MemberState::is_bound),
            schedule_cycle: progress.cycle,
            schedule_cycle_valid: progress.cycle_valid,
            children_schedule_round_map: members(gang, MemberState::is_child)
                .map(|member| (member.identity.key.to_string(), round(member)))
                .collect(),
            resource_satisfied: progress.satisfied_once(),
            holding_since: progress.holding_since,
            attempts: progress.attempts,
            next_try: self.queue().next_try(Item::Group(group.clone()), now),
            last_failure: self.of_other_scheduler(gang).or(progress.last_failure),
        }
    }

    /// Explains the gang of that name; `None` when there is none.
    pub fn explain_gang(&self, id: &GangId, now: Moment) -> Option<GangExplanation> {
        let mut found = self.gang_state(id, now)?;
        let group = self.world().gangs().gang(id)?.group();
        let first = self.lacking(group).first().copied().filter(|_| found.root_cause.is_some());
        found.one_move = first.and_then(|first| self.move_beside_nominated(first, Some(group), now));
        Some(found)
    }

    /// The same without what would help.
    pub(super) fn gang_state(&self, id: &GangId, now: Moment) -> Option<GangExplanation> {
        let gang = self.world().gangs().gang(id)?;
        let group = gang.group();
        let record = self.gangs().record(group);
        let progress = record.map(|record| record.progress.clone()).unwrap_or_default();
        let counts = gang.counts();
        // Without a waiting member nothing is held back.
        let waits = counts.pending + counts.gated + counts.timed_out > 0 || progress.holding_since.is_some();
        let held = self.world().gangs().not_ready(gang, progress.satisfied_once()).filter(|_| waits);
        let enough = counts.placed() + counts.succeeded >= gang.config().min.unwrap_or(0).max(1);
        let placed = enough || !waits && progress.satisfied_once();
        let state = match &held {
            Some(hold) if hold.reason() == ConditionReason::GangTimeout => "marked",
            Some(_) => "held",
            None if counts.live() == 0 => "finished",
            None if placed => "satisfied",
            None if progress.satisfied_once() && counts.reserved > 0 => "binding",
            None if progress.holding_since.is_some() => "holding",
            None => "waiting",
        };
        let other = self.placed_by_another(gang);
        let state = if other.is_some() { "otherScheduler" } else { state };
        let message = match (&held, other) {
            (_, Some(other)) => other,
            (Some(hold), None) => hold.to_string(),
            (None, None) => match (state, &progress.last_failure) {
                ("waiting" | "holding", Some(failure)) => failure.clone(),
                ("waiting" | "holding", None) => {
                    let after = || after_satisfaction(gang, progress.satisfied_once());
                    let other = self.of_other_scheduler(gang).or_else(after);
                    other.unwrap_or_else(|| "it was not tried yet".to_owned())
                }
                ("finished", _) => "no member is left".to_owned(),
                ("satisfied", _) => self.started(gang, now),
                _ => format!("{} of {} members have a node", counts.placed(), gang.config().min.unwrap_or(0)),
            },
        };
        let reason = held.as_ref().map(NotReady::reason).filter(|_| state != "otherScheduler");
        let short = match &held {
            Some(NotReady::TooFew { gang, .. }) => self.world().gangs().gang(gang),
            _ => None,
        };
        let waits = matches!(state, "waiting" | "holding");
        let state = if waits && self.never_starts(group) { "tooLarge" } else { state };
        let queued = self.queue().standing(Item::Group(group.clone())).filter(|_| state != "otherScheduler");
        let wakes = match queued.map(|queued| queued.state) {
            _ if matches!(state, "held" | "marked") => vec![GANG_CHANGES.to_owned()],
            // Freed devices are not enough for one that is too large.
            Some(QueueState::Parked(wake, _)) => {
                wakes(*wake).into_iter().filter(|when| state != "tooLarge" || !frees(when)).collect()
            }
            _ => Vec::new(),
        };
        Some(GangExplanation {
            gang: id.to_string(),
            state: state.to_owned(),
            reason: reason.or_else(|| waits.then_some(ConditionReason::Unschedulable)).map(|reason| reason.to_string()),
            message,
            advice: advice(state, reason, short.unwrap_or(gang)),
            group: self.world().gangs().of_group(group).map(|gang| standing(gang, progress.satisfied_once())).collect(),
            root_cause: record.and_then(|record| record.root_cause.clone()).filter(|_| waits),
            one_move: None,
            attempts: progress.attempts,
            wakes,
            next_try_seconds: queued.and_then(next_try).map(|at| at.saturating_sub(now.mono).as_secs()),
            holding_since: progress.holding_since,
            wait_time: go_duration(gang.config().wait),
            members: gang.members().map(|member| self.member_view(member)).collect(),
        })
    }

    /// The nodes that there are have too few GPUs for what the group lacks, even when they are empty.
    pub(super) fn never_starts(&self, group: &GroupId) -> bool {
        beyond(self.world(), self.lacking(group).iter().filter_map(|id| self.world().pod(*id))).is_some()
    }

    /// Where the members of a gang that asks for a topology are: ` in example.com/rack=r1`, ` in 2 of example.com/rack`.
    fn gathered(&self, gang: &Gang) -> String {
        let nodes = gang.members().filter_map(|member| self.world().node(self.world().pod(member.pod)?.node()?));
        let facts: Vec<_> = nodes.filter_map(|node| node.facts.as_ref()).collect();
        let asked = self.world().gangs().topology_of(gang.group()).unwrap_or_default();
        let at = |label: &str| {
            let domains: BTreeSet<_> = facts.iter().map(|facts| facts.domain(label)).collect();
            match domains.first() {
                Some(Some(one)) if domains.len() == 1 => format!(" in {label}={one}"),
                _ => format!(" in {} of {label}", domains.len()),
            }
        };
        let all: Vec<String> = asked.required.iter().chain(&asked.preferred).map(|label| at(label)).collect();
        all.join(",")
    }

    /// How many members of a bound gang have started, and what the first of the others waits for when that takes long.
    fn started(&self, gang: &Gang, now: Moment) -> String {
        let counts = gang.counts();
        let at = self.gathered(gang);
        let bound = format!("{} of {} bound members have started{at}", counts.running, counts.placed());
        let pods = gang.members().filter_map(|member| self.world().pod(member.pod));
        let mut delays = pods.filter_map(|pod| self.lock_delay(pod, now));
        match delays.find(|delay| delay.judge() > Delay::Usual) {
            Some(delay) => format!("{bound}; {}: {delay}", delay.holder),
            None => bound,
        }
    }

    /// What is wrong where a member waits for a scheduler that is not Baton.
    fn of_other_scheduler(&self, gang: &Gang) -> Option<String> {
        let config = self.config();
        let served = |name: &str| config.scheduler_names.contains(name) || config.asking_names.contains(name);
        let mut pods = gang.members().filter_map(|member| self.world().pod(member.pod));
        let (pod, want) = pods.find_map(|pod| Some((pod, wants_of_another(self.world(), pod, served)?)))?;
        let ours = config.scheduler_names.first().map_or("", |name| name);
        Some(other_scheduler_text(want, &pod.facts.handoff.scheduler_name, ours))
    }

    /// Of a gang none of whose members is ours: which scheduler has them, and what that means.
    fn placed_by_another(&self, gang: &Gang) -> Option<String> {
        if gang.counts().live() == 0 || is_ours(&self.config().scheduler_names, gang) {
            return None;
        }
        let name = gang.schedulers().next()?;
        let ours = self.config().scheduler_names.first().map_or("", |name| name);
        Some(self.of_other_scheduler(gang).unwrap_or_else(|| {
            format!("its pods name the scheduler {name}, which places each of them separately; {ours} places gangs")
        }))
    }

    fn member_view(&self, member: &Member) -> MemberView {
        let node = self.world().pod(member.pod).and_then(Pod::node).and_then(|id| self.world().node(id));
        MemberView {
            pod: member.identity.key.to_string(),
            state: state_name(member.state).to_owned(),
            node: node.map(|node| node.name.to_string()),
        }
    }
}

fn members(gang: &Gang, wanted: fn(MemberState) -> bool) -> impl Iterator<Item = &Member> {
    gang.members().filter(move |member| wanted(member.state))
}

pub(super) fn standing(gang: &Gang, once: bool) -> GangStanding {
    let (config, counts) = (gang.config(), gang.counts());
    let placed = match config.policy {
        // Once the gang was satisfied, bound members are what matters.
        MatchPolicy::OnceSatisfied if once => counts.waiting() + counts.placed() + counts.succeeded,
        policy => rule::weight(policy, counts),
    };
    GangStanding {
        gang: gang.id().to_string(),
        placed,
        needed: config.min.unwrap_or(0),
        children: counts.children(),
        phase: gang.pod_group().and_then(|object| object.status.phase),
        warnings: gang.warnings().iter().map(ToString::to_string).collect(),
    }
}

/// What to do; `gang` is the one whose minimum matters.
fn advice(state: &str, reason: Option<ConditionReason>, gang: &Gang) -> String {
    let place = gang.min_stated().map(|place| format!(" ({place})")).unwrap_or_default();
    let lower = format!("lower the minimum{place}");
    let fixed = match (state, reason) {
        ("otherScheduler", _) => {
            "create the pods again with spec.schedulerName of this scheduler: the field cannot be changed"
        }
        ("marked", _) => {
            "delete the marked pods so that their controller creates new ones, or remove the annotation \
             gang.scheduling.koordinator.sh/timeout from them"
        }
        ("tooLarge", _) => {
            // Of several gangs another one may be the large one.
            let lower = if gang.group().is_alone() { &*lower } else { "lower a minimum" };
            return format!("add nodes, ask for less per member, or {lower}: freed devices are not enough");
        }
        (_, Some(ConditionReason::WaitingForPodGroup)) => "create the PodGroup that the pods name, in their namespace",
        (_, Some(ConditionReason::GangIncomplete)) => {
            return format!(
                "create the pods or gangs that do not exist, remove scheduling gates, or {lower}; the gang is tried at once then"
            );
        }
        (_, Some(ConditionReason::InvalidGang)) => {
            "correct name, groups, topology, priority or schedulerName: they must be valid, the last two equal over the whole group"
        }
        (_, Some(ConditionReason::GangGroupMismatch)) => "let every gang of the group list the same gangs",
        ("waiting" | "holding", _) => {
            return format!(
                "free or add what the first pod without a place asks for, or {lower}, or correct or widen the topology that is asked for; \
                 nothing else needs to be done, the gang is tried again by itself"
            );
        }
        _ => "nothing",
    };
    fixed.to_owned()
}

const fn state_name(state: MemberState) -> &'static str {
    match state {
        MemberState::Pending => "Pending",
        MemberState::Reserved => "Reserved",
        MemberState::Bound => "Bound",
        MemberState::Running => "Running",
        MemberState::Succeeded => "Succeeded",
        MemberState::Failed => "Failed",
        MemberState::Gated => "Gated",
        MemberState::TimedOut => "TimedOut",
        MemberState::Terminating => "Terminating",
    }
}

/// A duration as Go prints it: `10m0s`, `1h30m0s`, `500ms`.
fn go_duration(wait: std::time::Duration) -> String {
    let (hours, minutes) = (wait.as_secs() / 3600, wait.as_secs() / 60 % 60);
    let seconds = wait.as_secs_f64() - (hours * 3600 + minutes * 60) as f64;
    let parts = [(1_000_000, "ms"), (1_000, "µs"), (1, "ns")];
    if wait.as_secs() == 0
        && let Some((unit, name)) = parts.into_iter().find(|(unit, _)| wait.as_nanos() >= *unit)
    {
        return format!("{}{name}", wait.as_nanos() as f64 / unit as f64);
    }
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::go_duration;
    use std::time::Duration;

    #[test]
    fn waits_are_printed_as_go_does() {
        for (millis, text) in
            [(600_000, "10m0s"), (5_400_000, "1h30m0s"), (500, "500ms"), (1_500, "1.5s"), (0, "0s"), (5_000, "5s")]
        {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
    }
}
