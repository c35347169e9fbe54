//! Which pods usually come, learned from the arrivals of this world: what a node's rest should stay good for.
//!
//! Ratings by it are kept between decisions, so nothing is read live: tables are made when the arrivals have moved away from those
//! in force, and what whole nodes are worth is looked at every few decisions. Either raises the epoch.

use std::sync::Arc;

use crate::patience::{Arrivals, FreeOnNode, GROUPS, PodKind, Sample, Worth, WorthTables};
use crate::pod::PodContainer;
use baton_contract::{GpuRequest, key};

use super::NodeId;
use super::dense::Dense;
use super::node::{Node, NodeFacts};
use super::nodes::Nodes;
use super::pod::PodFacts;
use super::spec::{Labels, NodeTerm};

/// Decisions between two looks at how many nodes larger pods find.
const PERIOD: u32 = 32;
/// Selectors that a sample tells apart: bits of a class. Bit 0 is every node.
const SELECTORS: usize = 63;

/// What of it can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MixPolicy {
    /// Thousandths that a whole node counts at least for pods of several GPUs, however many nodes could take them.
    pub keep_whole: u32,
    /// Arrivals after which a pod counts half.
    pub half_life: u32,
}

impl Default for MixPolicy {
    fn default() -> Self {
        Self { keep_whole: 50, half_life: 4000 }
    }
}

impl MixPolicy {
    fn keep_whole(self) -> f64 {
        f64::from(self.keep_whole) / 1000.0
    }
}

/// Which nodes a kind of pods may use.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Selector {
    labels: Labels,
    required: Option<Vec<NodeTerm>>,
}

impl Selector {
    fn accepts(&self, facts: &NodeFacts) -> bool {
        self.labels.iter().all(|(key, value)| facts.labels.get(key) == Some(value))
            && self
                .required
                .as_ref()
                .is_none_or(|terms| terms.iter().any(|term| term.matches(&facts.name, &facts.labels)))
    }
}

/// What is known of the pods that come.
#[derive(Debug, Clone)]
pub struct Mix {
    policy: MixPolicy,
    arrivals: Arrivals,
    /// By the number of a kind's selector, less one.
    selectors: Vec<Arc<Selector>>,
    /// Devices may have come since it was found that there are no GPUs.
    may_have_gpus: bool,
    /// A sample is out; its selectors by bit, less one.
    asked: Option<Vec<Arc<Selector>>>,
    /// The selectors of the tables in force, by bit, less one.
    by_bit: Vec<Arc<Selector>>,
    /// Which of them admit a node.
    classes: Dense<NodeId, u64>,
    worth: Option<Worth>,
    open: Openings,
    decisions: u32,
    epoch: u64,
}

impl Default for Mix {
    fn default() -> Self {
        Self::new(MixPolicy::default())
    }
}

/// How many nodes could take the most frequent pod of each group; only nodes that changed are looked at again.
#[derive(Debug, Clone, Default)]
struct Openings {
    mark: Option<u64>,
    /// The groups that a node is open to, by bit.
    nodes: Dense<NodeId, u8>,
    counts: [usize; GROUPS],
}

impl Openings {
    fn set(&mut self, id: NodeId, groups: u8) {
        let before = if groups == 0 { self.nodes.remove(id) } else { self.nodes.insert(id, groups) }.unwrap_or(0);
        for (group, count) in self.counts.iter_mut().enumerate() {
            *count += usize::from(groups >> group & 1);
            *count -= usize::from(before >> group & 1);
        }
    }
}

impl Mix {
    pub(super) fn new(policy: MixPolicy) -> Self {
        Self {
            policy,
            arrivals: Arrivals::new(policy.half_life),
            selectors: Vec::new(),
            may_have_gpus: true,
            asked: None,
            by_bit: Vec::new(),
            classes: Dense::default(),
            worth: None,
            open: Openings::default(),
            decisions: 0,
            epoch: 0,
        }
    }

    /// The worth of nodes; `None` before the first tables.
    pub fn worth(&self) -> Option<&Worth> {
        self.worth.as_ref()
    }

    /// Rises when [`Mix::worth`] changes.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The selectors of [`Mix::worth`] that admit a node, by bit.
    pub fn class(&self, node: NodeId) -> u64 {
        self.classes.get(node).copied().unwrap_or(1)
    }

    /// The devices of some node changed.
    pub(super) fn devices_changed(&mut self) {
        self.may_have_gpus = true;
    }

    /// Enters which selectors admit a node.
    pub(super) fn classify(&mut self, id: NodeId, facts: &NodeFacts) {
        if !self.by_bit.is_empty() {
            self.classes.insert(id, class(&self.by_bit, facts));
        }
    }

    fn note(&mut self, ask: GpuAsk, facts: &PodFacts) {
        let selector = self.selector(facts);
        let GpuAsk { gpus, share } = ask;
        let (milli_cpu, memory) = (facts.spec.requests.milli_cpu, facts.spec.requests.memory);
        let kind = PodKind { gpus, share, milli_cpu, memory, selector };
        if let Some(dropped) = self.arrivals.note(kind)
            && dropped.selector > 0
            && !self.arrivals.uses(dropped.selector)
        {
            // Its number is free: it admits nothing until another one takes it.
            self.selectors[usize::from(dropped.selector) - 1] =
                Arc::new(Selector { labels: Labels::new(), required: Some(Vec::new()) });
        }
    }

    /// The number of the pod's selector.
    fn selector(&mut self, facts: &PodFacts) -> u16 {
        let spec = &facts.spec;
        if spec.node_selector.is_empty() && spec.node_required.is_none() {
            return 0;
        }
        let is_it = |known: &Arc<Selector>| known.labels == spec.node_selector && known.required == spec.node_required;
        let at = self.selectors.iter().position(is_it).unwrap_or_else(|| {
            let free = |known: &Arc<Selector>| known.required.as_ref().is_some_and(Vec::is_empty);
            let new = Arc::new(Selector { labels: spec.node_selector.clone(), required: spec.node_required.clone() });
            if let Some(at) = self.selectors.iter().position(free) {
                self.selectors[at] = new;
                return at;
            }
            self.selectors.push(new);
            self.selectors.len() - 1
        });
        u16::try_from(at + 1).unwrap_or(0)
    }

    /// Forgets what it has learned.
    pub(super) fn forget(&mut self) {
        *self = Self { epoch: self.epoch + 1, ..Self::new(self.policy) };
    }

    /// Counts the arrival of a pod.
    pub(super) fn learn(&mut self, facts: &PodFacts, nodes: &Nodes) {
        let memory_percent = |bytes| {
            let stocks = nodes.iter().filter_map(|(_, node)| node.stock.as_ref());
            stocks.map(|stock| stock.memory_percent(bytes)).find(|percent| *percent > 0).unwrap_or(0)
        };
        if let Some(ask) = GpuAsk::of(facts, memory_percent) {
            self.note(ask, facts);
        }
    }

    /// A sample for new tables, when they are due and none is out; [`Mix::rate_by`] takes the tables.
    pub(super) fn take_sample(&mut self, nodes: &Nodes) -> Option<Sample> {
        if self.asked.is_some() {
            return None;
        }
        if self.worth.is_none() {
            if !std::mem::replace(&mut self.may_have_gpus, false) {
                return None;
            }
            let (mut milli_cpu, mut gpus) = (0i64, 0u32);
            for (_, node) in nodes.iter() {
                let Some(facts) = node.facts.as_ref().filter(|_| gpus_of(node) > 0) else { continue };
                milli_cpu = milli_cpu.saturating_add(facts.allocatable.milli_cpu);
                gpus += gpus_of(node);
            }
            if gpus == 0 {
                return None;
            }
            self.arrivals.assume(milli_cpu / i64::from(gpus));
        } else if !self.arrivals.have_moved() {
            return None;
        }
        let parts = self.arrivals.take();
        // The selectors with the most arrivals get bits; kinds with other ones are left out.
        let mut weights = vec![(0.0, 0u16); self.selectors.len()];
        for (kind, part) in parts.iter().filter(|(kind, _)| kind.selector > 0) {
            let weight = &mut weights[usize::from(kind.selector) - 1];
            *weight = (weight.0 + part, kind.selector);
        }
        weights.retain(|(weight, _)| *weight > 0.0);
        weights.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        weights.truncate(SELECTORS);
        let bit = |selector: u16| match selector {
            0 => Some(0),
            other => Some(weights.iter().position(|(_, known)| *known == other)? as u16 + 1),
        };
        let with_bits =
            parts.iter().filter_map(|(kind, part)| Some((PodKind { selector: bit(kind.selector)?, ..*kind }, *part)));
        let parts = with_bits.collect();
        let chosen: Vec<Arc<Selector>> =
            weights.iter().map(|(_, selector)| self.selectors[usize::from(*selector) - 1].clone()).collect();
        let mut classes = std::collections::BTreeMap::new();
        for (_, node) in nodes.iter() {
            if let Some(facts) = &node.facts {
                *classes.entry(class(&chosen, facts)).or_insert(0) += gpus_of(node);
            }
        }
        self.asked = Some(chosen);
        Some(Sample { parts, classes: classes.into_iter().collect() })
    }

    /// Rates nodes by new tables from now on. Tables that were not asked for are ignored.
    pub(super) fn rate_by(&mut self, tables: WorthTables, nodes: &Nodes) {
        let Some(selectors) = self.asked.take() else { return };
        if self.by_bit != selectors {
            self.classes = Dense::default();
            self.by_bit = selectors;
            let objects = nodes.iter().filter_map(|(id, node)| Some((id, node.facts.as_ref()?)));
            objects.for_each(|(id, facts)| self.classify(id, facts));
        }
        self.worth = Some(Worth::new(tables, self.worth.as_ref(), self.policy.keep_whole()));
        self.open = Openings::default();
        self.epoch += 1;
    }

    /// Counts a decision; every so many, looks how dear whole nodes are. `device_pods` pods on nodes ask for devices.
    pub(super) fn count_decision(&mut self, nodes: &Nodes, device_pods: usize) {
        self.decisions += 1;
        if self.decisions < PERIOD {
            return;
        }
        self.decisions = 0;
        let Some(mut worth) = self.worth.take() else { return };
        self.find_openings(&worth, nodes);
        if worth.weigh(device_pods, self.open.counts, self.policy.keep_whole()) {
            self.epoch += 1;
        }
        self.worth = Some(worth);
    }

    fn find_openings(&mut self, worth: &Worth, nodes: &Nodes) {
        let mut open = std::mem::take(&mut self.open);
        let journal = nodes.journal();
        let changed = open.mark.and_then(|mark| Some(journal.since(mark)?.collect::<Vec<NodeId>>()));
        let changed = changed.unwrap_or_else(|| {
            open = Openings::default();
            nodes.iter().map(|(id, _)| id).collect()
        });
        for id in changed {
            let groups = nodes.get(id).map_or(0, |node| {
                let rests = node.stock.as_ref().map(|stock| stock.rests(None));
                let Some(free) = rests.as_ref().and_then(|rests| free(node, rests.percents(), self.class(id))) else {
                    return 0;
                };
                let takes =
                    |group: usize| worth.tables().kinds[group].first().is_some_and(|(kind, _)| free.takes(kind));
                (1..GROUPS).filter(|group| takes(*group)).fold(0, |groups, group| groups | 1 << group)
            });
            open.set(id, groups);
        }
        open.mark = Some(journal.mark());
        self.open = open;
    }
}

fn class(selectors: &[Arc<Selector>], facts: &NodeFacts) -> u64 {
    let bits = selectors.iter().enumerate().filter(|(_, selector)| selector.accepts(facts));
    bits.fold(1, |class, (at, _)| class | 2 << at)
}

/// What is free on a node beside these rests of its GPUs; `None` without a Node object.
pub fn free<'a>(node: &Node, gpus: &'a [u8], class: u64) -> Option<FreeOnNode<'a>> {
    let have = &node.facts.as_ref()?.allocatable;
    let (milli_cpu, memory) = (have.milli_cpu - node.used.milli_cpu, have.memory - node.used.memory);
    Some(FreeOnNode { gpus, milli_cpu, memory, class })
}

fn gpus_of(node: &Node) -> u32 {
    node.stock.as_ref().map_or(0, |stock| stock.pool().summary().gpus)
}

/// What a pod asks of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct GpuAsk {
    gpus: u32,
    share: u8,
}

impl GpuAsk {
    /// All whole GPUs of the pod, or else its largest share; `None` without either.
    fn of(facts: &PodFacts, memory_percent: impl Fn(i64) -> i64) -> Option<Self> {
        let served = |container: &&PodContainer| container.dra_backed.is_empty();
        let containers = facts.handoff.containers.iter().filter(served);
        let (mut whole, mut share) = (0u32, None);
        for want in containers.filter_map(|container| container.request.as_ref().ok()?.gpu.as_ref()) {
            match want {
                GpuRequest::Whole { count } => whole = whole.saturating_add(*count),
                GpuRequest::Share { count, core, ratio, memory } => {
                    let memory = ratio.or(memory.map(&memory_percent)).unwrap_or(0);
                    let percent = memory.max(*core).clamp(1, key::WHOLE) as u8;
                    share = share.max(Some(Self { gpus: *count, share: percent }));
                }
                GpuRequest::Mig { .. } => {}
            }
        }
        if whole > 0 { Some(Self { gpus: whole, share: key::WHOLE as u8 }) } else { share }
    }
}
