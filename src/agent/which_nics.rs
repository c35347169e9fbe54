//! Which NICs of this machine are handed out: what the decision is told of each, and what it means for the devices.

use std::collections::{BTreeMap, BTreeSet};

use super::options::AgentOptions;
use baton_contract::DeviceId;
use baton_decide::nics::{self, NicFacts};
use baton_hardware::nic::PciFunction;
use baton_hardware::{Bdf, Machine, NicFault, NicInfo};

/// The outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WhichNics {
    /// NICs and virtual functions that are not handed out, and why.
    pub unserved: BTreeMap<Bdf, String>,
    /// Entries of sysfs that cannot be read, without those that are excluded.
    pub faults: Vec<NicFault>,
    /// The selection takes none of the NICs.
    pub none_selected: Option<String>,
    /// What a person should know of the selection.
    pub warnings: Vec<String>,
}

impl WhichNics {
    /// Judges the NICs of `machine`. `is_proven` says of a NIC that it was up since this process started.
    pub fn of(machine: &Machine, options: &AgentOptions, is_proven: impl Fn(Bdf) -> bool) -> Self {
        let selector = &options.rdma_select;
        let seen: BTreeSet<Bdf> = machine.nics.iter().map(|nic| nic.bdf).collect();
        let parent = |nic: &NicInfo| match &nic.function {
            PciFunction::Virtual { pf } if seen.contains(pf) => Some(*pf),
            _ => None,
        };
        // One that was in a pod's network namespace before it was ever seen has no name by which it could be judged.
        let in_view: Vec<NicInfo> = machine.nics.iter().filter_map(|nic| named(nic, machine)).collect();
        let listed: Vec<&NicInfo> = in_view.iter().filter(|nic| parent(nic).is_none()).collect();
        let apart = !options.rdma_vf_resource.is_empty();
        let of_nic = |nic: &&NicInfo| {
            // Where only the functions of a NIC are handed out, the host keeps the path that it has.
            let divided = apart && !matches!(&nic.function, PciFunction::Physical { vfs } if vfs.is_empty());
            let facts = facts_of(nic);
            let alive = is_proven(nic.bdf) || facts.alive;
            NicFacts { carries: facts.carries.filter(|_| !divided), alive, ..facts }
        };
        let all: Vec<NicFacts> = listed.iter().map(of_nic).collect();
        let choice = nics::choose(selector, &all);
        let mut which = Self::default();
        for (nic, verdict) in listed.iter().zip(&choice.verdicts) {
            which.unserved.extend(verdict.as_ref().err().map(|why| (nic.bdf, why.to_string())));
        }
        // A function goes with its NIC. One that the operator excludes, or that the host's own traffic uses, stays with the host.
        for (nic, pf) in in_view.iter().filter_map(|nic| Some((nic, parent(nic)?))) {
            let facts = NicFacts { alive: true, ..facts_of(nic) };
            let excluded = selector.excludes(&facts).map(|term| format!("--rdma-select={term} excludes it"));
            let used = facts.carries.filter(|_| selector.asks_for(&facts_of(nic)) != Some(true));
            let used = used.map(|route| format!("it carries the node's default route ({route})"));
            let why = which.unserved.get(&pf).cloned().or(excluded).or(used);
            which.unserved.extend(why.map(|why| (nic.bdf, why)));
        }
        let is_excluded = |fault: &&NicFault| {
            let bdf = fault.bdf.map(|bdf| bdf.to_string()).unwrap_or_default();
            let known = NicFacts { name: fault.ibdev.clone(), address: bdf, ..NicFacts::default() };
            selector.excludes(&known).is_some()
        };
        which.faults = machine.nic_faults.iter().filter(|fault| !is_excluded(fault)).cloned().collect();
        which.warn(machine, options, &choice, &all);
        which
    }

    fn warn(&mut self, machine: &Machine, options: &AgentOptions, choice: &nics::NicChoice, listed: &[NicFacts]) {
        let selector = &options.rdma_select;
        if !options.rdma || listed.is_empty() {
            return;
        }
        let names: Vec<&str> = listed.iter().map(|nic| nic.name.as_str()).collect();
        if choice.none_selected {
            let text = format!("--rdma-select={selector} takes none of this node's NICs: {}", names.join(", "));
            self.none_selected = Some(text);
        }
        let functions = machine.nics.iter().map(facts_of);
        let entries =
            machine.nic_faults.iter().map(|fault| NicFacts { name: fault.ibdev.clone(), ..NicFacts::default() });
        let every: Vec<NicFacts> = functions.chain(entries).collect();
        self.warnings.extend(selector.idle(&every).map(|term| format!("{term} of --rdma-select matches no NIC here")));
        if choice.last_resort {
            self.warnings.push(
                "a NIC that carries the node's default route is served, because no other NIC has a link; --rdma-select says which to serve"
                    .to_owned(),
            );
        }
        // Where each NIC is asked for by name or kind, it does not matter.
        if let Some(why) =
            machine.routes_unknown.as_ref().filter(|_| listed.iter().any(|nic| selector.asks_for(nic).is_none()))
        {
            self.warnings.push(format!(
                "the NIC that carries the node's default route is not known, and may be handed out: {why}"
            ));
        }
    }

    /// All that is to be said of the selection, the worst first.
    pub fn said(&self) -> impl Iterator<Item = &String> {
        self.none_selected.iter().chain(&self.warnings)
    }

    /// NICs and virtual functions that are not handed out, as devices.
    pub fn unselected(&self) -> BTreeMap<DeviceId, Box<str>> {
        let of = |(bdf, why): (&Bdf, &String)| Some((DeviceId::parse(&bdf.to_string()).ok()?, why.as_str().into()));
        self.unserved.iter().filter_map(of).collect()
    }
}

/// A NIC with its name, if only that of its entry in sysfs which could not be read.
fn named(nic: &NicInfo, machine: &Machine) -> Option<NicInfo> {
    let fault = || machine.nic_faults.iter().find(|fault| fault.bdf == Some(nic.bdf));
    let name = Some(nic.ibdev.clone()).filter(|name| !name.is_empty()).or_else(|| Some(fault()?.ibdev.clone()));
    name.map(|ibdev| NicInfo { ibdev, ..nic.clone() })
}

fn facts_of(nic: &NicInfo) -> NicFacts {
    NicFacts {
        name: nic.ibdev.clone(),
        interfaces: nic.netdevs.clone(),
        link_layers: nic.ports.iter().filter_map(|port| port.link_layer.clone()).collect(),
        vendor: nic.pci_id.map(|(vendor, _)| vendor),
        driver: nic.driver.clone(),
        address: nic.bdf.to_string(),
        carries: nic.carries.clone(),
        alive: nic.ports.iter().any(|port| port.state.is_linked()),
    }
}
