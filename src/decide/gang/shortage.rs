//! What a group lacks, in one sentence.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::core::agenda::Scene;
use crate::core::select::free::percent;
use crate::core::select::nearest::nearest_beside;
use crate::world::gangs::{Gang, GroupId, rule};
use crate::world::{Confinement, Node, NodeId, Pod, PodId, Wake, World};
use baton_contract::ConditionReason;
use baton_contract::gang::{TimeoutClock, key};
use baton_contract::{key as device_key, request};

use super::alike::{AntiAffinityTerms, MemberKind};
use super::members::{clock_of, is_strict, wait_of};

/// Kinds of members, and nodes with room, that are named.
const NAMED: usize = 3;
/// Gangs of a group that are named.
const GANGS: usize = 8;

/// A member that fits no node.
pub(super) struct UnfitMember {
    pub pod: PodId,
    /// Why no node fits, or the fault.
    pub text: String,
    /// Whether more nodes may help.
    pub reason: ConditionReason,
    /// Events after which it may fit.
    pub wake: Wake,
    /// Every node was judged.
    pub judged: bool,
    /// Members that had a reservation on a node before this one failed, and released it.
    pub found: Vec<(PodId, NodeId)>,
    /// Members that the group needed for its minimum, itself among them.
    pub needed: Vec<PodId>,
    /// The domain where the group was tried, of so many, and where the most of it fits.
    pub near: Option<(Arc<Confinement>, usize)>,
}

impl UnfitMember {
    pub const fn of(pod: PodId, text: String, wake: Wake) -> Self {
        Self {
            pod,
            text,
            reason: ConditionReason::Unschedulable,
            wake,
            judged: false,
            found: Vec::new(),
            needed: Vec::new(),
            near: None,
        }
    }

    /// The group has no member that could be tried.
    pub fn none() -> Self {
        Self::of(PodId(u64::MAX), "no member could be tried".to_owned(), Wake::ANY)
    }
}

/// The node that lacks least for members of a kind, as long as no node changes: gangs that are alike fail one after the other.
#[derive(Debug, Clone, Default)]
pub(super) struct LastNearest(Option<(MemberKind, u64, Option<String>)>);

impl LastNearest {
    /// For a pod that may go anywhere, while no other member has found room.
    fn lack(&mut self, scene: Scene<'_>, pod: &Pod) -> Option<String> {
        let terms = AntiAffinityTerms::of(scene.world, [].into_iter());
        let mark = scene.world.journal().mark();
        let known = self.0.take_if(|(kind, at, _)| *at == mark && terms.is(scene.world, kind, pod));
        let found = || Some(nearest_beside(scene.view(), scene.terms.rules, pod, &BTreeMap::new())?.lack());
        let last = known.unwrap_or_else(|| (terms.kind(scene.world, pod), mark, found()));
        self.0.insert(last).2.clone()
    }
}

/// `needs 4 × 2 GPUs`; nothing where no member asks for devices.
fn needs<'a>(members: impl Iterator<Item = &'a Pod>) -> Option<String> {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for pod in members {
        let asks = request::words(pod.facts.spec.requests.scalar.iter());
        match kinds.iter_mut().find(|(kind, _)| *kind == asks) {
            Some((_, count)) => *count += 1,
            None => kinds.push((asks, 1)),
        }
    }
    kinds.retain(|(kind, _)| !kind.is_empty());
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let words: Vec<String> = kinds.iter().take(NAMED).map(|(kind, count)| format!("{count} × {kind}")).collect();
    (!words.is_empty()).then(|| format!("needs {}", words.join(" and ")))
}

/// `it never starts here: all nodes, even empty, would take 3 of its 4 members of 6 GPUs`. A bound that holds
/// however devices are chosen, by whole GPUs alone; nothing where all of these members may find room some time.
pub fn beyond<'a>(world: &World, members: impl Iterator<Item = &'a Pod>) -> Option<String> {
    let mut asks: Vec<(i64, &Pod)> = members.map(|pod| (percent(&pod.facts.spec.requests), pod)).collect();
    asks.retain(|(asked, _)| *asked > 0);
    asks.sort_by_key(|(asked, _)| *asked);
    let fits = |node: &Node, asked: i64| {
        let listed = node.stock.as_ref().map_or(0, |stock| i64::from(stock.pool().summary().gpus));
        let counted = node.facts.as_ref().map_or(0, |facts| percent(&facts.allocatable) / device_key::WHOLE);
        let gpus = listed.max(counted);
        if asked < device_key::WHOLE { gpus * (device_key::WHOLE / asked) } else { gpus * device_key::WHOLE / asked }
    };
    // Each of those from here on asks for at least as much as the first of them.
    let first_of_kind = (0..asks.len()).filter(|at| *at == 0 || asks[at - 1].0 < asks[*at].0);
    first_of_kind.rev().find_map(|at| {
        let ((asked, pod), count) = (asks[at], (asks.len() - at) as i64);
        let mut room = 0;
        let enough = world.nodes().any(|(_, node)| {
            room += fits(node, asked);
            room >= count
        });
        let kind = request::words(pod.facts.spec.requests.scalar.iter());
        (!enough).then(|| {
            format!("it never starts here: all nodes, even empty, would take {room} of its {count} members of {kind}")
        })
    })
}

/// `room for 2 (node-1: 5 free)`: where, and how many whole devices are free there in all.
fn room(world: &World, found: &[(PodId, NodeId)]) -> String {
    let mut nodes: BTreeMap<NodeId, bool> = BTreeMap::new();
    for (id, node) in found {
        let asks = world.pod(*id).is_some_and(Pod::asks_for_devices);
        *nodes.entry(*node).or_default() |= asks;
    }
    let named = nodes.iter().filter_map(|(id, asks)| {
        let node = world.node(*id)?;
        let free = node.stock.as_ref().map(|stock| stock.pool().summary()).filter(|_| *asks);
        Some(match free {
            Some(free) if free.gpus > 0 => format!("{}: {} free", node.name, free.free_gpus.count_ones()),
            _ => node.name.to_string(),
        })
    });
    let mut named: Vec<String> = named.collect();
    let more = named.len().saturating_sub(NAMED);
    named.truncate(NAMED);
    if more > 0 {
        named.push(format!("{more} more nodes"));
    }
    format!("room for {} ({})", found.len(), named.join(", "))
}

/// What a Strict group that states a waiting time has to know: that time does not begin while the group holds nothing.
fn no_deadline(scene: Scene<'_>, group: &GroupId) -> Option<String> {
    let stated = scene.world.gangs().of_group(group).any(|gang| gang.config().wait_stated);
    (stated && is_strict(scene.world, group) && clock_of(scene, group) == TimeoutClock::Holding).then(|| {
        format!(
            "; the gang has no deadline: a Strict gang that waits holds nothing, so its waiting time of {} s does not begin; \
             annotate it with {}: {}",
            wait_of(scene.world, group).as_secs(),
            key::TIMEOUT_CLOCK,
            TimeoutClock::Pending
        )
    })
}

/// `gang ml/a: 0 of 4 placed, 2 without room; needs 4 × 2 GPUs; room for 2 (node-1: 5 free); nearest for the rest: node-0 lacks 2, held by
/// ml/b; pod ml/a-2 beside those: 0/2 nodes: 2 have fewer than 2 free GPUs`. A Strict group gives its room back before anything else is
/// decided, so the free devices are those that everybody sees. Several gangs are reported with their group. What the member lacks
/// stands in `unfit` afterwards as it stands in the sentence.
pub(super) fn shortage(scene: Scene<'_>, group: &GroupId, unfit: &mut UnfitMember, last: &mut LastNearest) -> String {
    let counts = |gang: &Gang| {
        let (policy, min) = (gang.config().policy, gang.config().min.unwrap_or(0));
        let placed = rule::weight(policy, gang.counts());
        let of_gang = |id: &PodId| scene.world.gangs().gang_of(*id).is_some_and(|of| of.id() == gang.id());
        let found = unfit.found.iter().filter(|(id, _)| of_gang(id)).count();
        let missing = min.saturating_sub(placed).saturating_sub(found as u32);
        let missing = if missing > 0 { format!(", {missing} without room") } else { String::new() };
        format!("gang {}: {placed} of {min} placed{missing}", gang.id())
    };
    let gangs: Vec<String> = scene.world.gangs().of_group(group).take(GANGS).map(counts).collect();
    let mut parts = Vec::new();
    if !group.is_alone() {
        parts.push(format!("group {group}"));
    }
    parts.push(gangs.join(", "));
    let pod = scene.world.pod(unfit.pod);
    if let Some((near, all)) = &unfit.near {
        parts.push(match all {
            1 => format!("in {}", near.name()),
            all => format!("in {}, the nearest of {all}", near.name()),
        });
    }
    let needed = || unfit.needed.iter().filter_map(|id| scene.world.pod(*id));
    let never = if unfit.judged { beyond(scene.world, needed()) } else { None };
    // Room on a node helps one that may start.
    let nearest_of = pod.filter(|_| unfit.judged && never.is_none());
    if unfit.judged {
        parts.extend(never);
        parts.extend(needs(needed()));
    }
    let beside = if unfit.found.is_empty() { "" } else { " beside those" };
    if !unfit.found.is_empty() {
        parts.push(room(scene.world, &unfit.found));
    }
    if let Some(pod) = nearest_of {
        let mut taken: BTreeMap<NodeId, i64> = BTreeMap::new();
        for (id, node) in &unfit.found {
            let gpus = scene.world.pod(*id).map_or(0, |pod| percent(&pod.facts.spec.requests) / device_key::WHOLE);
            *taken.entry(*node).or_default() += gpus;
        }
        let lack = if taken.is_empty() && unfit.near.is_none() {
            last.lack(scene, pod)
        } else {
            nearest_beside(scene.view(), scene.terms.rules, pod, &taken).map(|nearest| nearest.lack())
        };
        let rest = if unfit.found.is_empty() { "nearest" } else { "nearest for the rest" };
        parts.extend(lack.map(|lack| format!("{rest}: {lack}")));
    }
    parts.push(match pod {
        Some(pod) => format!("pod {}{beside}: {}", pod.key(), unfit.text),
        None => unfit.text.clone(),
    });
    if !beside.is_empty() {
        unfit.text = format!("beside the {} that found room: {}", unfit.found.len(), unfit.text);
    }
    parts.join("; ") + &no_deadline(scene, group).unwrap_or_default()
}
