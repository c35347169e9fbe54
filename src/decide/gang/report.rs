//! What is reported about a group: why its members fit no node, why it is not ready, what is wrong with its declarations. A group
//! without room is also parked here, and its waiting time is started ([`Gangs::report_short`]). An
//! event comes once per change of state, on each member that waits ([`crate::core::reporter::Reporter::conditions`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::shortage::shortage;
use super::trying::try_member;
use crate::core::agenda::{Agenda, Scene};
use crate::core::context::Context;
use crate::core::earmarks::is_aged;
use crate::core::min_resources;
use crate::core::queue::Item;
use crate::world::gangs::{Gang, GangDefaults, GroupId, Warning, rule};
use crate::world::{PodId, Wake, World};
use baton_contract::gang::{GangId, MatchPolicy};

use super::members::{is_ours, pending_members, reserved_members};
use super::try_order::Aim;
use super::{GangState, Gangs, RootCause, Route, TryOrder, UnfitMember};

impl Gangs {
    /// Members beyond the minimum of a satisfied group fit no node: they wait, and their conditions say why.
    pub(super) fn report_surplus(&mut self, cx: &mut Context<'_>, group: &GroupId) {
        let with_group = |id: &PodId| matches!(self.route_of(cx.world, cx.reservations, *id), Some(Route::Group(_)));
        let waiting: Vec<PodId> =
            pending_members(cx.terms.scene(cx.world), group).into_iter().filter(with_group).collect();
        let Some(first) = waiting.first().copied() else { return };
        let Err(mut unfit) = try_member(&mut cx.placing(), first) else {
            // It fits after all: the next attempt binds it.
            cx.reservations.undo(cx.terms, cx.world, &[first]);
            return self.queue_group(cx.terms.scene(cx.world), cx.reservations, cx.agenda, group);
        };
        // Under only-waiting it does not count any more when the victims have left.
        let gang = cx.world.gangs().gang_of(first);
        let lasts = gang.is_some_and(|gang| gang.config().policy != MatchPolicy::OnlyWaiting);
        if lasts && let Some(way) = self.preempt_for_pod(cx, first) {
            unfit.text = format!("{}; {way}", unfit.text);
        }
        let message = self.note_failure(cx.terms.scene(cx.world), group, &mut unfit);
        cx.reporter.conditions(cx.terms.scene(cx.world), cx.agenda, waiting, unfit.reason, message);
    }

    /// Parks a group that lacks room, starts its waiting time and reports why. Reservations of a NonStrict group stay.
    pub(super) fn report_short(&mut self, cx: &mut Context<'_>, group: &GroupId, mut unfit: UnfitMember) {
        cx.agenda.stats.unschedulable += 1;
        let held = reserved_members(cx.world, cx.reservations, group);
        let wake = unfit.wake.or(Wake::NODE_ADDED);
        cx.agenda.queue.park(Item::Group(group.clone()), wake, cx.terms.now.mono);
        let states = GangState::of_group(cx.world, group);
        let mut restated = false;
        if let Some(record) = self.groups.get_mut(group) {
            let same =
                |before: &Vec<GangState>| before.iter().zip(&states).all(|(old, new)| old.declares_the_same(new));
            restated = record.attempt.gangs.as_ref().is_some_and(|before| !same(before));
            record.attempt.gangs = Some(states);
        }
        let item = Item::Group(group.clone());
        let created = cx.world.gangs().of_group(group).filter_map(Gang::created).min();
        if created.is_some_and(|created| is_aged(cx.terms, &mut cx.agenda.queue, &item, created)) {
            let aim = Aim::Minimum { once: self.satisfied_once(group) };
            let needed: Vec<PodId> = TryOrder::of(cx.world, &mut cx.agenda.stats, group, &[], aim).needed().collect();
            if let Some(kept) =
                cx.earmarks.consider(cx.terms, cx.world, cx.agenda, &item, &format!("gang {group}"), &needed)
            {
                unfit.text = format!("{}; {kept}", unfit.text);
            }
        }
        if let Some((at, _)) = &unfit.near {
            cx.world.confine(group, Arc::clone(at));
        }
        let message = self.note_failure(cx.terms.scene(cx.world), group, &mut unfit);
        cx.world.unconfine();
        self.run_clock(cx.terms.scene(cx.world), cx.agenda, group, &held);
        // Members with a reservation wait as well, for the same reason.
        let mut waiting = held;
        waiting.extend(pending_members(cx.terms.scene(cx.world), group));
        let step = |gang: &Gang| {
            rule::weight(gang.config().policy, gang.counts()) / (gang.config().min.unwrap_or(0) / 10).max(1)
        };
        let steps: Vec<u32> = cx.world.gangs().of_group(group).map(step).collect();
        if let Some(record) = self.groups.get_mut(group)
            && (std::mem::replace(&mut record.reports.steps, steps) != record.reports.steps || restated)
        {
            waiting.iter().for_each(|id| cx.reporter.end_pause(*id));
        }
        cx.reporter.conditions(cx.terms.scene(cx.world), cx.agenda, waiting, unfit.reason, message);
    }

    /// Records the last failure and its root cause. Returns the message.
    fn note_failure(&mut self, scene: Scene<'_>, group: &GroupId, unfit: &mut UnfitMember) -> String {
        let message = shortage(scene, group, unfit, &mut self.nearest);
        if let Some(record) = self.groups.get_mut(group) {
            record.progress.last_failure = Some(message.clone());
            let blocking = scene.world.pod(unfit.pod).map(|pod| pod.key().to_string());
            record.root_cause = blocking.map(|pod| RootCause { pod, summary: std::mem::take(&mut unfit.text) });
        }
        message
    }

    /// Reports what is wrong with the declarations of a group, each warning once for as long as it lasts.
    pub(super) fn warn(&mut self, scene: Scene<'_>, agenda: &mut Agenda, group: &GroupId) {
        let defaults = scene.world.gangs().defaults();
        let gangs = scene.world.gangs().listing(group);
        let mut found: BTreeSet<(GangId, Warning)> = BTreeSet::new();
        let mut news: Vec<(PodId, Warning)> = Vec::new();
        let known = self.groups.get(group).map(|record| &record.reports.warned);
        for gang in gangs.filter(|gang| is_ours(&scene.terms.config.scheduler_names, gang)) {
            let Some(oldest) = gang.members().next().filter(|member| member.state.is_live()) else { continue };
            for warning in gang.warnings() {
                let key = (gang.id().clone(), warning);
                if known.is_none_or(|known| !known.contains(&key)) {
                    news.push((subject(gang, &key.1, defaults).unwrap_or(oldest.pod), key.1.clone()));
                }
                found.insert(key);
            }
        }
        let Some(record) = self.groups.get_mut(group).filter(|record| record.reports.warned != found) else { return };
        record.reports.warned = found;
        for (pod, warning) in news {
            agenda.warning(scene.world, pod, warning.reason(), warning.to_string());
        }
    }
}

/// The member that a warning is about, where it is about one.
fn subject(gang: &Gang, warning: &Warning, defaults: &GangDefaults) -> Option<PodId> {
    let mut live = gang.members().take_while(|member| member.state.is_live());
    live.find(|member| member.declared.all_warnings(defaults).any(|known| *known == *warning)).map(|member| member.pod)
}

/// [`min_resources::missing`], as what a group reports before any member is tried.
pub(super) fn missing_resources(world: &World, group: &GroupId) -> Option<UnfitMember> {
    min_resources::missing(world, group).map(|(pod, text)| UnfitMember::of(pod, text, Wake::ANY))
}
