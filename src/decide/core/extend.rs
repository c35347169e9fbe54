//! Answers to what kube-scheduler asks of an extender: device fit, device rating, victims. It applies every other rule itself, so
//! only the rules that it lacks are applied here. Nothing is changed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::devices::PodDeviceRequest;
use crate::world::devices::{Charge, Stock, kinds_of, request_of};
use crate::world::{KnownChoices, Node, NodeId, Place, Pod, PodFacts, PodId, Wake, World};
use baton_contract::PodUid;
use baton_contract::key::is_device_resource;

use super::agenda::{NEW_POD, Scene, Terms};
use super::preemption::{SOON, Units, VictimSet, judge_budgets, leaves_within, victim_sets};
use super::rules::plugins::{device_fit, is_stock};
use super::rules::{Outcome, Plugins, Refusal, Slots, Victim, View};

/// The verdicts on the nodes that kube-scheduler offers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceFits {
    /// Nodes that fit, in the order of the question.
    pub fitting: Vec<String>,
    /// Nodes that do not fit but would if enough pods left, and why.
    pub failed: BTreeMap<String, String>,
    /// Nodes that do not fit even when empty, and why.
    pub never: BTreeMap<String, String>,
}

/// The victims on one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeVictims {
    /// Pods to be evicted.
    pub victims: Vec<PodUid>,
    /// By how many evictions more than the proposed victims they break disruption budgets.
    pub more_broken: i64,
}

/// Judges the devices of each of `nodes` for a pod that another scheduler places; `going`: the node that it has, or to which a bind of it
/// is under way.
pub fn fit_devices(scene: Scene<'_>, facts: &PodFacts, nodes: &[String], going: Option<&str>) -> DeviceFits {
    let pod = unplaced(facts);
    let mut fits = DeviceFits::default();
    let mut slots = match prepare_ours(scene.view(), scene.terms.rules, &pod) {
        Ok(slots) => slots,
        Err(why) => {
            fits.never = nodes.iter().map(|node| (node.clone(), why.clone())).collect();
            return fits;
        }
    };
    let (request, mut emptied) = (request_of(&pod).ok(), KnownChoices::default());
    for name in nodes {
        let known = known_node(scene.world, name);
        let outcome = match (known, going) {
            // Its devices are assigned on this node, and only there.
            (_, Some(going)) if *going == **name => Outcome::Fit,
            (_, Some(going)) => {
                let text = format!("a bind to node {going} is under way");
                Outcome::never(device_fit::NAME, text, Wake::POD_FREED)
            }
            (Some(node), None) => judge_ours(scene.view(), scene.terms.rules, &pod, node, &mut slots),
            (None, None) if !pod.asks_for_devices() => Outcome::Fit,
            (None, None) => {
                Outcome::unfit(device_fit::NAME, "node is not known to the device scheduler yet", Wake::POD_FREED)
            }
        };
        match outcome {
            Outcome::Fit => fits.fitting.push(name.clone()),
            Outcome::Unfit(no) if may_turn(&no, &pod, known, request.as_ref(), &mut emptied) => {
                fits.failed.insert(name.clone(), no.text.into_owned());
            }
            Outcome::Unfit(no) | Outcome::Never(no) | Outcome::WaitUntil(_, no) => {
                fits.never.insert(name.clone(), no.text.into_owned());
            }
            Outcome::Fault(text) => {
                fits.failed.insert(name.clone(), text.into_owned());
            }
        }
    }
    fits
}

/// Rates each of `nodes`, 0..=100, by what kube-scheduler does not see: the weighted mean of our Score rules. A pod that requests no
/// devices and a node that does not fit get 0.
pub fn rate_devices(view: View<'_>, rules: &Plugins, facts: &PodFacts, nodes: &[String]) -> Vec<(String, i64)> {
    let pod = unplaced(facts);
    let mut rated: Vec<(String, i64)> = nodes.iter().map(|name| (name.clone(), 0)).collect();
    let Ok(mut slots) = prepare_ours(view, rules, &pod) else { return rated };
    if !pod.asks_for_devices() {
        return rated;
    }
    let mut fitting: Vec<NodeId> = Vec::new();
    for (id, node) in nodes.iter().filter_map(|name| known_node(view.world, name)) {
        if judge_ours(view, rules, &pod, (id, node), &mut slots).is_fit() {
            fitting.push(id);
        }
    }
    let enabled = rules.enabled();
    for rule in enabled.pre_score.iter().filter(|rule| is_stock(rule.name()) != Some(true)) {
        if matches!(rule.pre_score(view, &pod, &fitting, &mut slots), Outcome::Fault(_)) {
            return rated;
        }
    }
    let (mut totals, mut weights) = (BTreeMap::<NodeId, i64>::new(), 0);
    for (rule, weight) in enabled.score.iter().filter(|(rule, _)| is_stock(rule.name()) != Some(true)) {
        let mut scores = Vec::with_capacity(fitting.len());
        for id in &fitting {
            let Some(node) = view.world.node(*id) else { continue };
            scores.push((*id, rule.score(view, &pod, (*id, node), &mut slots)));
        }
        rule.normalize(view, &pod, &mut scores);
        for (id, score) in scores {
            *totals.entry(id).or_insert(0) += score.clamp(0, 100) * weight;
        }
        weights += weight;
    }
    for (name, score) in &mut rated {
        let total = view.world.node_id(name).and_then(|id| totals.get(&id)).copied().unwrap_or(0);
        *score = if weights == 0 { 0 } else { total / weights };
    }
    rated
}

/// The victims that make room for the pod's devices on each node: the proposed ones, and where these do not free enough, further pods
/// of lower priority that hold devices. First come pods whose eviction breaks no disruption budget, among them the least important.
/// A node that stays unfit is left out.
pub fn make_room(
    view: View<'_>,
    rules: &Plugins,
    facts: &PodFacts,
    proposed: &BTreeMap<String, Vec<PodUid>>,
) -> BTreeMap<String, NodeVictims> {
    let as_proposed = |victims: &Vec<PodUid>| NodeVictims { victims: victims.clone(), more_broken: 0 };
    let pod = unplaced(facts);
    let mut found = BTreeMap::new();
    let Ok(mut slots) = prepare_ours(view, rules, &pod) else { return found };
    for (name, victims) in proposed {
        if !pod.asks_for_devices() {
            found.insert(name.clone(), as_proposed(victims));
            continue;
        }
        // Whatever pods leave a node that is kept for another, this one does not get it.
        let known = known_node(view.world, name).filter(|(_, node)| node.kept_for.is_none());
        let Some((id, node)) = known else { continue };
        let turns = match judge_ours(view, rules, &pod, (id, node), &mut slots) {
            Outcome::Fit => {
                found.insert(name.clone(), as_proposed(victims));
                continue;
            }
            Outcome::Unfit(no) => no.wake.meets(Wake::POD_FREED),
            _ => false,
        };
        if turns && let Some(room) = enough(view, &pod, node, victims) {
            found.insert(name.clone(), room);
        }
    }
    found
}

/// The proposed victims and as many additions as the devices need; additions that turn out to be unnecessary are dropped.
fn enough(view: View<'_>, pod: &Pod, node: &Node, proposed: &[PodUid]) -> Option<NodeVictims> {
    let world = view.world;
    let on_node = || node.pods.iter().filter_map(|id| world.pod(*id));
    let fits = |gone: &BTreeSet<&PodUid>| fits_without(pod, node, on_node(), gone);
    // A pod that leaves soon frees its devices without an eviction.
    let leaving = on_node().filter(|other| leaves_within(other, (view.now, SOON)));
    let leaving = leaving.map(|other| &other.facts.handoff.pod.uid);
    let gone: BTreeSet<&PodUid> = proposed.iter().chain(leaving).collect();
    if fits(&gone) {
        return Some(NodeVictims { victims: proposed.to_vec(), more_broken: 0 });
    }
    let asked: Vec<PodId> = proposed.iter().filter_map(|uid| world.pod_id(uid)).collect();
    let sets = additions(world, pod, node, &asked, &gone);
    let uid = |victim: &Victim| world.pod(victim.pod).map(|pod| &pod.facts.handoff.pod.uid);
    let without = |added: &[&VictimSet]| {
        let uids = added.iter().flat_map(|set| &set.pods).filter_map(uid);
        gone.iter().copied().chain(uids).collect::<BTreeSet<&PodUid>>()
    };
    let mut added: Vec<&VictimSet> = Vec::new();
    for set in &sets {
        added.push(set);
        if !fits(&without(&added)) {
            continue;
        }
        // Additions are dropped while the rest suffices, the most important first.
        for at in (0..added.len()).rev() {
            let set = added.remove(at);
            if !fits(&without(&added)) {
                added.insert(at, set);
            }
        }
        let further: Vec<PodId> = added.iter().flat_map(|set| &set.pods).map(|victim| victim.pod).collect();
        let further: Vec<PodId> =
            further.iter().enumerate().filter(|(at, id)| !further[..*at].contains(id)).map(|(_, id)| *id).collect();
        let none = BTreeSet::new();
        let judged = |pods: &[PodId]| judge_budgets(world, pods, &none);
        let broken = |pods: &[PodId]| judged(pods).iter().filter(|victim| victim.breaks_budget).count() as i64;
        let all: Vec<PodId> = asked.iter().chain(&further).copied().collect();
        let uids = further.iter().filter_map(|id| world.pod(*id)).map(|pod| &pod.facts.handoff.pod.uid);
        return Some(NodeVictims {
            victims: proposed.iter().chain(uids).cloned().collect(),
            more_broken: broken(&all) - broken(&asked),
        });
    }
    None
}

/// What may leave a node for the pod beside those that are `gone`, of which `asked` are proposed: the first to go first.
fn additions(world: &World, pod: &Pod, node: &Node, asked: &[PodId], gone: &BTreeSet<&PodUid>) -> Vec<VictimSet> {
    let lower = |other: &&Pod| {
        other.facts.spec.priority < pod.facts.spec.priority
            && (node.holding(other).is_some() || node.stock.is_none() && other.asks_for_devices())
            && matches!(other.place, Place::Bound(_))
            && other.facts.handoff.deleting.is_none()
            && !gone.contains(&other.facts.handoff.pod.uid)
    };
    let on_node = node.pods.iter().filter_map(|id| world.pod(*id));
    let others: Vec<PodId> = on_node.filter(lower).map(|other| other.id).collect();
    let chosen: BTreeSet<PodId> = asked.iter().copied().collect();
    let mut sets = victim_sets(world, &others, &mut Units::new(pod.facts.spec.priority, &chosen));
    // The other scheduler evicts pods of this node alone: a gang that cannot spare a member leaves whole, or not at all.
    sets.retain(|set| set.others.iter().all(|id| others.contains(id)));
    for set in sets.iter_mut().filter(|set| !set.others.is_empty()) {
        set.pods = judge_budgets(world, &set.others, &chosen);
    }
    // Pods whose eviction breaks no budget go first; among them the lowest priority, gangs last, then the youngest.
    sets.sort_by_key(|set| {
        let breaks_budget = set.pods.iter().any(|victim| victim.breaks_budget);
        let highest = set.pods.iter().map(|victim| victim.priority).max();
        let earliest = set.pods.iter().map(|victim| victim.created).min();
        (breaks_budget, highest, !set.others.is_empty(), Reverse(earliest), set.pods.first().map(|victim| victim.pod))
    });
    sets
}

/// Enters pods that other schedulers have nominated into the accounts, and returns them: whose victims have left shall find the room. The
/// devices of those whose scheduler asks here are chosen too.
pub fn enter_foreign(world: &mut World, terms: Terms<'_>, (priority, except): (i32, PodId)) -> Vec<PodId> {
    let (rules, now) = (terms.rules, terms.now.mono);
    let counts = |pod: &&Pod| {
        pod.facts.spec.priority >= priority
            && pod.id != except
            && pod.facts.handoff.deleting.is_none()
            && !terms.is_ours(pod)
    };
    let mut theirs: Vec<(i32, PodId)> =
        world.nominated().filter(counts).map(|pod| (-pod.facts.spec.priority, pod.id)).collect();
    theirs.sort_unstable();
    let mut entered = Vec::new();
    for (_, id) in theirs {
        let Some(pod) = world.pod(id) else { continue };
        let node = pod.facts.spec.nominated.as_deref().and_then(|name| known_node(world, name));
        let Some((at, node)) = node else { continue };
        let view = View { world, now };
        let asks = pod.asks_for_devices() && terms.config.asking_names.contains(&pod.facts.handoff.scheduler_name);
        let slots = asks.then(|| prepare_ours(view, rules, pod).ok()).flatten();
        let devices = slots.and_then(|mut slots| {
            let fits = judge_ours(view, rules, pod, (at, node), &mut slots).is_fit();
            fits.then(|| device_fit::plan(&slots, (at, node)))?.map(|plan| plan.held())
        });
        if world.assume_nominated(id, at, devices) {
            entered.push(id);
        }
    }
    entered
}

/// Runs our rules' PreFilter; the error is why the pod fits nowhere.
pub fn prepare_ours(view: View<'_>, rules: &Plugins, pod: &Pod) -> Result<Slots, String> {
    let mut slots = Slots::default();
    for rule in rules.enabled().pre_filter.iter().filter(|rule| is_stock(rule.name()) == Some(false)) {
        match rule.pre_filter(view, pod, &mut slots) {
            Outcome::Fit => {}
            Outcome::Unfit(no) | Outcome::Never(no) | Outcome::WaitUntil(_, no) => return Err(no.text.into_owned()),
            Outcome::Fault(text) => return Err(text.into_owned()),
        }
    }
    Ok(slots)
}

/// The verdict of the first of our rules that refuses, else fit.
pub fn judge_ours(view: View<'_>, rules: &Plugins, pod: &Pod, node: (NodeId, &Node), slots: &mut Slots) -> Outcome {
    let ours = rules.enabled().filter.iter().filter(|rule| is_stock(rule.name()) == Some(false));
    let verdicts = ours.map(|rule| rule.filter(view, pod, node, slots));
    verdicts.into_iter().find(|outcome| !outcome.is_fit()).unwrap_or_default()
}

/// The node of that name, if its object exists.
pub fn known_node<'w>(world: &'w World, name: &str) -> Option<(NodeId, &'w Node)> {
    let id = world.node_id(name)?;
    world.node(id).filter(|node| node.facts.is_some()).map(|node| (id, node))
}

fn unplaced(facts: &PodFacts) -> Pod {
    Pod::unplaced(NEW_POD, facts.clone())
}

/// `true` when the pod would fit if enough pods left. `emptied` caches the verdicts on empty nodes.
fn may_turn(
    no: &Refusal,
    pod: &Pod,
    node: Option<(NodeId, &Node)>,
    request: Option<&PodDeviceRequest>,
    emptied: &mut KnownChoices,
) -> bool {
    if !no.wake.meets(Wake::POD_FREED) {
        return false;
    }
    let Some((_, node)) = node else { return true };
    if node.kept_for.is_some() {
        return false;
    }
    let Some(stock) = &node.stock else { return counts_suffice(pod, node, std::iter::empty()) };
    let Some(request) = request else { return false };
    let mut stock: Stock = stock.clone();
    stock.recount(std::iter::empty());
    !kinds_of(pod).iter().any(|kind| stock.is_blocked(&kind)) && emptied.choose(&stock, request).is_ok()
}

/// `true` when a node that no node daemon serves offers enough devices beside these pods, by their number alone.
fn counts_suffice<'a>(pod: &Pod, node: &Node, beside: impl Iterator<Item = &'a Pod>) -> bool {
    let Some(facts) = &node.facts else { return false };
    let mut wanted: Vec<(&str, i64)> =
        pod.facts.spec.requests.scalar.iter().filter(|(name, _)| is_device_resource(name)).collect();
    for other in beside {
        let asks = |name: &str| other.facts.spec.requests.scalar(name);
        wanted.iter_mut().for_each(|(name, amount)| *amount = amount.saturating_add(asks(name)));
    }
    wanted.iter().all(|(name, amount)| *amount <= facts.allocatable.scalar(name))
}

/// `true` when the devices of `node` suffice without the pods in `gone`.
fn fits_without<'a>(pod: &Pod, node: &'a Node, on: impl Iterator<Item = &'a Pod>, gone: &BTreeSet<&PodUid>) -> bool {
    let stays = on.filter(|other| !gone.contains(&other.facts.handoff.pod.uid));
    let Some(stock) = &node.stock else { return counts_suffice(pod, node, stays) };
    let Ok(request) = request_of(pod) else { return false };
    let mut stock: Stock = stock.clone();
    stock.recount(Charge::all(stays, node.holders()));
    !kinds_of(pod).iter().any(|kind| stock.is_blocked(&kind)) && stock.choose(&request).is_ok()
}
