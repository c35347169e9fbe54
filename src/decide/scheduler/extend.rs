//! What kube-scheduler asks of an extender, answered on the live world: device fit, device rating, victims. It keeps every
//! other rule itself, so only the rule that it does not have is judged here. Nothing is changed.

use std::collections::{BTreeMap, BTreeSet};

use crate::contract::PodUid;
use crate::decide::devices::PodDeviceRequest;
use crate::decide::scheduler::rules::{Outcome, Refusal, Slots, Victim, View};
use crate::decide::world::devices::{Charge, Stock, kinds_of, request_of};
use crate::decide::world::{KnownChoices, Node, NodeId, Place, Pod, PodFacts, PodId, Wake};

use super::engine::Engine;
use super::preemption::judge_budgets;
use super::settings::Moment;
use crate::decide::scheduler::rules::plugins::device_fit;

/// Rules that kube-scheduler does not have.
const OURS: [&str; 1] = ["DeviceFit"];
/// Ratings that kube-scheduler makes itself.
const THEIRS: [&str; 7] = [
    "NodeAffinity",
    "TaintToleration",
    "InterPodAffinity",
    "PodTopologySpread",
    "NodeResourcesFit",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
];
/// Stands for a pod that is judged and not kept.
const NOBODY: PodId = PodId(u64::MAX);

/// Which of the offered nodes fit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fits {
    /// These do, in the order of the question.
    pub fitting: Vec<String>,
    /// These do not; other pods' leaving may turn it.
    pub failed: BTreeMap<String, String>,
    /// These do not, whoever leaves.
    pub never: BTreeMap<String, String>,
}

/// Who leaves a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Room {
    /// The victims.
    pub victims: Vec<PodUid>,
    /// How many more of them break a disruption budget than of those that were proposed.
    pub more_broken: i64,
}

impl Engine {
    /// Judges the devices of each of `nodes` for a pod that another scheduler places.
    pub fn fit_devices(&mut self, facts: &PodFacts, nodes: &[String], now: Moment) -> Fits {
        let shadows = self.shadow_nominated(facts, now);
        let fits = self.fit_beside_nominated(facts, nodes, now);
        self.lift(shadows);
        fits
    }

    fn fit_beside_nominated(&self, facts: &PodFacts, nodes: &[String], now: Moment) -> Fits {
        let view = View { world: &self.world, now: now.mono };
        let pod = visiting(facts);
        let mut fits = Fits::default();
        let mut slots = match self.prepare(view, &pod) {
            Ok(slots) => slots,
            Err(why) => {
                fits.never = nodes.iter().map(|node| (node.clone(), why.clone())).collect();
                return fits;
            }
        };
        let (request, mut emptied) = (request_of(&pod).ok(), KnownChoices::default());
        let flight = self.world.pod_id(&facts.handoff.pod.uid).and_then(|id| self.flights.get(&id));
        for name in nodes {
            let known = self.known_node(name);
            let outcome = match (known, flight) {
                // Its own devices are held for it there, and only there.
                (_, Some(flight)) if *flight.node_name == **name => Outcome::Fit,
                (_, Some(flight)) => {
                    let text = format!("a bind to node {} is under way", flight.node_name);
                    Outcome::unfit(OURS[0], text, Wake::POD_FREED)
                }
                (Some(node), None) => self.judge_ours(view, &pod, node, &mut slots),
                (None, None) if !pod.asks_for_devices() => Outcome::Fit,
                (None, None) => {
                    Outcome::unfit(OURS[0], "node is not known to the device scheduler yet", Wake::POD_FREED)
                }
            };
            match outcome {
                Outcome::Fit => fits.fitting.push(name.clone()),
                Outcome::Unfit(no)
                    if flight.is_some() || may_turn(&no, &pod, known, request.as_ref(), &mut emptied) =>
                {
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

    /// Rates each of `nodes`, 0..=100, by what kube-scheduler does not see: the weighted mean of the enabled ratings. A pod
    /// without devices, and a node that does not fit, get 0.
    pub fn rate_devices(&self, facts: &PodFacts, nodes: &[String], now: Moment) -> Vec<(String, i64)> {
        let view = View { world: &self.world, now: now.mono };
        let pod = visiting(facts);
        let mut rated: Vec<(String, i64)> = nodes.iter().map(|name| (name.clone(), 0)).collect();
        let Ok(mut slots) = self.prepare(view, &pod) else { return rated };
        if !pod.asks_for_devices() {
            return rated;
        }
        let mut fitting: Vec<NodeId> = Vec::new();
        for (id, node) in nodes.iter().filter_map(|name| self.known_node(name)) {
            if self.judge_ours(view, &pod, (id, node), &mut slots).is_fit() {
                fitting.push(id);
            }
        }
        let enabled = self.plugins.enabled();
        for plugin in enabled.pre_score.iter().filter(|plugin| !THEIRS.contains(&plugin.name())) {
            if matches!(plugin.pre_score(view, &pod, &fitting, &mut slots), Outcome::Fault(_)) {
                return rated;
            }
        }
        let (mut totals, mut weights) = (BTreeMap::<NodeId, i64>::new(), 0);
        for (plugin, weight) in enabled.score.iter().filter(|(plugin, _)| !THEIRS.contains(&plugin.name())) {
            let mut scores = Vec::with_capacity(fitting.len());
            for id in &fitting {
                let Some(node) = self.world.node(*id) else { continue };
                scores.push((*id, plugin.score(view, &pod, (*id, node), &mut slots)));
            }
            plugin.normalize(view, &pod, &mut scores);
            for (id, score) in scores {
                *totals.entry(id).or_insert(0) += score.clamp(0, 100) * weight;
            }
            weights += weight;
        }
        for (name, score) in &mut rated {
            let total = self.world.node_id(name).and_then(|id| totals.get(&id)).copied().unwrap_or(0);
            *score = if weights == 0 { 0 } else { total / weights };
        }
        rated
    }

    /// Which victims make room for the pod's devices on each node: those that were proposed, and where they do not free enough,
    /// further pods of lower priority with devices: those first whose eviction breaks no disruption budget, of these the least
    /// important. A node that stays unfit is left out.
    pub fn make_room(
        &mut self,
        facts: &PodFacts,
        proposed: &BTreeMap<String, Vec<PodUid>>,
        now: Moment,
    ) -> BTreeMap<String, Room> {
        let shadows = self.shadow_nominated(facts, now);
        let room = self.room_beside_nominated(facts, proposed, now);
        self.lift(shadows);
        room
    }

    fn room_beside_nominated(
        &self,
        facts: &PodFacts,
        proposed: &BTreeMap<String, Vec<PodUid>>,
        now: Moment,
    ) -> BTreeMap<String, Room> {
        let as_proposed = |victims: &Vec<PodUid>| Room { victims: victims.clone(), more_broken: 0 };
        let view = View { world: &self.world, now: now.mono };
        let pod = visiting(facts);
        let mut found = BTreeMap::new();
        let Ok(mut slots) = self.prepare(view, &pod) else { return found };
        for (name, victims) in proposed {
            if !pod.asks_for_devices() {
                found.insert(name.clone(), as_proposed(victims));
                continue;
            }
            let Some((id, node)) = self.known_node(name) else { continue };
            let turns = match self.judge_ours(view, &pod, (id, node), &mut slots) {
                Outcome::Fit => {
                    found.insert(name.clone(), as_proposed(victims));
                    continue;
                }
                Outcome::Unfit(no) => no.wake.meets(Wake::POD_FREED),
                _ => false,
            };
            if turns && let Some(room) = self.enough(&pod, node, victims) {
                found.insert(name.clone(), room);
            }
        }
        found
    }

    /// The proposed victims, extended until the devices suffice, and without the additions that turn out not to be needed.
    fn enough(&self, pod: &Pod, node: &Node, proposed: &[PodUid]) -> Option<Room> {
        let on_node = || node.pods.iter().filter_map(|id| self.world.pod(*id));
        let fits = |gone: &BTreeSet<&PodUid>| fits_without(pod, node, on_node(), gone);
        // Whoever is leaving anyway costs nobody anything.
        let leaving = on_node().filter(|other| other.facts.handoff.deleting.is_some());
        let leaving = leaving.map(|other| &other.facts.handoff.pod.uid);
        let mut gone: BTreeSet<&PodUid> = proposed.iter().chain(leaving).collect();
        if fits(&gone) {
            return Some(Room { victims: proposed.to_vec(), more_broken: 0 });
        }
        let lower = |other: &&Pod| {
            other.facts.spec.priority < pod.facts.spec.priority
                && other.devices.is_some()
                && matches!(other.place, Place::Bound(_))
                && !gone.contains(&other.facts.handoff.pod.uid)
        };
        let others: Vec<PodId> = on_node().filter(lower).map(|other| other.id).collect();
        let asked: Vec<PodId> = proposed.iter().filter_map(|uid| self.world.pod_id(uid)).collect();
        let everybody: Vec<PodId> = asked.iter().chain(&others).copied().collect();
        let mut others: Vec<Victim> = judge_budgets(&self.world, &everybody);
        others.retain(|victim| !asked.contains(&victim.pod));
        // The youngest of the lowest priority goes first, and among all those first whose eviction breaks no budget.
        others.sort_by_key(|v| (v.breaks_budget, v.priority, std::cmp::Reverse(v.created), v.pod));
        let uid = |victim: &Victim| self.world.pod(victim.pod).map(|pod| &pod.facts.handoff.pod.uid);
        let mut added: Vec<(PodId, &PodUid)> = Vec::new();
        for (id, uid) in others.iter().filter_map(|victim| Some((victim.pod, uid(victim)?))) {
            added.push((id, uid));
            gone.insert(uid);
            if fits(&gone) {
                // Of the additions the most important is spared first, where the rest is enough.
                for at in (0..added.len()).rev() {
                    gone.remove(added[at].1);
                    if fits(&gone) {
                        added.remove(at);
                    } else {
                        gone.insert(added[at].1);
                    }
                }
                let broken = |pods: &[PodId]| {
                    judge_budgets(&self.world, pods).iter().filter(|victim| victim.breaks_budget).count() as i64
                };
                let all: Vec<PodId> = asked.iter().copied().chain(added.iter().map(|(id, _)| *id)).collect();
                return Some(Room {
                    victims: proposed.iter().chain(added.iter().map(|(_, uid)| *uid)).cloned().collect(),
                    more_broken: broken(&all) - broken(&asked),
                });
            }
        }
        None
    }

    /// Enters pods that others make room for, of the same or a higher priority, with the devices that they ask for: kube-scheduler
    /// keeps that room itself, but not what it does not know. [`Engine::lift`] must follow.
    pub(in crate::decide) fn shadow_nominated(&mut self, facts: &PodFacts, now: Moment) -> Vec<PodId> {
        let own = &facts.handoff.pod.uid;
        let except = self.world.pod_id(own).unwrap_or(NOBODY);
        let mut shadows = self.shadow(facts.spec.priority, except, now);
        let counts = |pod: &&Pod| {
            pod.facts.spec.priority >= facts.spec.priority
                && pod.facts.handoff.pod.uid != *own
                && pod.facts.handoff.deleting.is_none()
                && pod.asks_for_devices()
                && self.config.asking_names.contains(&pod.facts.handoff.scheduler_name)
        };
        let mut theirs: Vec<(i32, PodId)> =
            self.world.nominated().filter(counts).map(|pod| (-pod.facts.spec.priority, pod.id)).collect();
        theirs.sort_unstable();
        for (_, id) in theirs {
            let Some(pod) = self.world.pod(id) else { continue };
            let node = pod.facts.spec.nominated.as_deref().and_then(|name| self.known_node(name));
            let Some((at, node)) = node else { continue };
            let view = View { world: &self.world, now: now.mono };
            let devices = self.prepare(view, pod).ok().and_then(|mut slots| {
                let fits = self.judge_ours(view, pod, (at, node), &mut slots).is_fit();
                fits.then(|| device_fit::plan(&slots, (at, node)))?.map(|plan| plan.held())
            });
            if self.world.keep_room(id, at, devices) {
                shadows.push(id);
            }
        }
        shadows
    }

    /// Runs the rules' preparation; the error is why the pod fits nowhere.
    pub(in crate::decide) fn prepare(&self, view: View<'_>, pod: &Pod) -> Result<Slots, String> {
        let mut slots = Slots::default();
        for plugin in self.plugins.enabled().pre_filter.iter().filter(|plugin| OURS.contains(&plugin.name())) {
            match plugin.pre_filter(view, pod, &mut slots) {
                Outcome::Fit => {}
                Outcome::Unfit(no) | Outcome::Never(no) | Outcome::WaitUntil(_, no) => {
                    return Err(no.text.into_owned());
                }
                Outcome::Fault(text) => return Err(text.into_owned()),
            }
        }
        Ok(slots)
    }

    /// The first of our rules that does not say fit.
    pub(in crate::decide) fn judge_ours(
        &self,
        view: View<'_>,
        pod: &Pod,
        node: (NodeId, &Node),
        slots: &mut Slots,
    ) -> Outcome {
        let ours = self.plugins.enabled().filter.iter().filter(|plugin| OURS.contains(&plugin.name()));
        let verdicts = ours.map(|plugin| plugin.filter(view, pod, node, slots));
        verdicts.into_iter().find(|outcome| !outcome.is_fit()).unwrap_or_default()
    }

    pub(in crate::decide) fn known_node(&self, name: &str) -> Option<(NodeId, &Node)> {
        let id = self.world.node_id(name)?;
        self.world.node(id).filter(|node| node.facts.is_some()).map(|node| (id, node))
    }
}

fn visiting(facts: &PodFacts) -> Pod {
    Pod::unplaced(NOBODY, facts.clone())
}

/// `true` when the pod would fit if enough pods left. `emptied` keeps what nodes without pods have answered.
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
    let (Some(stock), Some(request)) = (&node.stock, request) else { return false };
    let mut stock: Stock = stock.clone();
    stock.recount(std::iter::empty());
    !kinds_of(pod).iter().any(|kind| stock.is_blocked(&kind)) && emptied.choose(&stock, request).is_ok()
}

/// The devices of `node` suffice when of the pods on it only those outside `gone` stay.
fn fits_without<'a>(pod: &Pod, node: &Node, on: impl Iterator<Item = &'a Pod>, gone: &BTreeSet<&PodUid>) -> bool {
    let (Some(stock), Ok(request)) = (&node.stock, request_of(pod)) else { return false };
    let mut stock: Stock = stock.clone();
    stock.recount(on.filter(|other| !gone.contains(&other.facts.handoff.pod.uid)).filter_map(Charge::of));
    !kinds_of(pod).iter().any(|kind| stock.is_blocked(&kind)) && stock.choose(&request).is_ok()
}
