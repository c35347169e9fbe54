//! What would be decided for a pod that does not exist: the rules of a real decision judge the present world, nothing is reserved.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::core::agenda::NEW_POD;
use crate::core::placing::enter_nominated;
use crate::core::preemption::{candidates, eviction_text};
use crate::core::queue::Item;
use crate::core::rules::View;
use crate::core::rules::plugins::device_fit;
use crate::core::select::choose::{NodeChoice, choose};
use crate::core::select::free::free_on;
use crate::core::timers::Moment;
use crate::devices::{Held, HeldDevice};
use crate::gang::beyond;
use crate::scheduler::Scheduler;
use crate::text::amount;
use crate::world::gangs::{GroupId, PodGroupFacts};
use crate::world::{Confinement, Pod, PodFacts, PodId, Stock, World, WorldEvent};
use baton_contract::{PodRef, ShareIsolation, key};

use super::answer::{OneMove, RatedNode, WhatIf, WhatIfObject, WhatIfObjects};
use super::judged::{held_words, judge_all};
use super::node::has_stuck_lock;

/// A pod as in its manifest, before admission has set its priority.
#[derive(Debug, Clone)]
pub struct Unadmitted {
    /// All but the priority.
    pub facts: PodFacts,
    /// `spec.priorityClassName`.
    pub class: Option<Box<str>>,
    /// `spec.priority`.
    pub priority: Option<i32>,
    /// Whether `spec.preemptionPolicy` is `Never`; `None` when it is not set.
    pub never_preempts: Option<bool>,
}

/// An object as in its manifest, with the pods that its controller would make.
#[derive(Debug, Clone, Default)]
pub struct UnadmittedObject {
    /// `Deployment default/web`.
    pub name: String,
    /// Its pods, no two of one name.
    pub pods: Vec<Unadmitted>,
    /// How many of them must start together; 0 where each starts by itself.
    pub together: usize,
    /// It is a TYJob.
    pub is_tyjob: bool,
    /// The gang that it declares, where it is a PodGroup.
    pub pod_group: Option<Box<PodGroupFacts>>,
}

/// Victims that a headline names.
const NAMED: usize = 3;

/// How room would be made.
struct WayOut {
    /// Pods that would be evicted; none where it is enough to wait for those that leave.
    victims: Vec<String>,
    /// In words.
    way: String,
    /// The same in short, where pods would be evicted.
    headline: Option<String>,
}

/// What a pod that fits no node would do.
enum Instead {
    /// `would evict ml/a of node-1 and start there`.
    Evict(String),
    /// Why it waits.
    Wait(String),
}

/// Objects whose pods start together, or one of them.
struct Batch {
    name: String,
    /// Where they are of a gang.
    group: Option<GroupId>,
    pods: Vec<PodFacts>,
    together: usize,
    notes: Vec<String>,
}

/// What [`Scheduler::start_batch`] has found.
type BatchStart = (Vec<PodId>, BTreeMap<String, usize>, Option<(PodId, NodeChoice)>);

fn confine(world: &mut World, batch: &Batch, to: Option<&Arc<Confinement>>) {
    match (&batch.group, to) {
        (Some(group), Some(to)) => world.confine(group, Arc::clone(to)),
        _ => world.unconfine(),
    }
}

/// Where nothing limits the processes of a share.
const COUNTED_ONLY: &str = "its shares are counted, not limited on this node: each can take the whole GPU";

/// Among these devices of a node are parts of GPUs, and nothing there limits what a process takes.
fn are_counted_only(stock: Option<&Stock>, held: &Held) -> bool {
    let is_share = |of: &HeldDevice| of.amount(key::GPU_MEMORY_RATIO) > 0 && of.percent() < key::WHOLE;
    stock.is_some_and(|stock| stock.shares().isolation == ShareIsolation::None) && held.devices().iter().any(is_share)
}

/// What is not judged of a TYJob.
const OF_TYJOB: &str =
    "the TYJob's basicPolicy rates nodes in another way; quotas, LimitRanges and where it is gathered are not judged";

impl Scheduler {
    fn admitted(&self, pod: Unadmitted) -> Result<PodFacts, String> {
        let Unadmitted { mut facts, class, priority, never_preempts } = pod;
        let (priority, never) = self.world().admit_priority(class.as_deref(), priority, never_preempts)?;
        (facts.spec.priority, facts.spec.never_preempts) = (priority, never);
        Ok(facts)
    }

    /// [`Scheduler::what_if`] for a pod that gets its priority from the cluster's PriorityClasses. The error is why the API server
    /// would reject it.
    pub fn what_if_admitted(&self, pod: Unadmitted, now: Moment) -> Result<WhatIf, String> {
        Ok(self.what_if(self.admitted(pod)?, now))
    }

    /// Places the pods of several objects one after the other, each beside those before it. Pods of one gang are placed together.
    pub fn what_if_objects(&self, mut objects: Vec<UnadmittedObject>, now: Moment) -> Result<WhatIfObjects, String> {
        let mut world = self.world().clone();
        for group in objects.iter_mut().filter_map(|object| object.pod_group.take()) {
            world.apply(WorldEvent::PodGroup(group), now.mono, now.wall);
        }
        let mut batches: Vec<Batch> = Vec::new();
        for UnadmittedObject { name, pods, together, is_tyjob, .. } in objects {
            for pod in pods {
                let mut facts = self.admitted(pod)?;
                // Its pods are made for free places.
                facts.spec.never_preempts |= is_tyjob;
                let mut notes = self.notes(&facts);
                notes.extend(is_tyjob.then(|| OF_TYJOB.to_owned()));
                // A pod of that name may exist, or come twice: in the copy each is another one, whose name no pod can have.
                let (key, at) = (&facts.handoff.pod.key, batches.iter().map(|batch| batch.pods.len()).sum::<usize>());
                facts.handoff.pod =
                    PodRef::new(&key.namespace, &format!("{}~{at}", key.name), &format!("what-if~{at}"));
                world.apply(WorldEvent::Pod(Box::new(facts.clone())), now.mono, now.wall);
                let id = world.pod_id(&facts.handoff.pod.uid);
                let gang = id.and_then(|id| world.gangs().gang_of(id));
                let of_gang = gang.map(|gang| (format!("gang {}", gang.id()), gang.config().min.unwrap_or(1) as usize));
                let (name, together) = of_gang.unwrap_or_else(|| (name.clone(), together));
                let group = gang.map(|gang| gang.group().clone());
                match batches.iter_mut().find(|batch| batch.name == name) {
                    Some(batch) => batch.pods.push(facts),
                    None => batches.push(Batch { name, group, pods: vec![facts], together, notes }),
                }
            }
        }
        let priority = batches.iter().flat_map(|batch| &batch.pods).map(|pod| pod.spec.priority).min().unwrap_or(0);
        enter_nominated(self.preemption(), &mut world, self.scene(now).terms, (priority, NEW_POD));
        self.earmarks().open_in(&mut world, (&Item::Pod(NEW_POD), priority, None), now.wall);
        let objects = batches.into_iter().map(|batch| self.place_batch(&mut world, batch, now)).collect();
        Ok(WhatIfObjects { objects, generation: self.world().generation() })
    }

    /// Where the pods of a batch may go: what is asked for most first, the domain with the least left over first.
    fn ranges(world: &World, group: Option<&GroupId>) -> Vec<Option<Arc<Confinement>>> {
        let topology = group.and_then(|group| Some((group, world.gangs().topology_of(group)?)));
        let Some((group, topology)) = topology else { return Vec::new() };
        let of_level = |labels: Vec<Box<str>>| {
            let mut domains = world.domains_for(group, &labels);
            domains
                .sort_by_cached_key(|at| world.nodes_in(Some(at)).map(|(_, node)| free_on(node).max(0)).sum::<i64>());
            domains.into_iter().map(|at| Some(Arc::new(at)))
        };
        let anywhere = topology.required.is_empty().then_some(None);
        topology.levels().flat_map(of_level).chain(anywhere).collect()
    }

    /// Places what can start now on the nodes that the pods may use; with the first pod that fits none.
    fn start_batch(&self, world: &mut World, batch: &Batch, now: Moment) -> BatchStart {
        let (mut placed, mut starts, mut failed) = (Vec::new(), BTreeMap::new(), None);
        for facts in &batch.pods {
            let pod = world.pod_id(&facts.handoff.pod.uid).and_then(|id| world.pod(id));
            let Some(pod) = pod.filter(|pod| pod.node().is_none()) else { continue };
            let like = |(id, _): &(PodId, NodeChoice)| world.pod(*id).is_some_and(|failed| failed.is_of_template(pod));
            if failed.as_ref().is_some_and(like) {
                continue;
            }
            let (id, view) = (pod.id, View { world, now: now.mono });
            match choose(view, self.rules(), pod, None).0 {
                NodeChoice::Node(node, slots) => {
                    let plan = view.world.node(node).and_then(|found| device_fit::plan(&slots, (node, found)));
                    let held = plan.map(|plan| plan.held());
                    *starts.entry(self.node_name(Some(node)).unwrap_or_default()).or_default() += 1;
                    world.assume(id, node, held);
                    placed.push(id);
                }
                choice => _ = failed.get_or_insert((id, choice)),
            }
        }
        (placed, starts, failed)
    }

    /// Places what can start now, and takes nothing where too few of those can that start together. A gang that is gathered goes to the
    /// first domain that has room for as many as start together, or else stays where the most of it has room.
    fn place_batch(&self, world: &mut World, batch: Batch, now: Moment) -> WhatIfObject {
        let mut best: (usize, Option<Arc<Confinement>>) = (0, None);
        for range in Self::ranges(world, batch.group.as_ref()) {
            confine(world, &batch, range.as_ref());
            let (placed, ..) = self.start_batch(world, &batch, now);
            placed.iter().for_each(|id| _ = world.forget(*id));
            if best.1.is_none() || placed.len() > best.0 {
                best = (placed.len(), range);
            }
            if placed.len() >= batch.together.max(1) {
                break;
            }
        }
        let range = best.1;
        confine(world, &batch, range.as_ref());
        let (mut placed, mut starts, mut failed) = self.start_batch(world, &batch, now);
        if failed.is_some() && placed.len() >= batch.together.max(1) {
            // Members beyond the minimum go elsewhere where the domain is only preferred.
            world.unconfine();
            let (more, nodes, still) = self.start_batch(world, &batch, now);
            placed.extend(more);
            nodes.into_iter().for_each(|(node, count)| *starts.entry(node).or_default() += count);
            failed = still;
        }
        let (way, alone) = match failed.map(|(id, choice)| {
            let of = |facts: &PodFacts| world.pod_id(&facts.handoff.pod.uid);
            let rest = batch.pods.iter().filter_map(of).filter(|other| *other != id && !placed.contains(other));
            let more = batch.together.saturating_sub(placed.len() + 1);
            let together: Vec<PodId> = [id].into_iter().chain(rest.take(more)).collect();
            self.way_out(world, &together, &choice, now)
        }) {
            Some(Instead::Evict(way)) => (format!("{way} for one more"), way),
            Some(Instead::Wait(why)) => (why.clone(), format!("would wait: {why}")),
            None => Default::default(),
        };
        world.unconfine();
        let counted = placed.iter().filter_map(|id| world.pod(*id)).any(|pod| {
            let node = pod.node().and_then(|node| world.node(node));
            node.is_some_and(|node| node.holding(pod).is_some_and(|held| are_counted_only(node.stock.as_ref(), held)))
        });
        let mut notes = batch.notes;
        notes.extend(counted.then(|| COUNTED_ONLY.to_owned()));
        let (count, of) = (placed.len(), batch.pods.len());
        let headline = if count < batch.together {
            placed.into_iter().for_each(|id| _ = world.forget(id));
            starts.clear();
            let at = range.map(|range| format!(" in {}", range.name())).unwrap_or_default();
            let pods = batch.pods.iter().filter_map(|facts| world.pod(world.pod_id(&facts.handoff.pod.uid)?));
            match beyond(world, pods.take(batch.together)) {
                Some(never) => never.trim_start_matches("it ").to_owned(),
                None => {
                    format!("would wait: room{at} for {count} of the {} that start together; {way}", batch.together)
                }
            }
        } else if count == 0 {
            alone
        } else {
            let on: Vec<String> = match &*starts.iter().collect::<Vec<_>>() {
                [(node, _)] => vec![(*node).clone()],
                all => all.iter().map(|(node, count)| format!("{node} ({})", amount(**count, "pod"))).collect(),
            };
            let some = if count < of { format!("{count} of {of} ") } else { String::new() };
            let rest = if count < of { format!("; the rest {alone}") } else { String::new() };
            format!("{some}would start now on {}{rest}", on.join(", "))
        };
        let left = batch.pods.first().map(|facts| self.left_to_another(facts)).unwrap_or_default();
        let headline = left + &headline;
        WhatIfObject { object: batch.name, headline, pods: of, together: batch.together, starts, notes }
    }

    /// What becomes of the first of these pods, which was not placed, and of those that start with it.
    fn way_out(&self, world: &World, ids: &[PodId], choice: &NodeChoice, now: Moment) -> Instead {
        let why = match choice {
            NodeChoice::Nowhere(diagnosis) => diagnosis.message(),
            NodeChoice::WaitUntil(_, refusal) => refusal.text.to_string(),
            NodeChoice::Fault(text) => text.to_string(),
            NodeChoice::Node(..) => String::new(),
        };
        let pod = ids.first().and_then(|id| world.pod(*id)).filter(|pod| !pod.facts.spec.never_preempts);
        let way = pod.and_then(|pod| self.eviction(world.clone(), pod, now)).and_then(|found| found.headline);
        if let Some(way) = way {
            return Instead::Evict(way);
        }
        let found = self.one_move(&mut world.clone(), ids, now);
        Instead::Wait(found.map_or(why.clone(), |found| format!("{why}; one move would help: {found}")))
    }

    /// How room would be made for a pod.
    fn eviction(&self, mut world: World, pod: &Pod, now: Moment) -> Option<WayOut> {
        let gone = self.preemption().chosen_victims(self.world());
        let found = candidates(&mut world, self.rules(), pod, &gone, now);
        let picked = self.rules().enabled().post_filter().iter().find_map(|plugin| plugin.pick(&found))?;
        let victims = picked.victims.iter().filter_map(|victim| self.world().pod(victim.pod));
        let victims: Vec<String> = victims.map(|pod| pod.key().to_string()).collect();
        let node = self.node_name(Some(picked.node)).unwrap_or_default();
        let way = match eviction_text(self.world(), picked) {
            None => format!("would wait for pods that are leaving node {node}"),
            Some(eviction) => format!("would evict {eviction}"),
        };
        let whom = if victims.len() > NAMED { format!("{} pods", victims.len()) } else { victims.join(", ") };
        let headline = (!victims.is_empty()).then(|| format!("would evict {whom} of {node} and start there"));
        Some(WayOut { victims, way, headline })
    }

    fn move_for_new(&self, mut world: World, pod: &Pod, now: Moment) -> Option<OneMove> {
        let mut facts = pod.facts.clone();
        let key = pod.key();
        facts.handoff.pod = PodRef::new(&key.namespace, &format!("{}~", key.name), "what-if~");
        let uid = facts.handoff.pod.uid.clone();
        world.apply(WorldEvent::Pod(Box::new(facts)), now.mono, now.wall);
        let id = world.pod_id(&uid)?;
        self.one_move(&mut world, &[id], now)
    }

    /// Judges a pod as if it were created now and its turn had come.
    pub fn what_if(&self, facts: PodFacts, now: Moment) -> WhatIf {
        let mut notes = self.notes(&facts);
        if facts.spec.gang.is_some() {
            notes.push("the pod names a gang: here it is judged by itself, its gang decides when it starts".to_owned());
        }
        let pod = Pod::unplaced(NEW_POD, facts);
        let world = self.as_found_by(&pod, now);
        let view = View { world: &world, now: now.mono };
        let mut judged = judge_all(view, self.rules(), &pod);
        let best = self.best_nodes(view, &pod, &mut judged);
        let chosen = best.first().and_then(|best| self.world().node_id(&best.node));
        let plan = chosen.and_then(|id| device_fit::plan(&judged.slots, (id, self.world().node(id)?)));
        let held = plan.map(|plan| plan.held());
        let stock = chosen.and_then(|id| self.world().node(id)?.stock.as_ref());
        if held.as_ref().is_some_and(|held| are_counted_only(stock, held)) {
            notes.push(COUNTED_ONLY.to_owned());
        }
        let locked = chosen.and_then(|id| self.world().node(id));
        if held.is_some() && locked.is_some_and(|node| has_stuck_lock(self.world(), node, now.wall)) {
            notes.push(
                "the node's lock does not go by itself: the pod would wait for it (`baton get locks`)".to_owned(),
            );
        }
        let devices = held.as_ref().map(held_words).unwrap_or_default();
        let node = self.node_name(chosen);
        let mut verdict = judged.verdict;
        let (mut would_evict, mut preemption) = (Vec::new(), None);
        if node.is_none() {
            verdict.one_move = self.move_for_new(world.clone().into_owned(), &pod, now);
        }
        let found =
            verdict.one_move.as_ref().map(|found| format!("; one move would help: {found}")).unwrap_or_default();
        let words = if judged.never { "never starts here" } else { "would wait" };
        let mut headline = format!("{words}: {}{found}", verdict.message);
        if let Some(node) = &node {
            headline = format!("would start now on {node}");
            verdict.message = format!("would go to node {node}");
            (verdict.wakes, verdict.advice) = (Vec::new(), Vec::new());
        } else if !verdict.nodes.is_empty() && !pod.facts.spec.never_preempts {
            let way = self.eviction(world.into_owned(), &pod, now);
            if let Some(WayOut { victims, way, headline: evicts }) = way {
                would_evict = victims;
                headline = evicts.unwrap_or_else(|| way.clone());
                verdict.message = format!("{}; {way}", verdict.message);
                verdict.advice.clear();
                preemption = Some(way);
            }
        }
        WhatIf {
            pod: pod.key().to_string(),
            headline: self.left_to_another(&pod.facts) + &headline,
            fits: node.is_some(),
            node,
            devices,
            best,
            would_evict,
            preemption,
            notes,
            verdict,
            generation: self.world().generation(),
        }
    }

    /// Every node that fits a pod that does not exist, best first, with each rule's score; [`Scheduler::what_if`] names the best few. Tests
    /// compare the scores with kube-scheduler's.
    pub fn ratings(&self, facts: PodFacts, now: Moment) -> Vec<RatedNode> {
        let pod = Pod::unplaced(NEW_POD, facts);
        let world = self.as_found_by(&pod, now);
        let view = View { world: &world, now: now.mono };
        let mut judged = judge_all(view, self.rules(), &pod);
        self.rated_nodes(view, &pod, &mut judged)
    }

    /// Of a pod that another scheduler places: this one leaves it alone.
    fn left_to_another(&self, facts: &PodFacts) -> String {
        let (name, ours) = (&facts.handoff.scheduler_name, &self.config().scheduler_names);
        let first = ours.first().map_or("", |name| name);
        let is_served = ours.contains(name) || self.config().asking_names.contains(name);
        let words = || format!("is left to scheduler {name:?}; with schedulerName {first}: ");
        if is_served { String::new() } else { words() }
    }

    /// What the answer does not take into account.
    fn notes(&self, facts: &PodFacts) -> Vec<String> {
        let mut notes = Vec::new();
        let handoff = &facts.handoff;
        if self.world().pod_by_key(&handoff.pod.key).is_some() {
            notes.push("a pod of this name exists; it is counted beside this one".to_owned());
        }
        let ahead = self.queue().standings().filter(|(_, standing)| standing.priority >= facts.spec.priority).count();
        if ahead > 0 {
            let items = amount(ahead, "queued item");
            notes.push(format!("{items} of the same or a higher priority may take room first: `baton get queue`"));
        }
        notes
    }
}
