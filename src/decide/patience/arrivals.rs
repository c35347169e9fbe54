//! How often pods of each kind come, and when that has changed enough to be worth new tables.

use std::collections::BTreeMap;

use super::kind::PodKind;

/// Pods that the cluster is assumed to have seen before the first one.
const PRIOR: f64 = 30.0;
/// Arrivals between two looks at the change.
const LOOK: u64 = 16;
/// Part of the weights that must have moved from kind to kind for new tables: below, ratings would hardly differ, and every kept
/// rating is made again.
const MOVED: f64 = 0.1;
/// Kinds that are weighed; the lightest goes first.
const MOST: usize = 512;
/// Weights grow instead of fading, so that an arrival touches one of them; beyond this they are all scaled down.
const LARGEST: f64 = 1e100;

/// Weights of kinds over the arrivals so far, the older ones less.
#[derive(Debug, Clone)]
pub struct Arrivals {
    weights: BTreeMap<PodKind, f64>,
    /// Weight of one pod that comes now.
    one: f64,
    /// Factor of `one` from pod to pod.
    growth: f64,
    count: u64,
    /// Parts of the tables in force.
    known: BTreeMap<PodKind, f64>,
}

impl Arrivals {
    /// No arrivals; after `half_life` further ones, a pod counts half.
    pub fn new(half_life: u32) -> Self {
        let growth = 2f64.powf(1.0 / f64::from(half_life.max(1)));
        Self { weights: BTreeMap::new(), one: 1.0, growth, count: 0, known: BTreeMap::new() }
    }

    /// Begins with pods of one GPU that ask for so much CPU each: all that a cluster says of pods to come.
    pub fn assume(&mut self, milli_cpu_per_gpu: i64) {
        let kind = PodKind { gpus: 1, share: 100, milli_cpu: milli_cpu_per_gpu, memory: 0, selector: 0 };
        *self.weights.entry(kind).or_insert(0.0) += PRIOR;
    }

    /// Counts a pod. Returns the kind that was dropped for it, if any.
    pub fn note(&mut self, kind: PodKind) -> Option<PodKind> {
        self.one *= self.growth;
        if self.one > LARGEST {
            self.weights.values_mut().for_each(|weight| *weight /= LARGEST);
            self.one /= LARGEST;
        }
        self.count += 1;
        let full = self.weights.len() >= MOST && !self.weights.contains_key(&kind);
        let lightest = || self.weights.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(kind, _)| *kind);
        let dropped = if full { lightest() } else { None };
        if let Some(dropped) = &dropped {
            self.weights.remove(dropped);
        }
        *self.weights.entry(kind).or_insert(0.0) += self.one;
        dropped
    }

    /// `true` when it is time to look, and the weights have moved away from those of the tables.
    pub fn have_moved(&self) -> bool {
        if self.known.is_empty() {
            return !self.weights.is_empty();
        }
        if !self.count.is_multiple_of(LOOK) {
            return false;
        }
        let parts = self.parts();
        let gone = self.known.iter().filter(|(kind, _)| !parts.contains_key(kind)).map(|(_, part)| *part);
        let moved = parts.iter().map(|(kind, part)| (part - self.known.get(kind).copied().unwrap_or(0.0)).abs());
        moved.chain(gone).sum::<f64>() / 2.0 > MOVED
    }

    /// Each kind's part of the arrivals, for new tables.
    pub fn take(&mut self) -> &BTreeMap<PodKind, f64> {
        self.known = self.parts();
        &self.known
    }

    /// Whether some weighed kind has this selector.
    pub fn uses(&self, selector: u16) -> bool {
        self.weights.keys().chain(self.known.keys()).any(|kind| kind.selector == selector)
    }

    fn parts(&self) -> BTreeMap<PodKind, f64> {
        let sum: f64 = self.weights.values().sum();
        self.weights.iter().map(|(kind, weight)| (*kind, weight / sum)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(gpus: u32) -> PodKind {
        PodKind { gpus, share: 100, milli_cpu: 1000, memory: 0, selector: 0 }
    }

    fn part(arrivals: &mut Arrivals, kind: PodKind) -> f64 {
        arrivals.take().get(&kind).copied().unwrap_or(0.0)
    }

    #[test]
    fn a_pod_counts_half_after_the_half_life() {
        let mut arrivals = Arrivals::new(100);
        arrivals.note(kind(1));
        (0..100).for_each(|_| _ = arrivals.note(kind(2)));
        let first = arrivals.weights[&kind(1)] / arrivals.one;
        assert!((first - 0.5).abs() < 1e-9, "{first}");
    }

    #[test]
    fn the_prior_gives_way_to_what_comes() {
        let mut arrivals = Arrivals::new(4000);
        arrivals.assume(8000);
        let assumed = PodKind { milli_cpu: 8000, ..kind(1) };
        assert!(part(&mut arrivals, assumed) > 0.999);
        (0..270).for_each(|_| _ = arrivals.note(kind(2)));
        let left = part(&mut arrivals, assumed);
        assert!((0.09..0.101).contains(&left), "{left}");
    }

    #[test]
    fn new_tables_are_due_when_a_tenth_has_moved_and_only_every_16_pods() {
        let mut arrivals = Arrivals::new(4000);
        assert!(!arrivals.have_moved(), "nothing is known");
        (0..160).for_each(|_| _ = arrivals.note(kind(1)));
        assert!(arrivals.have_moved(), "there are no tables");
        arrivals.take();
        assert!(!arrivals.have_moved());
        let mut due = Vec::new();
        for pod in 1..=48 {
            arrivals.note(kind(2));
            due.extend(arrivals.have_moved().then_some(pod));
        }
        assert_eq!(due, [32, 48], "32 of 192 pods are more than a tenth, 16 of 176 are not");
    }

    #[test]
    fn kinds_are_bounded_and_weights_stay_finite() {
        let mut arrivals = Arrivals::new(1);
        for cpu in 0..2000 {
            arrivals.note(PodKind { milli_cpu: cpu, ..kind(1) });
        }
        assert_eq!(arrivals.weights.len(), MOST);
        assert!(arrivals.weights.values().all(|weight| weight.is_finite()));
        assert!(arrivals.weights.contains_key(&PodKind { milli_cpu: 1999, ..kind(1) }));
        let sum: f64 = arrivals.take().values().sum();
        assert!((sum - 1.0).abs() < 1e-9);
    }
}
