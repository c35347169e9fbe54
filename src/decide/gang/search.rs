//! The exact search: for a small group that no order of offering satisfies, every way of placing its members is tried.
//!
//! Members are placed one after the other. Each node is asked by its filters; where its devices are what lacks, the devices of
//! all members of the group on that node are chosen again together with the new one's. Equal members and nodes that look the
//! same are not told apart, and a state that was in vain is not tried twice.

use std::collections::{BTreeMap, BTreeSet};

use crate::decide::devices::PodDeviceRequest;
use crate::decide::scheduler::context::Context;
use crate::decide::scheduler::preemption::Preemption;
use crate::decide::scheduler::reservations::{Reservations, Saved};
use crate::decide::scheduler::rules::plugins::device_fit;
use crate::decide::scheduler::select::choose::{Choice, choose, judge, prepare};
use crate::decide::world::devices::{DeviceChoice, request_of};
use crate::decide::world::{NodeId, PodId, Stock};

use super::alike::{Kind, looks_at_others};
use super::offer::Offer;

/// Unlike members that are searched over. Identical members alone need no search: their order does not matter.
const KINDS: usize = 8;
/// Members that are searched over in all.
pub const MEMBERS: usize = 32;
/// Nodes that are searched over. A group of eight that fits on so many nodes is found without a search.
const NODES: usize = 64;
/// Placements that are tried for up to eight members, and for more.
const STEPS: (usize, usize) = (10_000, 1_000);
/// Device choices that are tried.
const CHOICES: usize = 20_000;

/// Looks at a node that cost as much as one placement that is tried.
const LOOKS: usize = 16;
/// Searches that one budget begins.
const SEARCHES: usize = 64;

/// What one search, or several over the same group, may take.
pub struct Budget {
    steps: usize,
    choices: usize,
    /// What it takes to begin one.
    least: usize,
}

impl Budget {
    /// One search.
    fn of_one() -> Self {
        Self { steps: STEPS.0, choices: CHOICES, least: 0 }
    }

    /// Several searches that together take no more than one.
    pub fn of_many(offer: &Offer) -> Self {
        let steps = if offer.len() > KINDS { STEPS.1 } else { STEPS.0 };
        Self { steps, choices: CHOICES, least: steps / SEARCHES }
    }

    /// A search is about to begin, with looks at nodes that cost as much as these steps. `false` when nothing is left for it.
    fn begin(&mut self, looks: usize) -> bool {
        if self.least > 0 {
            self.steps = self.steps.saturating_sub(self.least + looks);
        }
        self.steps > 0 && self.choices > 0
    }
}

/// A member that may be placed, and the gang that counts it.
struct Candidate {
    pod: PodId,
    gang: usize,
    kind: usize,
    nodes: Vec<NodeId>,
    /// What it asks of a node's devices; `None` for nothing.
    request: Option<PodDeviceRequest>,
}

/// A search under way.
struct Search {
    candidates: Vec<Candidate>,
    /// Class of each node that anybody may go to: nodes of one class looked the same when the search began.
    classes: BTreeMap<NodeId, usize>,
    needed: Vec<usize>,
    left: Vec<usize>,
    /// Placed members, by position in `candidates`, and their nodes.
    placed: Vec<(usize, NodeId)>,
    /// States from which the rest found no place.
    dead: BTreeSet<State>,
    steps: usize,
    choices: usize,
}

/// The next candidate, what each gang still needs, and the kinds on each node that has any, by the node's class.
type State = (usize, Vec<usize>, Vec<(usize, Vec<usize>)>);

impl Search {
    fn state(&self, next: usize) -> State {
        let mut on: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (at, node) in &self.placed {
            on.entry(*node).or_default().push(self.candidates[*at].kind);
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

    /// Members placed on a node, first to last.
    fn on(&self, node: NodeId) -> impl Iterator<Item = &Candidate> {
        self.placed.iter().filter(move |(_, at)| *at == node).map(|(at, _)| &self.candidates[*at])
    }
}

/// Places what the group needs, whichever members, nodes and devices that takes. The members stay held; `None` leaves
/// nothing held.
pub(super) fn search(cx: &mut Context<'_>, offer: &Offer) -> Option<Vec<PodId>> {
    search_within(cx, offer, &mut Budget::of_one())
}

/// [`search`] that takes no more than is left of a budget.
pub(super) fn search_within(cx: &mut Context<'_>, offer: &Offer, budget: &mut Budget) -> Option<Vec<PodId>> {
    let (candidates, kinds) = searchable(cx, offer)?;
    if !budget.begin(cx.world.nodes().count() * kinds / LOOKS) {
        return None;
    }
    let first = candidates.first()?.pod;
    // Priority is equal over the group: what is closed to one is closed to all.
    let priority = cx.world.pod(first)?.facts.spec.priority;
    Preemption::with_nominated(cx, priority, first, |cx| search_over(cx, offer, candidates, kinds, budget))
}

/// One member of each kind, where a search may find more than offering one after the other.
pub(super) fn one_of_each_kind(cx: &Context<'_>, offer: &Offer) -> Option<Vec<PodId>> {
    let (candidates, kinds) = searchable(cx, offer)?;
    let first = |kind| candidates.iter().find(|candidate| candidate.kind == kind).map(|candidate| candidate.pod);
    (0..kinds).map(first).collect()
}

/// Whom a search would place, and of how many kinds they are; `None` where there is nothing to search over.
fn searchable(cx: &Context<'_>, offer: &Offer) -> Option<(Vec<Candidate>, usize)> {
    if offer.len() == 0 || offer.len() > MEMBERS {
        return None;
    }
    let mut kinds: Vec<Kind> = Vec::new();
    let mut candidates = Vec::new();
    for (at, gang) in offer.gangs.iter().enumerate() {
        for id in &gang.pending {
            let pod = cx.world.pod(*id)?;
            let known = kinds.iter().position(|kind| offer.refusals.is(cx.world, kind, pod));
            let kind = known.unwrap_or_else(|| {
                kinds.push(offer.kind(cx.world, pod));
                kinds.len() - 1
            });
            let request = request_of(pod).ok().filter(|request| !request.is_empty());
            candidates.push(Candidate { pod: *id, gang: at, kind, nodes: Vec::new(), request });
        }
    }
    let social = kinds.len() == 1 && cx.world.pod(candidates.first()?.pod).is_some_and(looks_at_others);
    let simple = |candidate: &Candidate| candidate.request.as_ref().is_none_or(is_simple);
    let vain = kinds.len() > KINDS || kinds.len() < 2 && !social && candidates.iter().all(simple);
    (!vain).then_some((candidates, kinds.len()))
}

fn search_over(
    cx: &mut Context<'_>,
    offer: &Offer,
    mut candidates: Vec<Candidate>,
    kinds: usize,
    budget: &mut Budget,
) -> Option<Vec<PodId>> {
    let mut fits: Vec<Option<Vec<NodeId>>> = vec![None; kinds];
    for candidate in &mut candidates {
        let nodes = fits[candidate.kind].get_or_insert_with(|| nodes_for(cx, candidate.pod));
        candidate.nodes.clone_from(nodes);
    }
    // Whoever has the fewest choices first, equal members side by side; whoever looks at others behind them.
    let social = |candidate: &Candidate| cx.world.pod(candidate.pod).is_some_and(looks_at_others);
    candidates.sort_by_key(|candidate| (social(candidate), candidate.nodes.len(), candidate.kind, candidate.gang));
    let mut left: Vec<usize> = vec![0; offer.gangs.len()];
    candidates.iter().filter(|candidate| !candidate.nodes.is_empty()).for_each(|candidate| left[candidate.gang] += 1);
    if offer.gangs.iter().zip(&left).any(|(gang, left)| gang.needed > *left) {
        return None;
    }
    candidates.retain(|candidate| !candidate.nodes.is_empty());
    let steps = budget.steps.min(if candidates.len() > KINDS { STEPS.1 } else { STEPS.0 });
    let mut search = Search {
        steps,
        classes: classes_of(cx, &candidates),
        needed: offer.gangs.iter().map(|gang| gang.needed).collect(),
        left,
        candidates,
        placed: Vec::new(),
        dead: BTreeSet::new(),
        choices: budget.choices,
    };
    let found = place_rest(cx, &mut search, 0);
    budget.steps -= steps - search.steps;
    budget.choices = search.choices;
    found.then(|| search.placed.iter().map(|(at, _)| search.candidates[*at].pod).collect())
}

/// Nodes that the pod may fit on, those first on which it does with nobody of its group placed.
fn nodes_for(cx: &Context<'_>, id: PodId) -> Vec<NodeId> {
    let Some(pod) = cx.world.pod(id) else { return Vec::new() };
    let view = cx.view();
    let Ok(mut slots) = prepare(view, cx.rules, pod) else { return Vec::new() };
    let all = cx.world.nodes();
    let fits = all.filter(|node| judge(view, cx.rules, pod, *node, &mut slots).is_fit());
    let mut nodes: Vec<NodeId> = fits.map(|(id, _)| id).take(NODES).collect();
    if looks_at_others(pod) && nodes.len() < NODES {
        // Whoever is placed before it may be who it wants to be near to.
        let others: Vec<NodeId> =
            cx.world.nodes().map(|(id, _)| id).filter(|id| !nodes.contains(id)).take(NODES - nodes.len()).collect();
        nodes.extend(others);
    }
    nodes
}

/// Tells nodes apart by everything that decides about placement, but their names.
fn classes_of(cx: &Context<'_>, candidates: &[Candidate]) -> BTreeMap<NodeId, usize> {
    let plain = |request: &PodDeviceRequest| request.shape().wishes.is_plain();
    let places = !candidates.iter().all(|candidate| candidate.request.as_ref().is_none_or(plain));
    let social = candidates.iter().any(|candidate| cx.world.pod(candidate.pod).is_some_and(looks_at_others));
    let mut looks: BTreeMap<String, usize> = BTreeMap::new();
    let mut classes = BTreeMap::new();
    for id in candidates.iter().flat_map(|candidate| &candidate.nodes) {
        if classes.contains_key(id) {
            continue;
        }
        let Some(node) = cx.world.node(*id) else { continue };
        let Some(facts) = &node.facts else { continue };
        let labels = facts.labels.iter().filter(|(key, _)| *key != "kubernetes.io/hostname");
        let labels: Vec<_> = labels.collect();
        let wanted: Vec<bool> = candidates.iter().map(|other| other.nodes.contains(id)).collect();
        let devices = node.stock.as_ref().map(|stock| Stock::look(stock, places)).unwrap_or_default();
        let name = if social { &*node.name } else { "" };
        let (allocatable, taints, pods) = (&facts.allocatable, &facts.taints, node.pods.len());
        let look = format!("{name} {allocatable:?} {:?} {taints:?} {labels:?} {devices} {pods} {wanted:?}", node.used);
        let next = looks.len();
        classes.insert(*id, *looks.entry(look).or_insert(next));
    }
    classes
}

/// Places the candidates from `next` on; whatever was placed is taken back when that is in vain.
fn place_rest(cx: &mut Context<'_>, search: &mut Search, next: usize) -> bool {
    if search.needed.iter().all(|needed| *needed == 0) {
        return true;
    }
    if next == search.candidates.len() || search.needed.iter().zip(&search.left).any(|(needed, left)| needed > left) {
        return false;
    }
    let state = search.state(next);
    if search.steps == 0 || search.dead.contains(&state) {
        return false;
    }
    let Candidate { gang, pod, kind, .. } = search.candidates[next];
    search.left[gang] -= 1;
    if search.needed[gang] > 0 {
        let mut seen: BTreeSet<(usize, Vec<usize>)> = BTreeSet::new();
        for node in search.candidates[next].nodes.clone() {
            let class = search.classes.get(&node).copied().unwrap_or(usize::MAX);
            let mut beside: Vec<usize> = search.on(node).map(|other| other.kind).collect();
            beside.sort_unstable();
            // Nodes that look the same are one choice.
            if !seen.insert((class, beside)) {
                continue;
            }
            search.steps = search.steps.saturating_sub(1);
            let Some(before) = place_on(cx, search, next, node) else { continue };
            search.placed.push((next, node));
            search.needed[gang] -= 1;
            if place_rest(cx, search, next + 1) {
                return true;
            }
            search.needed[gang] += 1;
            search.placed.pop();
            Reservations::undo(cx, &[pod]);
            put_back_as(cx, before);
            if search.steps == 0 {
                break;
            }
        }
    }
    // Without it, and without those after it that are just the same.
    let same = |other: &Candidate| other.kind == kind && other.gang == gang;
    let run = search.candidates[next + 1..].iter().take_while(|other| same(other)).count();
    search.left[gang] -= run;
    let without = place_rest(cx, search, next + 1 + run);
    search.left[gang] += run + 1;
    if !without {
        search.dead.insert(state);
    }
    without
}

/// Holds room for a candidate on a node; the devices of members that are there already may change for that. Returns how
/// those were held; `None` when there is no room, and then nothing has changed.
fn place_on(cx: &mut Context<'_>, search: &mut Search, next: usize, node: NodeId) -> Option<Vec<Saved>> {
    let id = search.candidates[next].pod;
    if hold_on(cx, id, node, None) {
        return Some(Vec::new());
    }
    search.candidates[next].request.as_ref()?;
    let with_devices: Vec<usize> = search.placed.iter().filter(|(_, at)| *at == node).map(|(at, _)| *at).collect();
    let with_devices: Vec<usize> =
        with_devices.into_iter().filter(|at| search.candidates[*at].request.is_some()).chain([next]).collect();
    if with_devices.len() < 2 {
        return None;
    }
    let ids: Vec<PodId> = with_devices.iter().map(|at| search.candidates[*at].pod).collect();
    let before: Vec<Saved> = ids.iter().filter_map(|id| Reservations::save(cx, *id)).collect();
    let requests: Vec<&PodDeviceRequest> =
        with_devices.iter().filter_map(|at| search.candidates[*at].request.as_ref()).collect();
    let stock = cx.world.node(node).and_then(|node| node.stock.as_ref());
    let chosen = stock.and_then(|stock| stock.choose_together(&requests, &mut search.choices));
    let done = chosen.is_some_and(|chosen| {
        let mut held = Vec::new();
        let all = ids.iter().zip(chosen).all(|(id, choice)| {
            let holds = hold_on(cx, *id, node, Some(choice));
            held.extend(holds.then_some(*id));
            holds
        });
        if !all {
            Reservations::undo(cx, &held);
        }
        all
    });
    if done {
        return Some(before);
    }
    put_back_as(cx, before);
    None
}

/// Holds members as they were held before a search changed their devices.
fn put_back_as(cx: &mut Context<'_>, before: Vec<Saved>) {
    let ids: Vec<PodId> = before.iter().map(|kept| kept.pod).collect();
    Reservations::undo(cx, &ids);
    before.into_iter().for_each(|kept| Reservations::restore(cx, kept));
}

pub(super) fn hold_on(cx: &mut Context<'_>, id: PodId, node: NodeId, devices: Option<DeviceChoice>) -> bool {
    let Some(pod) = cx.world.pod(id) else { return false };
    let view = cx.view();
    let Choice::Node(node, mut slots) = choose(view, cx.rules, pod, Some(node)).0 else { return false };
    if let Some(choice) = devices {
        device_fit::choose_instead(&mut slots, node, choice);
    }
    Reservations::reserve(cx, id, node, *slots)
}

/// Of several pods that ask for just this, each takes the first place that fits and none takes more than it must: trying other
/// devices finds no room for more of them.
fn is_simple(request: &PodDeviceRequest) -> bool {
    let shape = request.shape();
    let one = |want: &crate::decide::devices::Want| {
        want.gpu.as_ref().is_none_or(|gpu| gpu.count() == 1 || matches!(gpu, crate::contract::GpuRequest::Whole { .. }))
            && want.rdma.is_none_or(|rdma| rdma.count == 1)
    };
    shape.wishes.is_plain() && shape.wants.len() == 1 && shape.wants.iter().all(one)
}
