//! Gangs that are gathered: one domain after the other is tried, as if the cluster had no other nodes.
//!
//! What is preferred is given up layer by layer, the innermost first; what is required never is. Of the domains with room for the group,
//! that goes first in which the least is left over.

use std::sync::Arc;

use crate::core::agenda::Terms;
use crate::core::placing::Placing;
use crate::core::reservations::Saved;
use crate::core::rules::Eligibility;
use crate::core::rules::View;
use crate::core::rules::plugins::default_preemption::EvictionCost;
use crate::core::select::eligible::NodeEligibility;
use crate::core::select::free::{free_on, percent};
use crate::core::select::shape::PodShape;
use crate::world::gangs::GroupId;
use crate::world::{
    Confinement, GroupTopology, MeasuredDomain, Node, NodeFacts, NodeId, Pod, PodId, Resources, Stock, Wake, World,
};

use super::attempt::{Attempt, Search};
use super::members::{SavedGroup, is_strict};
use super::preempt::VictimPlan;
use super::search::reserve_all;
use super::try_order::Aim;
use super::{Gangs, TryOrder, UnfitMember};

/// Domains of one layer that are searched for all members jointly; in others one member comes after the other.
const SEARCHED: usize = 16;
/// Changes after which a domain may have room that had none when it was measured.
const ROOM: Wake = Wake::NODE.or(Wake::POD_FREED);
/// More than any node takes.
const PODS: i64 = 10_000;

/// What the members that a group needs take at least, as domains are measured.
struct RoomNeed<'a> {
    /// Nodes that take any of them.
    eligible: NodeEligibility<'a>,
    /// A member of those, where all are alike: room is counted in such members. Otherwise in percents of GPUs.
    one: Option<Pod>,
    /// Percent of GPUs that it asks for.
    asked: i64,
    least: i64,
}

impl<'a> RoomNeed<'a> {
    fn of(terms: Terms<'a>, world: &World, order: &TryOrder) -> Self {
        let needed = || order.needed().filter_map(|id| world.pod(id));
        let eligible = NodeEligibility::of(terms.rules, needed());
        match needed().next().filter(|_| order.is_uniform()) {
            Some(one) => {
                let asked = percent(&one.facts.spec.requests);
                Self { eligible, one: Some(one.clone()), asked, least: order.needed().count() as i64 }
            }
            None => Self { eligible, one: None, asked: 0, least: order.least(world) },
        }
    }

    /// At most so much is free on a node, and would be without any pod, taint or cordon there.
    fn room(&self, view: View<'_>, (id, node): (NodeId, &Node)) -> (i64, i64) {
        let Some(facts) = &node.facts else { return (0, 0) };
        let (now, ever) = self.room_by_amounts(node, facts);
        match self.eligible.on(view, (id, node)) {
            Eligibility::Never => (0, 0),
            Eligibility::NotNow => (0, ever),
            Eligibility::Now => (now, ever),
        }
    }

    fn room_by_amounts(&self, node: &Node, facts: &NodeFacts) -> (i64, i64) {
        let all = percent(&facts.allocatable).max(node.stock.as_ref().map_or(0, Stock::listed_percent));
        let ever = self.fitting(facts, all, &Resources::default(), 0);
        (self.fitting(facts, free_on(node), &node.used, node.pods.len()), ever)
    }

    /// What of it fits a node with so much percent of GPUs free, so much used and so many pods.
    fn fitting(&self, facts: &NodeFacts, free: i64, used: &Resources, pods: usize) -> i64 {
        let Some(one) = &self.one else { return free };
        let wants = &one.facts.spec.requests;
        let fits = |free: i64, wanted: i64| if wanted > 0 { free.max(0) / wanted } else { PODS };
        let has = &facts.allocatable;
        let limits = [
            fits(free, self.asked),
            fits(has.milli_cpu - used.milli_cpu, wants.milli_cpu),
            fits(has.memory - used.memory, wants.memory),
            facts.max_pods - pods as i64,
        ];
        limits.into_iter().min().unwrap_or(0)
    }

    /// The room of a domain once the pods below this priority have left its nodes; `None` where no node takes any member.
    fn room_without(&self, view: View<'_>, at: &Confinement, below: i32) -> Option<i64> {
        let nodes = view.world.nodes_in(Some(at)).filter(|node| self.eligible.on(view, *node) == Eligibility::Now);
        let room = |(_, node): (NodeId, &Node)| {
            let facts = node.facts.as_ref()?;
            let (mut free, mut used, mut pods) = (free_on(node).max(0), node.used.clone(), node.pods.len());
            for pod in node.pods.iter().filter_map(|id| view.world.pod(*id)) {
                if pod.facts.spec.priority < below {
                    free += percent(&pod.facts.spec.requests);
                    used.sub(&pod.facts.spec.requests);
                    pods -= 1;
                }
            }
            Some(self.fitting(facts, free, &used, pods).max(0))
        };
        nodes.filter_map(room).reduce(|one, other| one + other)
    }

    /// `4 members`, or `16 GPUs`.
    fn text(&self, amount: i64) -> String {
        match (&self.one, amount) {
            (Some(_), 1) => "1 member".to_owned(),
            (Some(_), _) => format!("{amount} members"),
            (None, _) => format!("{} GPUs", amount / baton_contract::key::WHOLE),
        }
    }
}

/// A domain where a group may be gathered.
struct Domain {
    at: Arc<Confinement>,
    nodes: usize,
    /// At most so much is free, see [`RoomNeed`].
    free: i64,
    /// The same without any pod there.
    all: i64,
}

impl Domain {
    /// Those of each of these lists of labels, of which each is the beginning of the one before it.
    fn all_of(view: View<'_>, group: &GroupId, levels: &[Vec<Box<str>>], need: &RoomNeed<'_>) -> Vec<Vec<Self>> {
        let world = view.world;
        let of_level = |(labels, domains): (&Vec<Box<str>>, Vec<MeasuredDomain>)| {
            let placed = world.domain_of_placed(group, labels, None);
            let domains = domains.into_iter().filter(|(at, _)| placed.is_none() || at.values() == placed.as_ref());
            let domain =
                |(at, (free, all)): (Confinement, _)| Self { nodes: at.looked_up().len(), at: Arc::new(at), free, all };
            domains.map(domain).collect()
        };
        levels.iter().zip(world.domains(levels, |node| need.room(view, node))).map(of_level).collect()
    }
}

impl Gangs {
    /// One attempt of a group that is gathered.
    pub(super) fn attempt_gathered(
        &mut self,
        placing: &mut Placing<'_>,
        group: &GroupId,
        topology: &GroupTopology,
    ) -> Attempt {
        // What a NonStrict group holds does not say where it is gathered: another domain may have room for all of it.
        let own = SavedGroup::take(placing, group);
        let aim = Aim::Minimum { once: self.satisfied_once(group) };
        let order = TryOrder::of(placing.world, placing.stats, group, &[], aim);
        let need = RoomNeed::of(placing.terms, placing.world, &order);
        let failed = self.groups.get(group).map(|record| record.attempt.failed.clone()).unwrap_or_default();
        let mut nearest: Option<(usize, UnfitMember)> = None;
        let mut wake = ROOM;
        let levels: Vec<_> = topology.levels().collect();
        for (labels, mut domains) in levels.iter().zip(Domain::all_of(placing.view(), group, &levels, &need)) {
            let required = labels.len() == topology.required.len();
            domains.sort_by_key(|domain| (domain.free < need.least, domain.free, domain.nodes));
            let large = domains.partition_point(|domain| domain.free >= need.least);
            if required && let Some(refused) = too_large(&domains, &need, labels, &order) {
                own.put(placing);
                return Attempt::Unfit(refused);
            }
            // Of the domains that are too full, the one with the most room is tried to say what is missing there.
            if required && large == 0 {
                domains.reverse();
            }
            let tried = if required { large.max(1) } else { large };
            let all = domains.len();
            for (at, domain) in domains.into_iter().take(tried).enumerate() {
                if let Some(record) = self.groups.get_mut(group) {
                    record.attempt.failed.clone_from(&failed);
                }
                placing.world.confine(group, Arc::clone(&domain.at));
                let search = if at < SEARCHED { Search::Joint } else { Search::None };
                let attempt = self.attempt_in_hand(placing, group, aim, search);
                if let Attempt::Satisfied(held) = &attempt {
                    order_by_rank(placing, held);
                }
                // Members beyond the minimum that find no room where they prefer to be go elsewhere.
                let none = matches!(&attempt, Attempt::Satisfied(held) if held.is_empty());
                if none && !required {
                    placing.world.unconfine();
                    break;
                }
                placing.world.unconfine();
                let Attempt::Unfit(unfit) = attempt else { return attempt };
                let found = unfit.found.len();
                wake = wake.or(unfit.wake);
                if required && nearest.as_ref().is_none_or(|(most, _)| found >= *most) {
                    let near = Some((domain.at, all));
                    nearest = Some((found, UnfitMember { near, ..unfit }));
                }
            }
        }
        own.put(placing);
        let Some((_, unfit)) = nearest else {
            placing.stats.work.begin();
            return self.attempt_anywhere(placing, group);
        };
        let unfit = UnfitMember { wake, ..unfit };
        if is_strict(placing.world, group) {
            return Attempt::Unfit(unfit);
        }
        self.attempt_nearest(placing, group, topology, unfit)
    }

    /// No domain has room for a group that starts with those that fit: it goes on where it holds room, else where the most of it fits.
    fn attempt_nearest(
        &mut self,
        placing: &mut Placing<'_>,
        group: &GroupId,
        topology: &GroupTopology,
        unfit: UnfitMember,
    ) -> Attempt {
        let held = placing.world.domains_for(group, &topology.required);
        let at = match &held[..] {
            [one] => Some(Arc::new(one.clone())),
            _ => unfit.near.as_ref().map(|(at, _)| Arc::clone(at)),
        };
        if let Some(at) = at {
            placing.world.confine(group, at);
        }
        let attempt = self.attempt_anywhere(placing, group);
        placing.world.unconfine();
        match attempt {
            Attempt::Unfit(other) => {
                Attempt::Unfit(UnfitMember { wake: unfit.wake.or(other.wake), near: unfit.near, ..other })
            }
            satisfied @ Attempt::Satisfied(_) => satisfied,
        }
    }

    /// The cheapest of what `plan` finds with the group confined to one domain after the other, those with the most room first; one whose
    /// victims are of the least important pods ends the search. A group that need not be gathered is not confined.
    pub(super) fn in_each_domain(
        &mut self,
        placing: &mut Placing<'_>,
        group: &GroupId,
        mut plan: impl FnMut(&mut Self, &mut Placing<'_>) -> Option<VictimPlan>,
    ) -> Option<VictimPlan> {
        let topology = placing.world.gangs().topology_of(group).filter(|topology| !topology.required.is_empty());
        let Some(topology) = topology else { return plan(self, placing) };
        let aim = Aim::Minimum { once: self.satisfied_once(group) };
        let order = TryOrder::of(placing.world, placing.stats, group, &[], aim);
        let need = RoomNeed::of(placing.terms, placing.world, &order);
        let all = Domain::all_of(placing.view(), group, std::slice::from_ref(&topology.required), &need);
        let mut domains: Vec<Domain> = all.into_iter().flatten().collect();
        let needed = order.needed().filter_map(|id| placing.world.pod(id));
        let below = needed.map(|pod| pod.facts.spec.priority).max().unwrap_or(i32::MIN);
        let view = placing.view();
        let suffices = |domain: &Domain| need.room_without(view, &domain.at, below) >= Some(need.least);
        domains.retain(|domain| domain.all >= need.least && suffices(domain));
        domains.sort_by_key(|domain| (-domain.free, domain.nodes));
        let lowest = placing.world.lowest_priority().unwrap_or(i32::MIN);
        let mut cheapest: Option<(EvictionCost, VictimPlan)> = None;
        for domain in domains.into_iter().take(SEARCHED) {
            placing.world.confine(group, domain.at);
            let found = plan(self, placing);
            placing.world.unconfine();
            let Some(found) = found else { continue };
            let cost = EvictionCost::of(found.iter().flat_map(|(_, candidate)| &candidate.victims));
            let ends = cost.is_least(lowest);
            if cheapest.as_ref().is_none_or(|(least, _)| cost < *least) {
                cheapest = Some((cost, found));
            }
            if ends {
                break;
            }
        }
        cheapest.map(|(_, plan)| plan)
    }
}

/// Members of one kind change places so that their ranks follow the layers of the nodes, and nodes of one domain their names.
fn order_by_rank(placing: &mut Placing<'_>, held: &[PodId]) {
    let rank = |id: &PodId| Some((placing.world.pod(*id)?.facts.rank?, *id));
    let mut ranked: Vec<(u32, PodId)> = held.iter().filter_map(rank).collect();
    ranked.sort_unstable();
    // Pods of one shape fit the same nodes. Each may have labels of its own, such as its index.
    while let Some(shape) = ranked.first().and_then(|(_, id)| placing.world.pod(*id)).map(PodShape::of) {
        let is_like = |(_, id): &mut (u32, PodId)| placing.world.pod(*id).is_some_and(|pod| shape.is_of(pod));
        let kind: Vec<(u32, PodId)> = ranked.extract_if(.., is_like).collect();
        order_kind(placing, &kind);
    }
}

/// The same of members of one shape, by rank.
fn order_kind(placing: &mut Placing<'_>, ranked: &[(u32, PodId)]) {
    let world = &*placing.world;
    let Some(first) = ranked.first().and_then(|(_, id)| world.pod(*id)) else { return };
    let place = |id: &PodId| {
        let at = placing.reservations.node_of(*id)?;
        let node = world.node(at)?;
        let facts = node.facts.as_ref()?;
        let layers = world.gangs().defaults().layers.iter().map(|layer| facts.domain(&layer.label).map(str::to_owned));
        Some((layers.collect::<Vec<_>>(), node.name.clone(), at))
    };
    let now: Vec<_> = ranked.iter().filter_map(|(_, id)| place(id)).collect();
    if now.is_sorted() || now.len() < ranked.len() {
        return;
    }
    let mut wanted = now;
    wanted.sort_unstable();
    let (priority, first) = (first.facts.spec.priority, first.id);
    let before: Vec<Saved> =
        ranked.iter().filter_map(|(_, id)| placing.reservations.save(placing.terms, placing.world, *id)).collect();
    let moves = ranked.iter().zip(wanted).map(|((_, id), (.., at))| (*id, at, None));
    if !placing.with_nominated(priority, first, |placing| reserve_all(placing, moves)) {
        before.into_iter().for_each(|saved| placing.reservations.restore(placing.world, saved));
    }
}

/// Not even an empty domain has room for the group.
fn too_large(domains: &[Domain], need: &RoomNeed<'_>, labels: &[Box<str>], order: &TryOrder) -> Option<UnfitMember> {
    let first = order.needed().next()?;
    let text = match domains.iter().max_by_key(|domain| domain.all) {
        None => format!("no node has the label {}", labels.join(" and ")),
        Some(largest) if largest.all < need.least => format!(
            "it must be gathered in one {} and needs room for {}; the largest, {}, has room for {} when it is empty",
            labels.join(" and "),
            need.text(need.least),
            largest.at.name(),
            need.text(largest.all),
        ),
        Some(_) => return None,
    };
    Some(UnfitMember::of(first, text, ROOM))
}
