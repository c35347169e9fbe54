//! Amounts of what a node offers and pods ask for, and kube-scheduler's arithmetic of a pod's request.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::pod::ContainerKind;
use baton_contract::{Quantity, key};

/// Amounts: CPU in thousandths, memory and ephemeral storage in bytes, everything else in whole units by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Resources {
    /// Thousandths of a CPU.
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes.
    pub ephemeral: i64,
    /// Extended resources, huge pages.
    pub scalar: Scalars,
}

/// Whole amounts by name, in the order of the names. There are mostly a handful of them, looked for one by one: names
/// mostly differ in length, and those of devices stand in memory once. A sum takes its names from what was added, so that few
/// nodes have names of their own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Scalars(Vec<(Arc<str>, i64)>);

/// The names of devices, which every node and every pod that counts here has.
static DEVICE_NAMES: LazyLock<[Arc<str>; key::DEVICE_NAMES.len()]> = LazyLock::new(|| key::DEVICE_NAMES.map(Arc::from));

/// A name to be kept.
fn kept(name: &str) -> Arc<str> {
    DEVICE_NAMES.iter().find(|known| ***known == *name).cloned().unwrap_or_else(|| name.into())
}

/// Equal by address where both are kept by [`kept`], else letter by letter.
fn is_name(known: &str, name: &str) -> bool {
    known.len() == name.len() && (std::ptr::eq(known, name) || known == name)
}

impl Scalars {
    /// The amount of this name.
    pub fn get(&self, name: &str) -> Option<i64> {
        self.0.iter().find(|(known, _)| is_name(known, name)).map(|(_, amount)| *amount)
    }

    /// Sets an amount.
    pub fn insert(&mut self, name: Arc<str>, amount: i64) {
        *self.entry(&name) = amount;
    }

    /// Names and amounts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, amount)| (&**name, *amount))
    }

    /// `true` when nothing is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The amount of this name, to be changed; zero when it was not there.
    fn entry(&mut self, name: &Arc<str>) -> &mut i64 {
        // Most are few. Where they are many, their author has made them up.
        let known = (self.0.len() < 16).then(|| self.0.iter().position(|(known, _)| is_name(known, name))).flatten();
        let at = known.unwrap_or_else(|| match self.0.binary_search_by(|(known, _)| (**known).cmp(name)) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(at, (name.clone(), 0));
                at
            }
        });
        &mut self.0[at].1
    }
}

impl FromIterator<(Arc<str>, i64)> for Scalars {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, i64)>>(amounts: I) -> Self {
        let mut all = Self::default();
        amounts.into_iter().for_each(|(name, amount)| all.insert(name, amount));
        all
    }
}

/// CPU and memory as kube-scheduler rates nodes by them: a container that names neither counts as if it asked for
/// [`Rated::UNNAMED`], so that many of those do not pile up on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Rated {
    /// Thousandths of a CPU.
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
}

impl Rated {
    /// 100m and 200 MiB.
    pub const UNNAMED: Self = Self { milli_cpu: 100, memory: 200 << 20 };

    /// Adds, saturating.
    pub fn add(&mut self, other: Self) {
        self.milli_cpu = self.milli_cpu.saturating_add(other.milli_cpu);
        self.memory = self.memory.saturating_add(other.memory);
    }

    /// Takes away.
    pub fn sub(&mut self, other: Self) {
        self.milli_cpu = self.milli_cpu.saturating_sub(other.milli_cpu);
        self.memory = self.memory.saturating_sub(other.memory);
    }
}

impl From<&Resources> for Rated {
    fn from(amounts: &Resources) -> Self {
        Self { milli_cpu: amounts.milli_cpu, memory: amounts.memory }
    }
}

/// What a pod's requests are computed from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestParts {
    /// Init containers and sidecars in spec order, then app containers, with their requests.
    pub containers: Vec<(ContainerKind, Resources)>,
    /// `spec.resources.requests`: replaces the sum, name by name.
    pub pod_level: Option<BTreeMap<Box<str>, Quantity>>,
    /// `spec.overhead`.
    pub overhead: Resources,
}

impl Resources {
    /// From a Kubernetes resource list. `pods` is not an amount that pods ask for and is left out.
    pub fn of<'a>(list: impl IntoIterator<Item = (&'a str, Quantity)>) -> Self {
        let mut sum = Self::default();
        for (name, amount) in list {
            sum.set(name, amount);
        }
        sum
    }

    /// Sets one amount by its name.
    pub fn set(&mut self, name: &str, amount: Quantity) {
        match name {
            "cpu" => self.milli_cpu = amount.milli_value(),
            "memory" => self.memory = amount.value(),
            "ephemeral-storage" => self.ephemeral = amount.value(),
            "pods" | "storage" => {}
            _ => {
                self.scalar.insert(kept(name), amount.value());
            }
        }
    }

    /// The amount of an extended resource; zero when not named.
    pub fn scalar(&self, name: &str) -> i64 {
        self.scalar.get(name).unwrap_or(0)
    }

    /// Adds, saturating.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, i64::saturating_add);
    }

    /// Takes away; may go below zero on an over-committed node.
    pub fn sub(&mut self, other: &Self) {
        self.combine(other, i64::saturating_sub);
        self.scalar.0.retain(|(_, amount)| *amount != 0);
    }

    /// No amount below zero.
    #[must_use]
    pub fn at_least_zero(mut self) -> Self {
        let Self { milli_cpu, memory, ephemeral, scalar } = &mut self;
        let named = scalar.0.iter_mut().map(|(_, amount)| amount);
        [milli_cpu, memory, ephemeral].into_iter().chain(named).for_each(|amount| *amount = (*amount).max(0));
        self
    }

    /// The larger amount of each.
    pub fn raise_to(&mut self, other: &Self) {
        self.combine(other, i64::max);
    }

    /// More than a cluster has, so that sums with it may end at the largest number.
    pub fn is_absurd(&self) -> bool {
        let most = i64::MAX >> 10;
        self.milli_cpu > most
            || self.memory > most
            || self.ephemeral > most
            || self.scalar.iter().any(|(_, amount)| amount > most)
    }

    /// `true` when nothing is asked for.
    pub fn is_zero(&self) -> bool {
        self.milli_cpu == 0
            && self.memory == 0
            && self.ephemeral == 0
            && self.scalar.iter().all(|(_, amount)| amount == 0)
    }

    fn combine(&mut self, other: &Self, with: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = with(self.milli_cpu, other.milli_cpu);
        self.memory = with(self.memory, other.memory);
        self.ephemeral = with(self.ephemeral, other.ephemeral);
        for (name, amount) in &other.scalar.0 {
            let mine = self.scalar.entry(name);
            *mine = with(*mine, *amount);
        }
    }
}

impl RequestParts {
    /// What the scheduler counts: app containers and sidecars at once, each init container with the sidecars started before
    /// it, the larger of both; then the pod level, then the overhead.
    pub fn total(&self) -> Resources {
        let (mut running, mut sidecars, mut peak) = (Resources::default(), Resources::default(), Resources::default());
        for (kind, request) in &self.containers {
            match kind {
                ContainerKind::App => running.add(request),
                ContainerKind::Sidecar => {
                    running.add(request);
                    sidecars.add(request);
                    peak.raise_to(&sidecars);
                }
                ContainerKind::Init => {
                    let mut with_sidecars = sidecars.clone();
                    with_sidecars.add(request);
                    peak.raise_to(&with_sidecars);
                }
            }
        }
        running.raise_to(&peak);
        for (name, amount) in self.pod_level.iter().flatten() {
            if matches!(&**name, "cpu" | "memory") || name.starts_with("hugepages-") {
                running.set(name, *amount);
            }
        }
        running.add(&self.overhead);
        running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(milli: i64) -> Resources {
        Resources { milli_cpu: milli, ..Resources::default() }
    }

    #[test]
    fn init_containers_count_by_their_peak_with_the_sidecars_before_them() {
        use ContainerKind::{App, Init, Sidecar};
        let total = |containers: Vec<(ContainerKind, Resources)>| {
            RequestParts { containers, ..RequestParts::default() }.total().milli_cpu
        };
        assert_eq!(total(vec![(Init, cpu(500)), (App, cpu(100)), (App, cpu(100))]), 500);
        assert_eq!(total(vec![(Sidecar, cpu(300)), (Init, cpu(500)), (App, cpu(100))]), 800);
        assert_eq!(total(vec![(Init, cpu(500)), (Sidecar, cpu(300)), (App, cpu(400))]), 700);
    }

    #[test]
    fn amounts_by_name_stay_in_order_and_go_when_nothing_is_left() {
        let of = |amounts: &[(&str, i64)]| Resources {
            scalar: amounts.iter().map(|(name, amount)| (Arc::from(*name), *amount)).collect(),
            ..Resources::default()
        };
        let mut sum = of(&[("b", 2), ("aa", 1), ("b", 3)]);
        assert_eq!(sum.scalar.iter().collect::<Vec<_>>(), [("aa", 1), ("b", 3)]);
        sum.add(&of(&[("ab", 4), ("b", 1)]));
        assert_eq!(sum, of(&[("b", 4), ("ab", 4), ("aa", 1)]));
        sum.sub(&of(&[("aa", 1), ("c", 1)]));
        assert_eq!((sum.scalar("b"), sum.scalar("aa"), sum.scalar.get("aa"), sum.scalar("c")), (4, 0, None, -1));
    }

    #[test]
    fn the_pod_level_replaces_what_it_names_and_overhead_comes_on_top() {
        let parts = RequestParts {
            containers: vec![(ContainerKind::App, Resources { memory: 7, ..cpu(100) })],
            pod_level: Some(
                [("cpu".into(), Quantity::millis(50)), ("nvidia.com/gpu".into(), Quantity::units(3))].into(),
            ),
            overhead: cpu(1),
        };
        assert_eq!(parts.total(), Resources { memory: 7, ..cpu(51) });
    }
}
