//! Values that many pods and nodes have in common, each stored once.

use crate::devices::{Held, HeldAmounts, Labels, Layout};
use crate::intern::Interner;
use crate::pod::PodContainer;
use baton_contract::{AgentStatus, Shared};

use super::devices::Stock;
use super::pod::PodFacts;
use super::resources::Resources;
use super::spec::PodSpec;

/// The common values.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedParts {
    specs: Interner<PodSpec>,
    containers: Interner<Vec<PodContainer>>,
    amounts: Interner<HeldAmounts>,
    device_labels: Interner<Labels>,
    layouts: Interner<Layout>,
    allocatable: Interner<Resources>,
    agents: Interner<AgentStatus>,
}

impl SharedParts {
    /// What a pod's object says.
    pub fn facts(&mut self, facts: &mut PodFacts) {
        self.specs.intern(&mut facts.spec);
        self.containers.intern(&mut facts.handoff.containers);
    }

    /// What a pod holds.
    pub fn held(&mut self, held: &mut Option<Held>) {
        let amounts = &mut self.amounts;
        held.iter_mut().for_each(|held| held.share(|value| amounts.intern(value)));
    }

    /// What a node offers.
    pub fn allocatable(&mut self, allocatable: &mut Shared<Resources>) {
        self.allocatable.intern(allocatable);
    }

    /// What an agent says.
    pub fn agent(&mut self, status: AgentStatus) -> Shared<AgentStatus> {
        let mut status = Shared::from(status);
        self.agents.intern(&mut status);
        status
    }

    /// What the devices of a node have in common with those of other nodes. The caller counts afresh.
    pub fn store_once(&mut self, stock: &mut Stock) {
        let Self { device_labels, amounts, layouts, .. } = self;
        stock.share(|value| device_labels.intern(value), |value| amounts.intern(value), |value| layouts.intern(value));
    }
}
