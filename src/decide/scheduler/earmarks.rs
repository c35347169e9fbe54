//! The earmark: nodes that are kept for a group or pod that has waited long for devices. A Strict gang holds nothing until all of it
//! fits, so under a steady stream of small pods a large one would never fit. The nodes chosen for it take no new pod with devices but its
//! own and those of higher priority, until the pods there have ended. Nothing is evicted. There is one earmark at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::contract::key;
use crate::decide::world::{NodeId, Pod, PodId, World};

use super::context::Context;
use super::queue::Item;
use super::rules::View;
use super::rules::plugins::device_fit;
use super::select::choose::{judge, prepare};
use super::timers::Timer;

/// When and how much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarmarkPolicy {
    /// From this age on; zero means never. 10 min.
    pub after: Duration,
    /// Percent of all GPUs that may be kept. 50.
    pub share: u32,
    /// An earmark ends after this time, and the next one has its turn. 6 h.
    pub limit: Duration,
}

impl Default for EarmarkPolicy {
    fn default() -> Self {
        Self { after: Duration::from_mins(10), share: 50, limit: Duration::from_hours(6) }
    }
}

/// An earmark is checked this often.
const CHECK: Duration = Duration::from_secs(10);

/// Nodes that are kept.
#[derive(Debug, Clone)]
pub struct Earmark {
    item: Item,
    name: Arc<str>,
    priority: i32,
    nodes: BTreeSet<NodeId>,
    /// The members that wait for them.
    members: Vec<PodId>,
    since: Duration,
}

impl Earmark {
    /// Whose it is.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The nodes.
    pub fn nodes(&self) -> &BTreeSet<NodeId> {
        &self.nodes
    }
    /// Monotonic time since which they are kept.
    pub fn since(&self) -> Duration {
        self.since
    }
}

/// The earmark, and what had one for too long.
#[derive(Debug, Clone, Default)]
pub struct Earmarks {
    current: Option<Earmark>,
    /// Nodes that are open to the item in hand.
    opened: Vec<NodeId>,
    /// Until when these have none.
    passed: BTreeMap<Item, Duration>,
}

impl Earmarks {
    /// The earmark, if there is one.
    pub fn current(&self) -> Option<&Earmark> {
        self.current.as_ref()
    }

    /// `members` of `item`, those that need devices included, fit no nodes. Gives it the earmark if it has waited for long enough.
    /// Returns what to report about it.
    pub fn consider(cx: &mut Context<'_>, item: &Item, name: &str, members: &[PodId]) -> Option<String> {
        let policy = cx.config.earmarks;
        let waiting = || members.iter().filter_map(|id| cx.world.pod(*id)).filter(|pod| pod.asks_for_devices());
        let since = waiting().map(|pod| pod.facts.handoff.created).max()?;
        let priority = waiting().map(|pod| pod.facts.spec.priority).max()?;
        let members: Vec<PodId> = waiting().map(|pod| pod.id).collect();
        if let Some(earmark) = cx.earmarks.current.as_mut().filter(|earmark| earmark.item == *item) {
            earmark.members = members;
            return cx.earmarks.text(cx.world);
        }
        let passed = cx.earmarks.passed.get(item).is_some_and(|until| cx.now.mono < *until);
        if passed || !Self::is_aged(cx, item, since) || cx.earmarks.current.is_some() {
            return None;
        }
        let nodes = choose_nodes(cx, &members, priority)?;
        let gpus = |nodes: &mut dyn Iterator<Item = NodeId>| nodes.map(|id| gpus_of(cx.world, id)).sum::<i64>();
        let all = gpus(&mut cx.world.nodes().map(|(id, _)| id));
        let (kept, most) = (gpus(&mut nodes.iter().copied()), all * i64::from(policy.share) / 100);
        if kept > most {
            return Some(format!(
                "it needs nodes with {kept} GPUs, and no more than {most} may be kept for it (--age-share)"
            ));
        }
        let name: Arc<str> = name.into();
        for node in &nodes {
            cx.world.keep(*node, Some(Arc::clone(&name)));
        }
        let since = cx.now.mono;
        cx.earmarks.current = Some(Earmark { item: item.clone(), name, priority, nodes, members, since });
        cx.timers.set(cx.now.mono + CHECK, Timer::Earmark);
        Self::announce(cx)
    }

    /// `true` when a parked item that is as old as this may have the earmark; a younger one is tried again when it may.
    pub fn is_aged(cx: &mut Context<'_>, item: &Item, since: Timestamp) -> bool {
        let after = cx.config.earmarks.after;
        let age = Duration::try_from(cx.now.wall.duration_since(since)).unwrap_or_default();
        let left = after.saturating_sub(age);
        if !left.is_zero() {
            cx.queue.hurry(item.clone(), cx.now.mono + left);
        }
        !after.is_zero() && left.is_zero()
    }

    fn announce(cx: &mut Context<'_>) -> Option<String> {
        let text = cx.earmarks.text(cx.world)?;
        let first = *cx.earmarks.current.as_ref()?.members.first()?;
        cx.event(first, false, "Earmarked", text.clone());
        Some(text)
    }

    /// `nodes a, b are kept for it: 3 of 16 GPUs still busy`.
    fn text(&self, world: &World) -> Option<String> {
        let earmark = self.current.as_ref()?;
        let names = earmark.nodes.iter().filter_map(|id| world.node(*id)).map(|node| &*node.name);
        let mut names: Vec<&str> = names.collect();
        let more = names.len().saturating_sub(4);
        names.truncate(4);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let gpus: i64 = earmark.nodes.iter().map(|id| gpus_of(world, *id)).sum();
        let busy: i64 = earmark.nodes.iter().map(|id| busy_on(world, *id, |_| true)).sum();
        let (nodes, are) = if earmark.nodes.len() == 1 { ("node", "is") } else { ("nodes", "are") };
        Some(format!(
            "{nodes} {}{more} {are} kept for it: {} of {gpus} GPUs still busy",
            names.join(", "),
            (busy + 99) / 100
        ))
    }

    /// Opens the kept nodes if `item` has the earmark or is of higher priority, and those on which a pod with this deadline ends
    /// before another one that is there; [`Earmarks::close`] must follow.
    pub fn open_for(cx: &mut Context<'_>, item: &Item, priority: i32, deadline: Option<u32>) {
        let Some(earmark) = &cx.earmarks.current else { return };
        let all = earmark.item == *item || priority > earmark.priority;
        let end = deadline.and_then(|seconds| cx.now.wall.checked_add(Duration::from_secs(seconds.into())).ok());
        let open: Vec<NodeId> = earmark
            .nodes
            .iter()
            .copied()
            .filter(|node| all || end.is_some_and(|end| last_known_end(cx.world, *node).is_some_and(|last| end < last)))
            .collect();
        open.iter().for_each(|node| cx.world.keep(*node, None));
        cx.earmarks.opened = open;
    }

    /// Closes the nodes that were opened, and no others: each change of a node has it judged again.
    pub fn close(cx: &mut Context<'_>) {
        let opened = std::mem::take(&mut cx.earmarks.opened);
        let Some(earmark) = &cx.earmarks.current else { return };
        opened.into_iter().for_each(|node| cx.world.keep(node, Some(Arc::clone(&earmark.name))));
    }

    /// `item` has its nodes, or does not wait any more.
    pub fn end(cx: &mut Context<'_>, item: &Item) {
        if cx.earmarks.current.as_ref().is_some_and(|earmark| earmark.item == *item) {
            Self::clear(cx);
        }
    }

    /// Ends the earmark.
    pub fn clear(cx: &mut Context<'_>) {
        let Some(earmark) = cx.earmarks.current.take() else { return };
        earmark.nodes.iter().for_each(|node| cx.world.keep(*node, None));
        cx.room_freed();
    }

    /// Ends the earmark when it has been there for too long, its pods do not wait any more, or a node is lost: then nodes are chosen
    /// again after the next attempt.
    pub fn check(cx: &mut Context<'_>) {
        let Some(earmark) = &cx.earmarks.current else { return };
        let too_long = cx.now.mono >= earmark.since + cx.config.earmarks.limit;
        let lost = |id: &NodeId| {
            let facts = cx.world.node(*id).and_then(|node| node.facts.as_ref());
            facts.is_none_or(|facts| facts.unschedulable)
        };
        if too_long || cx.queue.state(earmark.item.clone()).is_none() || earmark.nodes.iter().any(lost) {
            if too_long {
                cx.earmarks.passed.insert(earmark.item.clone(), cx.now.mono + cx.config.earmarks.limit);
            }
            return Self::clear(cx);
        }
        Self::improve(cx);
        cx.timers.set(cx.now.mono + CHECK, Timer::Earmark);
    }
}

impl Earmarks {
    /// Keeps other nodes instead where a fifth fewer GPUs have to come free.
    fn improve(cx: &mut Context<'_>) {
        let Some(earmark) = cx.earmarks.current.take() else { return };
        earmark.nodes.iter().for_each(|node| cx.world.keep(*node, None));
        let busy = |world: &World, nodes: &BTreeSet<NodeId>| -> i64 {
            nodes.iter().map(|id| busy_on(world, *id, |pod| pod.facts.spec.priority <= earmark.priority)).sum()
        };
        let other = choose_nodes(cx, &earmark.members, earmark.priority);
        let now = busy(cx.world, &earmark.nodes);
        let better = other.map(|other| (busy(cx.world, &other), other));
        let better = better.filter(|(busy, _)| *busy < now && busy * 10 <= now * 8).map(|(_, other)| other);
        let changed = better.is_some();
        let nodes = better.unwrap_or_else(|| earmark.nodes.clone());
        nodes.iter().for_each(|node| cx.world.keep(*node, Some(Arc::clone(&earmark.name))));
        cx.earmarks.current = Some(Earmark { nodes, ..earmark });
        if changed {
            Self::announce(cx);
            cx.room_freed();
        }
    }
}

/// When the last of the pods of a node ends whose end is known: its deadline counts from its start, which its bind comes before.
fn last_known_end(world: &World, id: NodeId) -> Option<Timestamp> {
    let pods = world.node(id).into_iter().flat_map(|node| &node.pods).filter_map(|pod| world.pod(*pod));
    pods.filter(|pod| pod.asks_for_devices()).filter_map(known_end).max()
}

/// When a pod ends at the latest, where that is known.
fn known_end(pod: &Pod) -> Option<Timestamp> {
    let bound = pod.facts.handoff.assignment.bind_timestamp.as_ref()?.parse().ok()?;
    let bound = Timestamp::from_nanosecond(bound).ok()?;
    bound.checked_add(Duration::from_secs(pod.facts.spec.deadline?.into())).ok()
}

/// Nodes on which all `members` fit if the pods there of not higher priority end: those with the fewest busy GPUs, then with
/// the most pods whose end is known and the oldest ones.
fn choose_nodes(cx: &mut Context<'_>, members: &[PodId], priority: i32) -> Option<BTreeSet<NodeId>> {
    let ends = |pod: &Pod| pod.facts.spec.priority <= priority;
    let mut candidates: Vec<_> = cx
        .world
        .nodes()
        .filter(|(_, node)| node.stock.is_some())
        .map(|(id, node)| {
            let pods = node.pods.iter().filter_map(|pod| cx.world.pod(*pod)).filter(|pod| ends(pod));
            let unknown = pods.clone().filter(|pod| known_end(pod).is_none()).count();
            let newest = pods.map(|pod| pod.facts.handoff.created).max();
            (busy_on(cx.world, id, ends), unknown, newest, id)
        })
        .collect();
    candidates.sort_unstable();
    let (mut nodes, mut placed, mut removed) = (BTreeSet::new(), Vec::new(), Vec::new());
    let mut left = members.iter().copied().peekable();
    for (.., at) in candidates {
        if left.peek().is_none() {
            break;
        }
        let pods = cx.world.node(at).map(|node| node.pods.clone()).unwrap_or_default();
        for pod in pods {
            if !placed.contains(&pod) && cx.world.pod(pod).is_some_and(ends) {
                cx.world.remove_for_dry_run(pod);
                removed.push(pod);
            }
        }
        while let Some(member) = left.next_if(|member| place(cx, *member, at)) {
            placed.push(member);
            nodes.insert(at);
        }
    }
    let all = left.peek().is_none();
    placed.into_iter().rev().for_each(|pod| _ = cx.world.forget(pod));
    removed.into_iter().rev().for_each(|pod| cx.world.restore_after_dry_run(pod));
    all.then_some(nodes)
}

/// Reserves room for a member on one node, for a dry run.
fn place(cx: &mut Context<'_>, id: PodId, at: NodeId) -> bool {
    let (Some(pod), Some(node)) = (cx.world.pod(id), cx.world.node(at)) else { return false };
    let view = View { world: cx.world, now: cx.now.mono };
    let Ok(mut slots) = prepare(view, cx.rules, pod) else { return false };
    if !judge(view, cx.rules, pod, (at, node), &mut slots).is_fit() {
        return false;
    }
    let devices = device_fit::plan(&slots, (at, node)).map(|plan| plan.held());
    cx.world.assume(id, at, devices)
}

/// GPUs of a node.
fn gpus_of(world: &World, id: NodeId) -> i64 {
    world.node(id).and_then(|node| node.facts.as_ref()).map_or(0, |facts| facts.allocatable.scalar(key::NVIDIA_GPU))
}

/// What those pods of a node hold, in percent of one GPU.
fn busy_on(world: &World, id: NodeId, counts: impl Fn(&Pod) -> bool) -> i64 {
    let pods = world.node(id).into_iter().flat_map(|node| &node.pods).filter_map(|pod| world.pod(*pod));
    let percent = |pod: &Pod| {
        let requests = &pod.facts.spec.requests;
        let shares = [key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO].map(|name| requests.scalar(name));
        requests.scalar(key::NVIDIA_GPU) * 100 + shares.into_iter().max().unwrap_or(0)
    };
    pods.filter(|pod| counts(pod)).map(percent).sum()
}
