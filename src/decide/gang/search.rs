//! The exact search: for a small group that fits in no order of its members, it tries every way of placing them.
//!
//! Members are placed one after the other. The filters judge each node; where only devices are missing, the devices of all
//! members of the group on that node are chosen again together with those of the new one. Equal members and equal nodes are
//! interchangeable, and a state from which the rest did not fit is not tried twice.
//!
//! A placement that is tried costs one step; of a member that looks at others, also what is compared for it, as that grows with the
//! cluster: among thousands of pods such a search tries some hundred placements.

use std::collections::{BTreeMap, BTreeSet};

use crate::core::agenda::Scene;
use crate::core::cost::LOOKS;
use crate::core::placing::{Placing, compared};
use crate::core::reservations::Saved;
use crate::core::rules::plugins::device_fit;
use crate::core::select::choose::{NodeChoice, choose, judge, prepare};
use crate::devices::PodDeviceRequest;
use crate::world::devices::{DeviceChoice, request_of};
use crate::world::{NodeId, PodId, Stock, World};

use super::TryOrder;
use super::alike::{MemberKind, looks_at_others};

/// Most kinds of members in a search. Identical members alone need no search: their order does not matter.
const KINDS: usize = 8;
/// Most members in a search.
pub(super) const MEMBERS: usize = 32;
/// Most nodes in a search. A group of eight that fits on so many nodes is placed without a search.
const NODES: usize = 64;
/// Steps for up to eight members, and for more.
const STEPS: (u64, u64) = (10_000, 1_000);
/// Device choices that are tried.
const CHOICES: usize = 20_000;

/// Most searches that one budget begins.
const SEARCHES: u64 = 64;

/// How much one search, or several over the same group, may try.
pub(super) struct Budget {
    steps: u64,
    choices: usize,
    /// Steps that it costs to begin a search.
    least: u64,
}

impl Budget {
    /// One search.
    fn of_one() -> Self {
        Self { steps: STEPS.0, choices: CHOICES, least: 0 }
    }

    /// Several searches that together try no more than one.
    pub(super) fn of_many(order: &TryOrder) -> Self {
        let steps = steps_for(order.len());
        Self { steps, choices: CHOICES, least: steps / SEARCHES }
    }

    /// Takes the cost of beginning a search, and of judging nodes in these steps. `false` when nothing is left to search with.
    fn begin(&mut self, judging: u64) -> bool {
        if self.least > 0 {
            self.steps = self.steps.saturating_sub(self.least + judging);
        }
        self.steps > 0 && self.choices > 0
    }
}

const fn steps_for(members: usize) -> u64 {
    if members > KINDS { STEPS.1 } else { STEPS.0 }
}

/// A member that may be placed.
struct SearchMember {
    pod: PodId,
    /// Its gang, by position in the group.
    gang: usize,
    kind: usize,
    nodes: Vec<NodeId>,
    /// The devices that it asks for; `None` for none.
    request: Option<PodDeviceRequest>,
}

impl SearchMember {
    fn looks_at_others(&self, world: &World) -> bool {
        world.pod(self.pod).is_some_and(looks_at_others)
    }
}

/// A search under way.
struct ExactSearch {
    members: Vec<SearchMember>,
    /// Class of each node that fits a member: nodes of one class were equal when the search began.
    classes: BTreeMap<NodeId, usize>,
    /// Members that each gang still needs, and members that are still to be tried.
    needed: Vec<usize>,
    left: Vec<usize>,
    /// Placed members, by position in `members`, and their nodes.
    placed: Vec<(usize, NodeId)>,
    /// States from which the other members did not fit.
    dead: BTreeSet<GroupState>,
    steps: u64,
    choices: usize,
}

/// The next member, what each gang still needs, and the kinds on each node that has any, by the node's class.
type GroupState = (usize, Vec<usize>, Vec<(usize, Vec<usize>)>);

impl ExactSearch {
    fn state(&self, next: usize) -> GroupState {
        let mut on: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (at, node) in &self.placed {
            on.entry(*node).or_default().push(self.members[*at].kind);
        }
        let mut nodes: Vec<(usize, Vec<usize>)> = on
            .into_iter()
            .map(|(node, mut kinds)| {
                kinds.sort_unstable();
                (self.classes.get(&node).copied().unwrap_or(usize::MAX), kinds)
            })
            .collect();
        nodes.sort_unstable();
        (next, self.needed.clone(), nodes)
    }

    /// Counts a placement that was tried, for which `compared` was counted.
    fn count_step(&mut self, placing: &mut Placing<'_>, next: usize, compared: u64) {
        placing.stats.work.add(1);
        let cost = if self.members[next].looks_at_others(placing.world) { 1 + compared } else { 1 };
        self.steps = if placing.stats.work.is_spent() { 0 } else { self.steps.saturating_sub(cost) };
    }

    /// Members placed on a node, first to last.
    fn on(&self, node: NodeId) -> impl Iterator<Item = &SearchMember> {
        self.placed.iter().filter(move |(_, at)| *at == node).map(|(at, _)| &self.members[*at])
    }
}

/// Reserves room for as many members as the group needs, whichever members, nodes and devices these are. `None` leaves no
/// reservation.
pub(super) fn search(placing: &mut Placing<'_>, order: &TryOrder) -> Option<Vec<PodId>> {
    search_within(placing, order, &mut Budget::of_one())
}

/// [`search`] within what is left of a budget.
pub(super) fn search_within(placing: &mut Placing<'_>, order: &TryOrder, budget: &mut Budget) -> Option<Vec<PodId>> {
    let (members, kinds) = searchable(placing.world, order)?;
    if placing.stats.work.is_spent() || !budget.begin((placing.world.nodes().count() * kinds) as u64 / LOOKS) {
        return None;
    }
    let first = members.first()?.pod;
    // Priority is equal over the group: the same nominated reservations count for all members.
    let priority = placing.world.pod(first)?.facts.spec.priority;
    placing.with_nominated(priority, first, |placing| search_over(placing, order, members, kinds, budget))
}

/// One member of each kind; `None` where a search finds no more than trying one member after the other.
pub(super) fn one_of_each_kind(world: &World, order: &TryOrder) -> Option<Vec<PodId>> {
    let (members, kinds) = searchable(world, order)?;
    let first = |kind| members.iter().find(|member| member.kind == kind).map(|member| member.pod);
    (0..kinds).map(first).collect()
}

/// The members that a search would place, and how many kinds they are of; `None` where a search is of no use.
fn searchable(world: &World, order: &TryOrder) -> Option<(Vec<SearchMember>, usize)> {
    if order.len() == 0 || order.len() > MEMBERS {
        return None;
    }
    let mut kinds: Vec<MemberKind> = Vec::new();
    let mut members = Vec::new();
    for (at, gang) in order.gangs.iter().enumerate() {
        for id in &gang.pending {
            let pod = world.pod(*id)?;
            let known = kinds.iter().position(|kind| order.anti_affinity.is(world, kind, pod));
            let kind = known.unwrap_or_else(|| {
                kinds.push(order.kind(world, pod));
                kinds.len() - 1
            });
            let request = request_of(pod).ok().filter(|request| !request.is_empty());
            members.push(SearchMember { pod: *id, gang: at, kind, nodes: Vec::new(), request });
        }
    }
    let look_around = kinds.len() == 1 && members.first()?.looks_at_others(world);
    let simple = |member: &SearchMember| member.request.as_ref().is_none_or(is_simple);
    let vain = kinds.len() > KINDS || kinds.len() < 2 && !look_around && members.iter().all(simple);
    (!vain).then_some((members, kinds.len()))
}

fn search_over(
    placing: &mut Placing<'_>,
    order: &TryOrder,
    mut members: Vec<SearchMember>,
    kinds: usize,
    budget: &mut Budget,
) -> Option<Vec<PodId>> {
    let mut fits: Vec<Option<Vec<NodeId>>> = vec![None; kinds];
    for member in &mut members {
        let nodes = fits[member.kind].get_or_insert_with(|| nodes_for(placing.terms.scene(placing.world), member.pod));
        member.nodes.clone_from(nodes);
    }
    // Members with the fewest nodes first, equal members side by side, members that look at others last.
    members.sort_by_key(|member| (member.looks_at_others(placing.world), member.nodes.len(), member.kind, member.gang));
    let mut left: Vec<usize> = vec![0; order.gangs.len()];
    members.iter().filter(|member| !member.nodes.is_empty()).for_each(|member| left[member.gang] += 1);
    if order.gangs.iter().zip(&left).any(|(gang, left)| gang.needed > *left) {
        return None;
    }
    members.retain(|member| !member.nodes.is_empty());
    let steps = budget.steps.min(steps_for(members.len()));
    let mut search = ExactSearch {
        steps,
        classes: classes_of(placing.world, &members),
        needed: order.gangs.iter().map(|gang| gang.needed).collect(),
        left,
        members,
        placed: Vec::new(),
        dead: BTreeSet::new(),
        choices: budget.choices,
    };
    let found = place_rest(placing, &mut search, 0);
    budget.steps -= steps - search.steps;
    budget.choices = search.choices;
    found.then(|| search.placed.iter().map(|(at, _)| search.members[*at].pod).collect())
}

/// Nodes on which the pod may fit, first those on which it fits before any member of its group is placed.
fn nodes_for(scene: Scene<'_>, id: PodId) -> Vec<NodeId> {
    let Some(pod) = scene.world.pod(id) else { return Vec::new() };
    let view = scene.view();
    let Ok(mut slots) = prepare(view, scene.terms.rules, pod) else { return Vec::new() };
    let within = slots.within().cloned();
    let fits = scene
        .world
        .nodes_in(within.as_deref())
        .filter(|node| judge(view, scene.terms.rules, pod, *node, &mut slots).is_fit());
    let mut nodes: Vec<NodeId> = fits.map(|(id, _)| id).take(NODES).collect();
    if looks_at_others(pod) && nodes.len() < NODES {
        // A member that is placed before it may be the pod that it wants to be near to.
        let others = scene.world.nodes_in(within.as_deref()).map(|(id, _)| id).filter(|id| !nodes.contains(id));
        let others: Vec<NodeId> = others.take(NODES - nodes.len()).collect();
        nodes.extend(others);
    }
    nodes
}

/// Classes of nodes that are equal in everything that decides about placement, apart from their names.
fn classes_of(world: &World, members: &[SearchMember]) -> BTreeMap<NodeId, usize> {
    let plain = |request: &PodDeviceRequest| request.shape().wishes.is_plain();
    let places = !members.iter().all(|member| member.request.as_ref().is_none_or(plain));
    let named =
        |member: &SearchMember| member.request.as_ref().is_some_and(|request| request.shape().wishes.names_devices());
    let by_name = members.iter().any(|member| member.looks_at_others(world) || named(member));
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    let mut classes = BTreeMap::new();
    for id in members.iter().flat_map(|member| &member.nodes) {
        if classes.contains_key(id) {
            continue;
        }
        let Some(node) = world.node(*id) else { continue };
        let Some(facts) = &node.facts else { continue };
        let labels: Vec<_> = facts.labels.iter().filter(|(key, _)| *key != "kubernetes.io/hostname").collect();
        let wanted: Vec<bool> = members.iter().map(|other| other.nodes.contains(id)).collect();
        let devices = node.stock.as_ref().map(|stock| Stock::look(stock, places)).unwrap_or_default();
        let name = if by_name { &*node.name } else { "" };
        let (allocatable, taints, pods) = (&facts.allocatable, &facts.taints, node.pods.len());
        let look = format!("{name} {allocatable:?} {:?} {taints:?} {labels:?} {devices} {pods} {wanted:?}", node.used);
        let next = known.len();
        classes.insert(*id, *known.entry(look).or_insert(next));
    }
    classes
}

/// Places the members from `next` on, or none of them. `true` when the group has what it needs.
fn place_rest(placing: &mut Placing<'_>, search: &mut ExactSearch, next: usize) -> bool {
    if search.needed.iter().all(|needed| *needed == 0) {
        return true;
    }
    if next == search.members.len() || search.needed.iter().zip(&search.left).any(|(needed, left)| needed > left) {
        return false;
    }
    let state = search.state(next);
    if search.steps == 0 || search.dead.contains(&state) {
        return false;
    }
    let SearchMember { gang, pod, kind, .. } = search.members[next];
    search.left[gang] -= 1;
    if search.needed[gang] > 0 {
        let mut seen: BTreeSet<(usize, Vec<usize>)> = BTreeSet::new();
        for node in search.members[next].nodes.clone() {
            if search.steps == 0 {
                break;
            }
            let class = search.classes.get(&node).copied().unwrap_or(usize::MAX);
            let mut beside: Vec<usize> = search.on(node).map(|other| other.kind).collect();
            beside.sort_unstable();
            // Equal nodes are one choice.
            if !seen.insert((class, beside)) {
                continue;
            }
            let work = placing.stats.work.done();
            let placed = place_on(placing, search, next, node);
            search.count_step(placing, next, placing.stats.work.done() - work);
            let Some(before) = placed else { continue };
            search.placed.push((next, node));
            search.needed[gang] -= 1;
            if place_rest(placing, search, next + 1) {
                return true;
            }
            search.needed[gang] += 1;
            search.placed.pop();
            placing.reservations.undo(placing.terms, placing.world, &[pod]);
            put_back_as(placing, before);
        }
    }
    // Without it, and without the equal members after it.
    let same = |other: &SearchMember| other.kind == kind && other.gang == gang;
    let run = search.members[next + 1..].iter().take_while(|other| same(other)).count();
    search.left[gang] -= run;
    let without = place_rest(placing, search, next + 1 + run);
    search.left[gang] += run + 1;
    if !without {
        search.dead.insert(state);
    }
    without
}

/// Reserves a member on a node, if necessary by changing the devices of members that are there already. Returns the former
/// reservations of these; `None` when there is no room, and then nothing has changed.
fn place_on(placing: &mut Placing<'_>, search: &mut ExactSearch, next: usize, node: NodeId) -> Option<Vec<Saved>> {
    let id = search.members[next].pod;
    if reserve_on(placing, id, node, None) {
        return Some(Vec::new());
    }
    search.members[next].request.as_ref()?;
    let there = search.placed.iter().filter(|(_, at)| *at == node).map(|(at, _)| *at);
    let with_devices: Vec<usize> = there.filter(|at| search.members[*at].request.is_some()).chain([next]).collect();
    if with_devices.len() < 2 {
        return None;
    }
    let ids: Vec<PodId> = with_devices.iter().map(|at| search.members[*at].pod).collect();
    let before: Vec<Saved> =
        ids.iter().filter_map(|id| placing.reservations.save(placing.terms, placing.world, *id)).collect();
    let requests: Vec<&PodDeviceRequest> =
        with_devices.iter().filter_map(|at| search.members[*at].request.as_ref()).collect();
    let stock = placing.world.node(node).and_then(|node| node.stock.as_ref());
    let chosen = stock.and_then(|stock| stock.choose_together(&requests, &mut search.choices));
    let placed = chosen.map(|chosen| ids.iter().zip(chosen).map(|(id, choice)| (*id, node, Some(choice))));
    if placed.is_some_and(|placed| reserve_all(placing, placed)) {
        return Some(before);
    }
    put_back_as(placing, before);
    None
}

/// Reserves all of these or none.
pub(super) fn reserve_all(
    placing: &mut Placing<'_>,
    pods: impl IntoIterator<Item = (PodId, NodeId, Option<DeviceChoice>)>,
) -> bool {
    let mut held = Vec::new();
    for (id, node, devices) in pods {
        if !reserve_on(placing, id, node, devices) {
            placing.reservations.undo(placing.terms, placing.world, &held);
            return false;
        }
        held.push(id);
    }
    true
}

/// Restores the reservations that a search has changed.
fn put_back_as(placing: &mut Placing<'_>, before: Vec<Saved>) {
    let ids: Vec<PodId> = before.iter().map(|saved| saved.pod).collect();
    placing.reservations.undo(placing.terms, placing.world, &ids);
    before.into_iter().for_each(|saved| placing.reservations.restore(placing.world, saved));
}

fn reserve_on(placing: &mut Placing<'_>, id: PodId, node: NodeId, devices: Option<DeviceChoice>) -> bool {
    let Some(pod) = placing.world.pod(id) else { return false };
    placing.stats.work.add(compared(placing.world, pod));
    let view = placing.view();
    let NodeChoice::Node(node, mut slots) = choose(view, placing.terms.rules, pod, Some(node)).0 else { return false };
    if let Some(choice) = devices {
        device_fit::choose_instead(&mut slots, node, choice);
    }
    placing.reservations.reserve(placing.terms, placing.world, id, node, *slots)
}

/// Every device that fits such a request is as good as another: choosing other devices makes no room for more of them.
fn is_simple(request: &PodDeviceRequest) -> bool {
    let shape = request.shape();
    let one = |want: &crate::devices::ContainerDeviceRequest| {
        want.gpu.as_ref().is_none_or(|gpu| gpu.count() == 1 || matches!(gpu, baton_contract::GpuRequest::Whole { .. }))
            && want.rdma.is_none_or(|rdma| rdma.count == 1)
    };
    shape.wishes.is_plain() && shape.wants.len() == 1 && shape.wants.iter().all(one)
}
