//! The policies of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023) and of its published simulator, on a model of the machines.
//!
//! Two things that the paper does not say decide its figures: ties go to the first machine of an order that is fixed for a run, and
//! FGD's score is rounded down to a hundredth of a sigmoid, about 1/25 GPU.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use baton::ops::simulate::cluster::{OnFailure, PodNumber, Rest, SimulatedCluster};
use baton::ops::simulate::trace::{Trace, TraceAsk, WHOLE};
use baton::runtime::clock;

/// A policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Any machine and any GPU with room.
    Random,
    /// The machine whose rest points least in the direction of the request.
    DotProduct,
    /// A machine that has pods of the same size.
    GpuClustering,
    /// GPUs that are in use first, then machines that are in use.
    GpuPacking,
    /// The machine with the least left, CPU and GPUs counted alike.
    BestFit,
    /// Fragmentation gradient descent.
    Fgd,
}

/// The largest machine, by which CPU and GPUs are made comparable.
const MOST_MILLI_CPU: f64 = 128_000.0;
const MOST_MILLI_GPU: i64 = 8 * WHOLE;
/// Kinds of pods that make this part of the list are typical; the rarer ones are left out.
const TYPICAL: f64 = 0.95;

struct ModelNode {
    milli_cpu: i64,
    memory: i64,
    /// Thousandths free of each GPU.
    gpus: Vec<i64>,
    model: String,
    /// Its place in the trace.
    machine: usize,
    /// Pods by size.
    sizes: BTreeMap<u32, usize>,
    /// Changes so far.
    version: u32,
}

impl ModelNode {
    fn left(&self) -> i64 {
        self.gpus.iter().sum()
    }

    fn fits(&self, ask: &TraceAsk) -> bool {
        ask.milli_cpu <= self.milli_cpu
            && ask.memory <= self.memory
            && (ask.gpus == 0 || ask.accepts(&self.model) && has_gpus(&self.gpus, ask))
    }

    /// The fullest GPUs with room.
    fn best_gpus(&self, ask: &TraceAsk) -> Vec<usize> {
        let mut gpus: Vec<usize> = (0..self.gpus.len()).filter(|at| self.gpus[*at] >= ask.milli).collect();
        gpus.sort_by_key(|at| self.gpus[*at]);
        gpus.truncate(ask.gpus as usize);
        gpus
    }
}

fn has_gpus(gpus: &[i64], ask: &TraceAsk) -> bool {
    gpus.iter().filter(|free| **free >= ask.milli).count() >= ask.gpus as usize
}

/// Pods of one size attract each other in GpuClustering: 0 for shares.
fn size(ask: &TraceAsk) -> u32 {
    if ask.milli < WHOLE { 0 } else { ask.gpus }
}

struct PlacedPod {
    ask: usize,
    node: usize,
    gpus: Vec<usize>,
}

/// A score that was worked out on one version of a machine; [`UNFIT`] where the pod does not fit.
type KnownScore = (u32, i32);
const UNFIT: i32 = i32::MIN;

/// A model of a cluster with one of the policies.
pub struct PublishedPolicy<'a> {
    policy: Policy,
    asks: &'a [TraceAsk],
    nodes: Vec<ModelNode>,
    /// Kinds of pods with their part of the list.
    typical: Vec<(TraceAsk, f64)>,
    /// By request and machine; empty for a request that has not come yet.
    known: Vec<Vec<KnownScore>>,
    placed: BTreeMap<PodNumber, PlacedPod>,
    waiting: VecDeque<(PodNumber, usize)>,
    on_failure: OnFailure,
    random: fastrand::Rng,
    decisions: Vec<Duration>,
}

impl<'a> PublishedPolicy<'a> {
    /// Empty machines in this order.
    pub fn new(
        policy: Policy,
        trace: &'a Trace,
        order: &[usize],
        on_failure: OnFailure,
        random: fastrand::Rng,
    ) -> Self {
        let node = |at: &usize| {
            let machine = &trace.machines[*at];
            ModelNode {
                milli_cpu: machine.milli_cpu,
                memory: machine.memory,
                gpus: vec![WHOLE; machine.gpus as usize],
                model: machine.model.clone(),
                machine: *at,
                sizes: BTreeMap::new(),
                version: 1,
            }
        };
        Self {
            policy,
            asks: &trace.asks,
            nodes: order.iter().map(node).collect(),
            typical: if policy == Policy::Fgd { typical(trace) } else { Vec::new() },
            known: vec![Vec::new(); trace.asks.len()],
            placed: BTreeMap::new(),
            waiting: VecDeque::new(),
            on_failure,
            random,
            decisions: Vec::new(),
        }
    }

    fn place(&mut self, pod: PodNumber, ask: usize) -> bool {
        let started = clock::mono();
        let chosen = self.choose(ask).map(|node| (node, self.gpus(node, &self.asks[ask])));
        self.decisions.push(clock::mono().saturating_sub(started));
        let Some((node, gpus)) = chosen else { return false };
        self.take(node, ask, &gpus, 1);
        self.placed.insert(pod, PlacedPod { ask, node, gpus });
        true
    }

    /// The first machine with the highest score.
    fn choose(&mut self, ask: usize) -> Option<usize> {
        let wanted = &self.asks[ask];
        let mut known = std::mem::take(&mut self.known[ask]);
        known.resize(self.nodes.len(), (0, UNFIT));
        let (mut best, mut fitting): (Option<(i32, usize)>, usize) = (None, 0);
        for (at, node) in self.nodes.iter().enumerate() {
            if known[at].0 != node.version {
                let score = if node.fits(wanted) { self.score(node, wanted) as i32 } else { UNFIT };
                known[at] = (node.version, score);
            }
            let score = known[at].1;
            if score == UNFIT {
                continue;
            }
            fitting += 1;
            let better = match self.policy {
                Policy::Random => self.random.usize(..fitting) == 0,
                _ => best.is_none_or(|(most, _)| score > most),
            };
            if better {
                best = Some((score, at));
            }
        }
        self.known[ask] = known;
        best.map(|(_, at)| at)
    }

    fn score(&self, node: &ModelNode, ask: &TraceAsk) -> i64 {
        let (left, full) = (node.left(), MOST_MILLI_GPU as f64);
        match self.policy {
            Policy::DotProduct => {
                let cpu = node.milli_cpu as f64 / MOST_MILLI_CPU * (ask.milli_cpu as f64 / MOST_MILLI_CPU);
                let gpus = left as f64 / full * (ask.demand() as f64 / full);
                (100.0 * (1.0 - f64::midpoint(cpu, gpus))) as i64
            }
            Policy::GpuClustering if ask.gpus > 0 => {
                let base = match (node.sizes.contains_key(&size(ask)), node.sizes.len()) {
                    (true, 1) => 75,
                    (true, _) => 50,
                    (false, 0) => 25,
                    (false, _) => 0,
                };
                base + 25 * (MOST_MILLI_GPU - left) / MOST_MILLI_GPU
            }
            Policy::GpuPacking if ask.gpus > 0 => packing(node, ask),
            Policy::Random | Policy::GpuClustering | Policy::GpuPacking => 0,
            Policy::BestFit => {
                let cpu = (node.milli_cpu - ask.milli_cpu) as f64 / MOST_MILLI_CPU;
                let gpus = (left - ask.demand()) as f64 / full;
                ((1.0 - (cpu * 0.5 + gpus * 0.5)) * 100.0) as i64
            }
            Policy::Fgd if is_share(ask) => {
                let before = self.fragmentation(node.milli_cpu, &node.gpus, &node.model);
                let scores = self.share_scores(node, ask, before);
                scores.map(|(_, score)| score).max().unwrap_or(0)
            }
            Policy::Fgd => {
                let before = self.fragmentation(node.milli_cpu, &node.gpus, &node.model);
                self.fgd(node, ask, &node.best_gpus(ask), before)
            }
        }
    }

    /// Which GPUs of the machine.
    fn gpus(&mut self, node: usize, ask: &TraceAsk) -> Vec<usize> {
        let node = &self.nodes[node];
        match self.policy {
            Policy::Random if is_share(ask) => {
                let fitting: Vec<usize> = (0..node.gpus.len()).filter(|at| node.gpus[*at] >= ask.milli).collect();
                vec![fitting[self.random.usize(..fitting.len())]]
            }
            Policy::Fgd if is_share(ask) => {
                let before = self.fragmentation(node.milli_cpu, &node.gpus, &node.model);
                let best = self.share_scores(node, ask, before).max_by(|a, b| a.1.cmp(&b.1).then(b.0.cmp(&a.0)));
                best.map(|(at, _)| at).into_iter().collect()
            }
            _ => node.best_gpus(ask),
        }
    }

    /// FGD's score of each GPU with room for a share.
    fn share_scores(&self, node: &ModelNode, ask: &TraceAsk, before: f64) -> impl Iterator<Item = (usize, i64)> {
        let fitting = (0..node.gpus.len()).filter(|at| node.gpus[*at] >= ask.milli);
        fitting.map(move |at| (at, self.fgd(node, ask, &[at], before)))
    }

    fn fgd(&self, node: &ModelNode, ask: &TraceAsk, gpus: &[usize], before: f64) -> i64 {
        let mut left = node.gpus.clone();
        gpus.iter().for_each(|at| left[*at] -= ask.milli);
        let gained = before - self.fragmentation(node.milli_cpu - ask.milli_cpu, &left, &node.model);
        (100.0 / (1.0 + (-gained / WHOLE as f64).exp())) as i64
    }

    /// Thousandths of GPUs that are of no use to the typical pods, each weighed by its part.
    fn fragmentation(&self, milli_cpu: i64, gpus: &[i64], model: &str) -> f64 {
        let left: i64 = gpus.iter().sum();
        let useless = |ask: &TraceAsk| {
            let fits = ask.gpus > 0 && ask.milli_cpu <= milli_cpu && ask.accepts(model) && has_gpus(gpus, ask);
            if fits { gpus.iter().filter(|free| **free < ask.milli).sum() } else { left }
        };
        self.typical.iter().map(|(ask, part)| part * useless(ask) as f64).sum()
    }

    /// Takes a pod's room, or with `sign` -1 gives it back.
    fn take(&mut self, node: usize, ask: usize, gpus: &[usize], sign: i64) {
        let (node, ask) = (&mut self.nodes[node], &self.asks[ask]);
        node.version += 1;
        node.milli_cpu -= sign * ask.milli_cpu;
        node.memory -= sign * ask.memory;
        gpus.iter().for_each(|at| node.gpus[*at] -= sign * ask.milli);
        if ask.gpus > 0 {
            let count = node.sizes.entry(size(ask)).or_insert(0);
            *count = count.saturating_add_signed(sign as isize);
            if *count == 0 {
                node.sizes.remove(&size(ask));
            }
        }
    }
}

fn is_share(ask: &TraceAsk) -> bool {
    ask.gpus == 1 && ask.milli < WHOLE
}

fn packing(node: &ModelNode, ask: &TraceAsk) -> i64 {
    let whole = node.gpus.iter().filter(|free| **free == WHOLE).count() as i64;
    if whole == node.gpus.len() as i64 {
        return (33 - whole).max(whole);
    }
    let gpus = node.best_gpus(ask);
    let opened = gpus.iter().filter(|at| node.gpus[**at] == WHOLE).count() as i64;
    if opened > 0 {
        return (50 - opened).max(33);
    }
    let free: i64 = gpus.iter().map(|at| node.gpus[*at] * 100 / WHOLE).sum();
    (100 - free / 10).max(50)
}

/// The most frequent kinds of pods, whatever memory they ask for, until they make [`TYPICAL`] of the list; their parts add up to 1.
fn typical(trace: &Trace) -> Vec<(TraceAsk, f64)> {
    let mut counts: BTreeMap<TraceAsk, usize> = BTreeMap::new();
    for pod in &trace.pods {
        *counts.entry(TraceAsk { memory: 0, ..trace.asks[pod.ask].clone() }).or_insert(0) += 1;
    }
    let mut kinds: Vec<(TraceAsk, usize)> = counts.into_iter().collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let (enough, mut sum) = (TYPICAL * trace.pods.len() as f64, 0);
    let kept = kinds.iter().take_while(|(_, count)| {
        let more = (sum as f64) < enough;
        sum += if more { *count } else { 0 };
        more
    });
    let kept: Vec<(TraceAsk, usize)> = kept.cloned().collect();
    kept.into_iter().map(|(ask, count)| (ask, count as f64 / sum as f64)).collect()
}

impl SimulatedCluster for PublishedPolicy<'_> {
    fn arrive(&mut self, _: f64, pod: PodNumber, ask: usize) -> Vec<PodNumber> {
        if self.place(pod, ask) {
            return vec![pod];
        }
        if self.on_failure == OnFailure::Queue {
            self.waiting.push_back((pod, ask));
        }
        Vec::new()
    }

    fn end(&mut self, _: f64, pod: PodNumber) -> Vec<PodNumber> {
        let Some(PlacedPod { ask, node, gpus }) = self.placed.remove(&pod) else {
            self.waiting.retain(|(waiting, _)| *waiting != pod);
            return Vec::new();
        };
        self.take(node, ask, &gpus, -1);
        let mut placed = Vec::new();
        // One room was freed: a request that does not fit now does not fit for the next pod of its kind either.
        let mut unfit = vec![false; self.asks.len()];
        for (pod, ask) in std::mem::take(&mut self.waiting) {
            if !unfit[ask] && self.place(pod, ask) {
                placed.push(pod);
            } else {
                unfit[ask] = true;
                self.waiting.push_back((pod, ask));
            }
        }
        placed
    }

    fn rests(&self) -> Vec<Rest> {
        let rest = |node: &ModelNode| Rest {
            machine: node.machine,
            milli_cpu: node.milli_cpu,
            memory: node.memory,
            gpus: node.gpus.clone(),
        };
        self.nodes.iter().map(rest).collect()
    }

    fn decisions(&self) -> &[Duration] {
        &self.decisions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton::ops::simulate::trace::TraceMachine;

    fn ask(gpus: u32, milli: i64, milli_cpu: i64) -> TraceAsk {
        TraceAsk { milli_cpu, gpus, milli, ..TraceAsk::default() }
    }

    /// Two machines of two GPUs and these pods, which come in this order.
    fn run(policy: Policy, asks: &[TraceAsk]) -> Vec<Vec<i64>> {
        let machine = |name: &str| TraceMachine {
            name: name.into(),
            milli_cpu: 64_000,
            memory: 0,
            gpus: 2,
            model: "T4".into(),
            ..TraceMachine::default()
        };
        let mut trace = Trace::of(String::new(), vec![machine("a"), machine("b")]);
        asks.iter().for_each(|ask| trace.add(ask.clone(), None, 1));
        let mut cluster = PublishedPolicy::new(policy, &trace, &[0, 1], OnFailure::Drop, fastrand::Rng::with_seed(1));
        for (at, pod) in trace.pods.iter().enumerate() {
            cluster.arrive(0.0, at, pod.ask);
        }
        cluster.rests().into_iter().map(|rest| rest.gpus).collect()
    }

    #[test]
    fn each_policy_goes_where_its_score_says() {
        let (half, whole) = (ask(1, 500, 1000), ask(1, 1000, 1000));
        let asks = [half.clone(), whole.clone(), half.clone()];
        assert_eq!(run(Policy::BestFit, &asks), [[0, 0], [1000, 1000]]);
        assert_eq!(run(Policy::GpuPacking, &asks), [[0, 0], [1000, 1000]]);
        assert_eq!(run(Policy::GpuClustering, &asks), [[0, 1000], [0, 1000]], "shares and whole GPUs apart");
        assert_eq!(run(Policy::Fgd, &asks)[0][0], 0, "the second half fills up the first");
    }

    #[test]
    fn ties_go_to_the_first_machine_and_a_pod_that_fits_nowhere_changes_nothing() {
        assert_eq!(run(Policy::GpuPacking, &[ask(2, 1000, 0), ask(3, 1000, 0)]), [[0, 0], [1000, 1000]]);
        assert_eq!(run(Policy::BestFit, &[ask(1, 1000, 65_000)]), [[1000, 1000], [1000, 1000]]);
    }

    #[test]
    fn what_ends_gives_back_what_it_took_and_lets_others_in() {
        let machine = TraceMachine { name: "a".into(), milli_cpu: 8000, memory: 0, gpus: 1, ..TraceMachine::default() };
        let mut trace = Trace::of(String::new(), vec![machine]);
        trace.add(ask(1, 1000, 8000), None, 3);
        let mut cluster =
            PublishedPolicy::new(Policy::Fgd, &trace, &[0], OnFailure::Queue, fastrand::Rng::with_seed(1));
        assert_eq!((0..3).map(|pod| cluster.arrive(0.0, pod, 0).len()).collect::<Vec<_>>(), [1, 0, 0]);
        assert!(cluster.end(1.0, 2).is_empty(), "it waited");
        assert_eq!(cluster.end(1.0, 0), [1]);
        assert!(cluster.end(1.0, 1).is_empty());
        assert_eq!(cluster.rests()[0], Rest { machine: 0, milli_cpu: 8000, memory: 0, gpus: vec![1000] });
    }
}
