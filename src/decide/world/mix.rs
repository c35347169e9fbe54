//! Which requests for GPUs are typical, learned from the pods of the world: what a node's free GPUs should stay good for.
//!
//! Every pod that has not ended counts, waiting or placed. Kinds are told apart by what they ask of GPUs; CPU and memory beside
//! them are averaged within a kind, so that there are few kinds. Ratings that use the mix are kept between decisions, so it is
//! not read live: a copy is renewed when a tenth of the pods came or went since, and the epoch rises.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::contract::{GpuRequest, key};
use crate::decide::devices::score::TypicalRequest;
use crate::decide::pod::PodContainer;

use super::pod::PodFacts;

/// Kinds that are weighed, the most frequent ones.
const KINDS: usize = 16;
/// The copy is renewed after this many changes, or a tenth of the pods if that is more.
const LEAST: u64 = 1;

/// What one pod asks of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct GpuDemand {
    count: u32,
    core: u16,
    memory: u16,
    bytes: i64,
}

/// How many pods ask for it, and the sums of what they ask for beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct DemandCount {
    pods: u64,
    milli_cpu: i64,
    memory: i64,
}

/// The pods' requests for GPUs.
#[derive(Debug, Clone, Default)]
pub struct Mix {
    tallies: BTreeMap<GpuDemand, DemandCount>,
    pods: u64,
    changes: u64,
    typical: Arc<[TypicalRequest]>,
    epoch: u64,
}

impl Mix {
    /// The typical requests, the most frequent first. Empty while no pod asks for GPUs.
    pub fn typical(&self) -> &Arc<[TypicalRequest]> {
        &self.typical
    }

    /// Rises when [`Mix::typical`] changes.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Counts a pod in.
    pub(super) fn join(&mut self, facts: &PodFacts) {
        let Some(demand) = demand(facts) else { return };
        let tally = self.tallies.entry(demand).or_default();
        tally.pods += 1;
        tally.milli_cpu = tally.milli_cpu.saturating_add(facts.spec.requests.milli_cpu);
        tally.memory = tally.memory.saturating_add(facts.spec.requests.memory);
        self.pods += 1;
        self.changed();
    }

    /// Counts a pod out that was counted in with these very facts.
    pub(super) fn leave(&mut self, facts: &PodFacts) {
        let Some(demand) = demand(facts) else { return };
        let Some(tally) = self.tallies.get_mut(&demand) else { return };
        tally.pods -= 1;
        tally.milli_cpu = tally.milli_cpu.saturating_sub(facts.spec.requests.milli_cpu);
        tally.memory = tally.memory.saturating_sub(facts.spec.requests.memory);
        if tally.pods == 0 {
            self.tallies.remove(&demand);
        }
        self.pods -= 1;
        self.changed();
    }

    /// `true` when exactly these pods are counted.
    pub fn counts<'a>(&self, pods: impl Iterator<Item = &'a PodFacts>) -> bool {
        let mut afresh = Self::default();
        pods.for_each(|facts| afresh.join(facts));
        self.tallies == afresh.tallies && self.pods == afresh.pods
    }

    fn changed(&mut self) {
        self.changes += 1;
        if self.changes < LEAST.max(self.pods / 10) {
            return;
        }
        self.changes = 0;
        let mut typical: Vec<TypicalRequest> =
            self.tallies.iter().map(|(demand, tally)| request(*demand, *tally)).collect();
        // Stable: among equally frequent kinds the smaller comes first.
        typical.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        typical.truncate(KINDS);
        if *typical != *self.typical {
            self.typical = typical.into();
            self.epoch += 1;
        }
    }
}

fn request(demand: GpuDemand, tally: DemandCount) -> TypicalRequest {
    let pods = tally.pods.max(1) as i64;
    TypicalRequest {
        core: demand.core,
        memory: demand.memory,
        bytes: demand.bytes,
        count: demand.count,
        milli_cpu: tally.milli_cpu / pods,
        node_memory: tally.memory / pods,
        weight: tally.pods as f64,
    }
}

/// All whole GPUs of the pod, or else its largest share; `None` without either.
fn demand(facts: &PodFacts) -> Option<GpuDemand> {
    let served = |container: &&PodContainer| container.dra_backed.is_empty();
    let wants = facts.handoff.containers.iter().filter(served).filter_map(|c| c.request.as_ref().ok()?.gpu.as_ref());
    let (mut whole, mut share) = (0u32, None);
    for want in wants {
        match want {
            GpuRequest::Whole { count } => whole = whole.saturating_add(*count),
            GpuRequest::Share { count, core, ratio, memory } => {
                let percent = ratio.unwrap_or(0).clamp(0, key::WHOLE) as u16;
                let core = (*core).clamp(0, key::WHOLE) as u16;
                let one = GpuDemand { count: *count, core, memory: percent, bytes: memory.unwrap_or(0) };
                share = share.max(Some(one));
            }
            GpuRequest::Mig { .. } => {}
        }
    }
    let all = key::WHOLE as u16;
    if whole > 0 { Some(GpuDemand { count: whole, core: all, memory: all, bytes: 0 }) } else { share }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{ContainerRequest, PodRef};
    use crate::decide::pod::{AssignmentText, ContainerKind, HandoffPod, Phase};
    use crate::decide::world::{PodSpec, Resources};

    fn asks(limits: &[(&str, &str)], milli_cpu: i64) -> PodFacts {
        let limits = limits.iter().map(|(name, amount)| (*name, amount.parse().unwrap()));
        let container = PodContainer {
            name: "main".into(),
            kind: ContainerKind::App,
            request: ContainerRequest::judge(limits),
            running: false,
            started: false,
            dra_backed: vec![],
        };
        PodFacts {
            handoff: HandoffPod {
                pod: PodRef::new("ml", "a", "u"),
                node: None,
                scheduler_name: "s".into(),
                phase: Phase::Pending,
                deleting: None,
                scheduled_condition: false,
                created: jiff::Timestamp::UNIX_EPOCH,
                containers: vec![container].into(),
                assignment: AssignmentText::default(),
            },
            spec: PodSpec { requests: Resources { milli_cpu, ..Resources::default() }, ..PodSpec::default() }.into(),
        }
    }

    #[test]
    fn kinds_are_weighed_by_their_pods_and_forgotten_with_them() {
        let (whole, half) = (asks(&[(key::NVIDIA_GPU, "2")], 3000), asks(&[(key::GPU, "50")], 500));
        let mut mix = Mix::default();
        mix.join(&asks(&[("cpu", "4")], 4000));
        assert_eq!((mix.typical().len(), mix.epoch()), (0, 0), "a pod without GPUs says nothing");
        for milli_cpu in [1000, 3000] {
            mix.join(&asks(&[(key::NVIDIA_GPU, "2")], milli_cpu));
        }
        mix.join(&half);
        let kinds: Vec<_> = mix.typical().iter().map(|k| (k.count, k.core, k.milli_cpu, k.weight as u64)).collect();
        assert_eq!(kinds, [(2, 100, 2000, 2), (1, 50, 500, 1)]);
        mix.leave(&half);
        mix.leave(&whole);
        mix.leave(&asks(&[(key::NVIDIA_GPU, "2")], 1000));
        assert_eq!(mix.typical().len(), 0);
        assert_eq!(mix.epoch(), 6);
    }

    #[test]
    fn the_copy_is_renewed_when_a_tenth_of_the_pods_came_or_went() {
        let mut mix = Mix::default();
        (0..100).for_each(|_| mix.join(&asks(&[(key::NVIDIA_GPU, "1")], 0)));
        let before = mix.epoch();
        (0..8).for_each(|_| mix.join(&asks(&[(key::NVIDIA_GPU, "8")], 0)));
        let renewed = mix.epoch() - before;
        assert!(renewed <= 1, "{renewed} renewals for 8 of 100 pods");
        (0..12).for_each(|_| mix.join(&asks(&[(key::NVIDIA_GPU, "8")], 0)));
        assert!(mix.typical().iter().any(|kind| kind.count == 8));
    }
}
