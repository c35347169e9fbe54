//! The earmark: nodes that are kept for a group or pod that has waited long for devices. A Strict gang holds nothing until all of it
//! fits, so under a steady stream of small pods a large one would never fit. The nodes chosen for it take no new pod with devices but its
//! own and those of higher priority, until the pods there have ended. Nothing is evicted. There is one earmark at a time for GPUs, and one
//! for NICs without GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::{Peekable, once};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::core::queue::Queue;
use crate::world::{Confinement, NodeId, Pod, PodId, World};

use super::agenda::{Agenda, Scene, Terms};
use super::cost::LOOKS;
use super::min_resources;
use super::preemption::refuses_for_good;
use super::queue::Item;
use super::rules::plugins::{device_fit, of_gpus};
use super::select::choose::{judge, prepare};
use super::timers::Timer;
use baton_contract::{EventReason, key};

/// An earmark is checked this often.
const CHECK: Duration = Duration::from_secs(10);
/// An item for which no nodes can be kept is looked at again after so long.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// Most nodes that a dry run empties for members without devices: each costs as much as placing a pod.
const EMPTIED: usize = 256;

/// What a group or pod waits for; each has its turn of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EarmarkKind {
    /// GPUs, with or without NICs.
    Gpus,
    /// NICs alone.
    Nics,
}

impl EarmarkKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Gpus => "GPUs",
            Self::Nics => "NICs",
        }
    }

    /// Those of a node.
    fn of_node(self, world: &World, id: NodeId) -> i64 {
        world.node(id).and_then(|node| node.facts.as_ref()).map_or(0, |facts| match self {
            Self::Gpus => facts.allocatable.scalar(key::NVIDIA_GPU),
            Self::Nics => facts.allocatable.scalar(key::RDMA) / key::WHOLE,
        })
    }

    /// What a pod asks for, in percent of one.
    fn of_pod(self, pod: &Pod) -> i64 {
        let requests = &pod.facts.spec.requests;
        match self {
            Self::Gpus => {
                let shares = [key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO].map(|name| requests.scalar(name));
                requests.scalar(key::NVIDIA_GPU) * key::WHOLE + shares.into_iter().max().unwrap_or(0)
            }
            Self::Nics => requests.scalar(key::RDMA),
        }
    }

    /// What those pods of a node hold, in percent of one.
    fn busy_on(self, world: &World, id: NodeId, counts: impl Fn(&Pod) -> bool) -> i64 {
        let pods = world.node(id).into_iter().flat_map(|node| &node.pods).filter_map(|pod| world.pod(*pod));
        pods.filter(|pod| counts(pod)).map(|pod| self.of_pod(pod)).sum()
    }
}

/// Nodes that are kept.
#[derive(Debug, Clone)]
pub struct Earmark {
    item: Item,
    wanted: EarmarkKind,
    name: Arc<str>,
    priority: i32,
    nodes: BTreeSet<NodeId>,
    /// The members that start together on them and beside them, those that ask for devices first.
    members: Vec<PodId>,
    since: Duration,
}

impl Earmark {
    /// For this.
    pub const fn item(&self) -> &Item {
        &self.item
    }

    /// Monotonic time since which they are kept.
    pub fn since(&self) -> Duration {
        self.since
    }
}

/// The earmarks, and what had one for too long.
#[derive(Debug, Clone, Default)]
pub struct Earmarks {
    all: Vec<Earmark>,
    /// Nodes that are open to the item in hand.
    opened: Vec<NodeId>,
    /// Until when these have none.
    passed: BTreeMap<Item, Duration>,
    next_check: Duration,
}

impl Earmarks {
    /// Those that there are, at most one for each kind of device.
    pub fn all(&self) -> &[Earmark] {
        &self.all
    }

    /// `members` of `item`, all that it needs to start, fit no nodes. Gives it an earmark if it has waited for long enough.
    /// Returns what to report about it.
    pub fn consider(
        &mut self,
        terms: Terms<'_>,
        world: &mut World,
        agenda: &mut Agenda,
        item: &Item,
        name: &str,
        members: &[PodId],
    ) -> Option<String> {
        let waiting = || members.iter().filter_map(|id| world.pod(*id)).filter(|pod| pod.asks_for_devices());
        let since = waiting().map(|pod| pod.facts.handoff.created).max()?;
        let priority = waiting().map(|pod| pod.facts.spec.priority).max()?;
        let nics_alone = |pod: &Pod| EarmarkKind::Gpus.of_pod(pod) == 0 && EarmarkKind::Nics.of_pod(pod) > 0;
        let wanted = if waiting().all(nics_alone) { EarmarkKind::Nics } else { EarmarkKind::Gpus };
        let mut members = members.to_vec();
        members.sort_by_key(|id| !world.pod(*id).is_some_and(Pod::asks_for_devices));
        if let Some(earmark) = self.all.iter_mut().find(|earmark| earmark.item == *item) {
            earmark.members = members;
            return Some(earmark.text(world));
        }
        let passed = self.passed.get(item).is_some_and(|until| terms.now.mono < *until);
        let taken = self.all.iter().any(|earmark| earmark.wanted == wanted);
        if passed || !is_aged(terms, &mut agenda.queue, item, since) || taken {
            return None;
        }
        // What another one keeps is kept from this one, too.
        self.close(world);
        agenda.stats.work.add((world.nodes().count() * members.len()) as u64 / LOOKS);
        let Some((_, nodes)) = choose_nodes(terms, world, &members, priority, wanted, None) else {
            self.passed.insert(item.clone(), terms.now.mono + LOOK_AGAIN);
            return None;
        };
        let refused = out_of_proportion(world, &members, &nodes);
        if let Some(text) = refused.or_else(|| self.too_large(terms.scene(world), &nodes, wanted)) {
            return Some(text);
        }
        let since = terms.now.mono;
        let earmark = Earmark { item: item.clone(), wanted, name: name.into(), priority, nodes, members, since };
        let text = earmark.announce(world, agenda);
        earmark.keep(world);
        self.all.push(earmark);
        self.check_later(terms, agenda);
        Some(text)
    }

    /// What is said of nodes that are more than may be kept: all earmarks together keep no more than the share of the GPUs, and one
    /// for NICs no more than that of the NICs.
    fn too_large(&self, scene: Scene<'_>, nodes: &BTreeSet<NodeId>, wanted: EarmarkKind) -> Option<String> {
        let beside = self.all.iter().flat_map(|earmark| &earmark.nodes);
        [EarmarkKind::Gpus, wanted].into_iter().find_map(|of| {
            let all: i64 = scene.world.nodes().map(|(id, _)| of.of_node(scene.world, id)).sum();
            let most = all * i64::from(scene.terms.config.earmarks.share) / 100;
            let kept: i64 = nodes.iter().chain(beside.clone()).map(|id| of.of_node(scene.world, *id)).sum();
            let name = of.name();
            (kept > most).then(|| {
                let own: i64 = nodes.iter().map(|id| of.of_node(scene.world, *id)).sum();
                let others = if own < kept { format!(", {} are kept for others", kept - own) } else { String::new() };
                format!("it needs nodes with {own} {name}{others}, and no more than {most} may be kept (--age-share)")
            })
        })
    }

    /// Opens the nodes that are kept for `item` or for one of lower priority, and those on which a pod with this deadline ends
    /// before another one that is there, and closes all others; [`Earmarks::close`] must follow.
    pub fn open_for(&mut self, terms: Terms<'_>, world: &mut World, item: &Item, priority: i32, deadline: Option<u32>) {
        let open = self.open_in(world, (item, priority, deadline), terms.now.wall);
        self.opened.retain(|node| !open.contains(node));
        self.close(world);
        self.opened = open;
    }

    /// Opens them in this world, which may be a copy, for the item, its priority and its deadline; closes none. Returns the nodes.
    pub fn open_in(
        &self,
        world: &mut World,
        (item, priority, deadline): (&Item, i32, Option<u32>),
        now: Timestamp,
    ) -> Vec<NodeId> {
        let end = deadline.and_then(|seconds| now.checked_add(Duration::from_secs(seconds.into())).ok());
        let ends = |node| end.is_some_and(|end| last_known_end(world, node).is_some_and(|last| end < last));
        let mut open = Vec::new();
        for earmark in &self.all {
            let all = earmark.item == *item || priority > earmark.priority;
            open.extend(earmark.nodes.iter().copied().filter(|node| all || ends(*node)));
        }
        open.iter().for_each(|node| world.keep(*node, None));
        open
    }

    /// Opens this node: room on it is the pod's already.
    pub fn open_node(&mut self, world: &mut World, node: NodeId) {
        if world.node(node).is_some_and(|node| node.kept_for.is_some()) {
            world.keep(node, None);
            self.opened.push(node);
        }
    }

    /// Closes the nodes that were opened, and no others: each change of a node has it judged again.
    pub fn close(&mut self, world: &mut World) {
        for node in std::mem::take(&mut self.opened) {
            let earmark = self.all.iter().find(|earmark| earmark.nodes.contains(&node));
            // An earmark that has ended meanwhile keeps none.
            let name = earmark.map(|earmark| Arc::clone(&earmark.name));
            world.keep(node, name);
        }
    }

    /// `item` has its nodes, or does not wait any more.
    pub fn end(&mut self, world: &mut World, agenda: &mut Agenda, item: &Item) {
        self.end_where(world, agenda, |earmark| earmark.item == *item);
    }

    /// Ends all.
    pub fn clear(&mut self, world: &mut World, agenda: &mut Agenda) {
        self.end_where(world, agenda, |_| true);
    }

    fn end_where(&mut self, world: &mut World, agenda: &mut Agenda, ends: impl Fn(&Earmark) -> bool) {
        let ended: Vec<Earmark> = self.all.extract_if(.., |earmark| ends(earmark)).collect();
        for earmark in &ended {
            earmark.nodes.iter().for_each(|node| world.keep(*node, None));
        }
        if !ended.is_empty() {
            agenda.room_freed();
        }
    }

    /// Ends each earmark that has been there for too long or whose pods do not wait any more, and has the others keep the nodes that are
    /// right now.
    pub fn check(&mut self, terms: Terms<'_>, world: &mut World, agenda: &mut Agenda) {
        if terms.now.mono < self.next_check {
            return;
        }
        let oldest = terms.now.mono.saturating_sub(terms.config.earmarks.limit);
        let items: Vec<Item> = self.all.iter().map(|earmark| earmark.item.clone()).collect();
        for item in items {
            let too_long = self.all.iter().any(|earmark| earmark.item == item && earmark.since <= oldest);
            if too_long {
                self.passed.insert(item.clone(), terms.now.mono + terms.config.earmarks.limit);
            }
            if too_long || agenda.queue.state(item.clone()).is_none() || !self.choose_again(terms, world, agenda, &item)
            {
                self.end(world, agenda, &item);
            }
        }
        self.check_later(terms, agenda);
    }

    /// Keeps other nodes instead where a fifth fewer devices have to come free, or where the members do not fit on these any more: a
    /// device has failed, a node is closed, a label has changed, or more is asked for. `false` where they fit on none.
    fn choose_again(&mut self, terms: Terms<'_>, world: &mut World, agenda: &mut Agenda, item: &Item) -> bool {
        let Some(at) = self.all.iter().position(|earmark| earmark.item == *item) else { return false };
        let mut earmark = self.all.remove(at);
        earmark.nodes.iter().for_each(|node| world.keep(*node, None));
        let mut choose = |among| choose_nodes(terms, world, &earmark.members, earmark.priority, earmark.wanted, among);
        let (kept, other) = (choose(Some(&earmark.nodes)), choose(None));
        let other = other.filter(|(_, nodes)| self.too_large(terms.scene(world), nodes, earmark.wanted).is_none());
        // What waits may ask for less than at first.
        let [kept, other] = [kept, other]
            .map(|found| found.filter(|(_, nodes)| out_of_proportion(world, &earmark.members, nodes).is_none()));
        let fewer = |now: i64, then: i64| then < now && then * 10 <= now * 8;
        let best = match (kept, other) {
            (Some((now, _)), Some((then, nodes))) if fewer(now, then) => Some(nodes),
            (kept, other) => kept.or(other).map(|(_, nodes)| nodes),
        };
        let fits = best.is_some();
        let before = std::mem::replace(&mut earmark.nodes, best.unwrap_or_default());
        earmark.keep(world);
        if fits && earmark.nodes != before {
            earmark.announce(world, agenda);
            agenda.room_freed();
        }
        self.all.insert(at, earmark);
        fits
    }

    fn check_later(&mut self, terms: Terms<'_>, agenda: &mut Agenda) {
        if !self.all.is_empty() && self.next_check <= terms.now.mono {
            self.next_check = terms.now.mono + CHECK;
            agenda.timers.set(self.next_check, Timer::Earmark);
        }
    }
}

impl Earmark {
    fn keep(&self, world: &mut World) {
        self.nodes.iter().for_each(|node| world.keep(*node, Some(Arc::clone(&self.name))));
    }

    fn announce(&self, world: &World, agenda: &mut Agenda) -> String {
        let text = self.text(world);
        if let Some(first) = self.members.first() {
            agenda.event(world, *first, EventReason::Earmarked, text.clone());
        }
        text
    }

    /// `nodes a, b are kept for it: 3 of 16 GPUs still busy`.
    fn text(&self, world: &World) -> String {
        let names = self.nodes.iter().filter_map(|id| world.node(*id)).map(|node| &*node.name);
        let mut names: Vec<&str> = names.collect();
        let more = names.len().saturating_sub(4);
        names.truncate(4);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let all: i64 = self.nodes.iter().map(|id| self.wanted.of_node(world, *id)).sum();
        let busy: i64 = self.nodes.iter().map(|id| self.wanted.busy_on(world, *id, |_| true)).sum();
        let (nodes, are) = if self.nodes.len() == 1 { ("node", "is") } else { ("nodes", "are") };
        let (names, of) = (names.join(", "), self.wanted.name());
        let busy = (busy + key::WHOLE - 1) / key::WHOLE;
        format!("{nodes} {names}{more} {are} kept for it: {busy} of {all} {of} still busy")
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

/// What is said of more nodes than whole devices are asked for: members that ask for shares and keep away from each other would
/// have any number of nodes kept for next to nothing.
fn out_of_proportion(world: &World, members: &[PodId], nodes: &BTreeSet<NodeId>) -> Option<String> {
    let stock = nodes.iter().find_map(|id| world.node(*id)?.stock.as_ref())?;
    let requests = members.iter().filter_map(|id| world.pod(*id)).map(|pod| &pod.facts.spec.requests);
    let asked: i64 = requests.map(|requests| of_gpus(requests, stock).0.max(requests.scalar(key::RDMA))).sum();
    let most = ((asked + key::WHOLE - 1) / key::WHOLE).max(1);
    let own = nodes.len();
    (own as i64 > most).then(|| {
        format!("it needs {own} nodes, and no more than {most} may be kept: one for each whole device that it asks for")
    })
}

/// Nodes of these, or of all, on which all `members` with devices fit if the pods there of not higher priority end, and how busy they are
/// with such, in percent of one device. `None` where the others could not start beside them. Members that must be gathered get them in
/// the domain with the fewest busy devices on them.
fn choose_nodes(
    terms: Terms<'_>,
    world: &mut World,
    members: &[PodId],
    priority: i32,
    wanted: EarmarkKind,
    among: Option<&BTreeSet<NodeId>>,
) -> Option<(i64, BTreeSet<NodeId>)> {
    let of = |world: &World, domain: Option<&Confinement>| -> Vec<NodeId> {
        let all = world.nodes_in(domain).map(|(id, _)| id);
        all.filter(|id| among.is_none_or(|among| among.contains(id))).collect()
    };
    let domains = members.first().and_then(|id| world.required_domains(*id));
    let Some((group, domains)) = domains else {
        let nodes = of(world, None);
        return choose_among(terms, world, members, priority, wanted, nodes);
    };
    let needed: i64 = members.iter().filter_map(|id| world.pod(*id)).map(|pod| wanted.of_pod(pod)).sum();
    let mut best: Option<(i64, BTreeSet<NodeId>)> = None;
    for domain in domains {
        let nodes = of(world, Some(&domain));
        let all: i64 = nodes.iter().map(|id| wanted.of_node(world, *id) * key::WHOLE).sum();
        if all < needed {
            continue;
        }
        world.confine(&group, Arc::new(domain));
        let found = choose_among(terms, world, members, priority, wanted, nodes);
        world.unconfine();
        if let Some(found) = found.filter(|(busy, _)| best.as_ref().is_none_or(|(least, _)| busy < least)) {
            best = Some(found);
        }
    }
    best
}

/// The same among these nodes: those with the fewest busy devices, then with the most pods whose end is known and the oldest ones.
fn choose_among(
    terms: Terms<'_>,
    world: &mut World,
    members: &[PodId],
    priority: i32,
    wanted: EarmarkKind,
    nodes: Vec<NodeId>,
) -> Option<(i64, BTreeSet<NodeId>)> {
    // Members that hold room or run do not end before the others start.
    let group = |world: &World, id: PodId| world.gangs().gang_of(id).map(|gang| gang.group().clone());
    let own = members.first().and_then(|id| group(world, *id));
    let ends = |world: &World, pod: &Pod| {
        pod.facts.spec.priority <= priority && (own.is_none() || group(world, pod.id) != own)
    };
    let mut candidates: Vec<_> = nodes
        .into_iter()
        .filter_map(|id| world.node(id).filter(|node| node.stock.is_some()).map(|node| (id, node)))
        .map(|(id, node)| {
            let pods = node.pods.iter().filter_map(|pod| world.pod(*pod)).filter(|pod| ends(world, pod));
            let unknown = pods.clone().filter(|pod| known_end(pod).is_none()).count();
            let newest = pods.map(|pod| pod.facts.handoff.created).max();
            (wanted.busy_on(world, id, |pod| ends(world, pod)), unknown, newest, id)
        })
        .collect();
    candidates.sort_unstable();
    let (mut busy, mut nodes, mut run) = (0, BTreeSet::new(), DryRun::default());
    let asks = |id: &PodId| world.pod(*id).is_some_and(Pod::asks_for_devices);
    let (with, without): (Vec<PodId>, Vec<PodId>) = members.iter().partition(|id| asks(id));
    let mut left = with.into_iter().peekable();
    for (busy_here, .., at) in candidates {
        if left.peek().is_none() {
            break;
        }
        if run.place_emptied(terms, world, at, &ends, &mut left) {
            nodes.insert(at);
            busy += busy_here;
        }
    }
    // Nodes are kept for what can start: it starts with its members without devices, and with what its PodGroups ask for in all.
    let all = left.peek().is_none()
        && run.place_anywhere(terms, world, &without, &nodes, &ends)
        && own.is_none_or(|group| min_resources::missing(world, &group).is_none());
    run.undo(world);
    all.then_some((busy, nodes))
}

/// What a dry run has changed.
#[derive(Default)]
struct DryRun {
    /// Members that have room.
    placed: Vec<PodId>,
    /// Pods that have ended for them.
    ended: Vec<PodId>,
    /// Nodes that were emptied for members without devices.
    emptied: usize,
}

impl DryRun {
    /// Reserves room for the next ones of `left` on this node, once its pods that may end have ended. They stay where it takes none.
    fn place_emptied(
        &mut self,
        terms: Terms<'_>,
        world: &mut World,
        at: NodeId,
        ends: &impl Fn(&World, &Pod) -> bool,
        left: &mut Peekable<impl Iterator<Item = PodId>>,
    ) -> bool {
        let (placed, ended) = (self.placed.len(), self.ended.len());
        let pods = world.node(at).map(|node| node.pods.clone()).unwrap_or_default();
        for pod in pods {
            if !self.placed.contains(&pod) && world.pod(pod).is_some_and(|pod| ends(world, pod)) {
                world.remove_for_dry_run(pod);
                self.ended.push(pod);
            }
        }
        while let Some(member) = left.next_if(|member| place(terms, world, *member, &[at]).is_some()) {
            self.placed.push(member);
        }
        let any = self.placed.len() > placed;
        if !any {
            self.ended.drain(ended..).rev().for_each(|pod| world.restore_after_dry_run(pod));
        }
        any
    }

    /// The same for members without devices, on `kept` nodes or beside them. `false` where one fits no node even when its pods that
    /// may end have ended.
    fn place_anywhere(
        &mut self,
        terms: Terms<'_>,
        world: &mut World,
        members: &[PodId],
        kept: &BTreeSet<NodeId>,
        ends: &impl Fn(&World, &Pod) -> bool,
    ) -> bool {
        let within = members.first().and_then(|id| world.confinement_of(world.pod(*id)?));
        let beside = world.nodes_in(within.as_deref()).map(|(id, _)| id).filter(|id| !kept.contains(id));
        let mut nodes: Vec<NodeId> = kept.iter().copied().chain(beside).collect();
        members.iter().all(|id| {
            if let Some(found) = place(terms, world, *id, &nodes) {
                self.placed.push(*id);
                // The next one, which is often alike, looks there first.
                nodes.rotate_left(found);
                return true;
            }
            let mut left = once(*id).peekable();
            let open = open_to(terms.scene(world), *id, &nodes);
            open.into_iter().any(|at| {
                self.emptied += 1;
                self.emptied <= EMPTIED && self.place_emptied(terms, world, at, ends, &mut left)
            })
        })
    }

    fn undo(self, world: &mut World) {
        self.placed.into_iter().rev().for_each(|pod| _ = world.forget(pod));
        self.ended.into_iter().rev().for_each(|pod| world.restore_after_dry_run(pod));
    }
}

/// Those nodes that may take the pod once they are empty.
fn open_to(scene: Scene<'_>, id: PodId, nodes: &[NodeId]) -> Vec<NodeId> {
    let Some(pod) = scene.world.pod(id) else { return Vec::new() };
    let Ok(mut slots) = prepare(scene.view(), scene.terms.rules, pod) else { return Vec::new() };
    let is_large_enough = |at: NodeId| {
        let mut lacks = pod.facts.spec.requests.clone();
        let facts = scene.world.node(at).and_then(|node| node.facts.as_ref());
        facts.into_iter().for_each(|facts| lacks.sub(&facts.allocatable));
        lacks.at_least_zero().is_zero()
    };
    let may = |at: &NodeId| is_large_enough(*at) && !refuses_for_good(scene, pod, *at, &mut slots);
    nodes.iter().copied().filter(may).collect()
}

/// Reserves room for a member on the first of these nodes that it fits, for a dry run. Returns its position.
fn place(terms: Terms<'_>, world: &mut World, id: PodId, nodes: &[NodeId]) -> Option<usize> {
    let pod = world.pod(id)?;
    let view = terms.view(world);
    let mut slots = prepare(view, terms.rules, pod).ok()?;
    let mut fits = |at, node| judge(view, terms.rules, pod, (at, node), &mut slots).is_fit();
    let found = nodes.iter().position(|at| world.node(*at).is_some_and(|node| fits(*at, node)))?;
    let at = nodes[found];
    let devices = device_fit::plan(&slots, (at, world.node(at)?)).map(|plan| plan.held());
    world.assume(id, at, devices).then_some(found)
}

/// `true` when a parked item that is as old as this may have the earmark; a younger one is tried again when it may.
pub fn is_aged(terms: Terms<'_>, queue: &mut Queue, item: &Item, since: Timestamp) -> bool {
    let after = terms.config.earmarks.after;
    let age = Duration::try_from(terms.now.wall.duration_since(since)).unwrap_or_default();
    let left = after.saturating_sub(age);
    if !left.is_zero() {
        queue.hurry(item.clone(), terms.now.mono + left);
    }
    !after.is_zero() && left.is_zero()
}
